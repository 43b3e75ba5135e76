"""Recipes for environments, and what is configured, reach another process."""

from __future__ import annotations

import functools
import sys

import gin
import gymnasium
import numpy as np
import pytest
import torch

from alf_lite.config import configurable
from alf_lite.config import files as config_files
from alf_lite.config.shipping import needs_main_module
from alf_lite.environments.creation import create_environment
from alf_lite.environments.env_factory import (
    EnvFactory,
    dump_factory,
    find_spec,
    install_hint,
    load_factory,
)
from alf_lite.environments.process_vector_env import ProcessVectorEnv
from alf_lite.errors import ConfigError, EnvError
from alf_lite.testing.structured_environments import CountingEnv

CONF = """
CountingEnv.episode_lengths = (5,)
short/CountingEnv.episode_lengths = (2,)
"""


def episode_length(env):
    env.reset()
    for t in range(1, 20):
        if any(env.step(0)[2:4]):
            return t
    raise AssertionError("the episode did not end")


def test_an_id_is_made_with_its_arguments():
    spec = gymnasium.spec("CartPole-v1")
    factory = EnvFactory(
        spec,
        kwargs={"sutton_barto_reward": True},
        max_episode_steps=3,
        render_mode="rgb_array",
        wrappers=(gymnasium.wrappers.TimeAwareObservation,),
    )
    env = load_factory(dump_factory(factory))()
    assert isinstance(env, gymnasium.wrappers.TimeAwareObservation)
    assert env.render_mode == "rgb_array"
    env.reset(seed=0)
    assert env.step(0)[1] == 0
    assert episode_length(env) == 3
    assert "PassiveEnvChecker" not in str(env)


def test_a_time_limit_inside_of_a_time_limit_ends_once():
    factory = EnvFactory(
        ctor=functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=3),
        max_episode_steps=5,
    )
    env = factory()
    env.reset(seed=0)
    ends = [env.step(t % 2)[2:4] for t in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_a_factory_of_something_else_is_refused():
    with pytest.raises(
        ConfigError, match=r"must return a gymnasium.Env.*builtins.dict"
    ):
        EnvFactory(ctor=dict)()


def test_only_what_is_defined_in_the_main_module_needs_it():
    assert not needs_main_module(dump_factory(EnvFactory(ctor=CountingEnv)))
    assert needs_main_module(b"...__main__...")


def test_bindings_reach_a_process_that_has_read_nothing():
    config_files.parse_config_text(CONF)
    factory = EnvFactory(ctor=CountingEnv)
    assert length_elsewhere(factory) == 5
    dumped = dump_factory(factory)
    config_files.reset()
    assert episode_length(load_factory(dumped)()) == 5


@pytest.mark.parametrize("scope", ["", "evaluation"])
def test_references_with_a_scope_reach_another_process(scope):
    prefix = f"{scope}/" if scope else ""
    config_files.parse_config_text(
        CONF
        + "create_environment.env_ctor = @CountingEnv\n" * bool(scope)
        + f"{prefix}create_environment.env_ctor = @short/CountingEnv\n"
    )
    with gin.config_scope(scope or None):
        env = create_environment(vectorization_mode="async")
    try:
        env.reset()
        action = torch.zeros(1, dtype=torch.int64)
        ends = [bool(env.step(action).is_last()) for _ in range(2)]
    finally:
        env.close()
    assert ends == [False, True]
    # What only the other process has used is not reported as forgotten.
    forgotten = " ".join(config_files.unused_bindings())
    assert "short/CountingEnv.episode_lengths" not in forgotten
    assert "episode_lengths = (2,)" in config_files.operative_config_text()


def test_lambdas_are_refused_with_advice():
    with pytest.raises(ConfigError, match="top level of a module"):
        dump_factory(EnvFactory(ctor=lambda: None))
    config_files.parse_config_text(CONF)
    with pytest.raises(ConfigError, match="top level of a module"):
        dump_factory(EnvFactory(ctor=lambda: None))


def length_elsewhere(factory):
    """The episode length of the environment that a fresh process builds."""
    env = ProcessVectorEnv([factory])
    try:
        env.reset(seed=0)
        for t in range(1, 20):
            if any(env.step(np.array([t % 2]))[2:4]):
                return t
    finally:
        env.close()
    raise AssertionError("the episode did not end")


@configurable
def wrapper_with_binding(env, max_episode_steps=9):
    return gymnasium.wrappers.TimeLimit(env, max_episode_steps)


def test_wrappers_from_the_configuration_reach_another_process():
    config_files.parse_config_text(
        "import alf_lite.environments.creation\n"
        "wrapper_with_binding.max_episode_steps = 4\n"
    )
    factory = EnvFactory(
        gymnasium.spec("CartPole-v1"), wrappers=(wrapper_with_binding,)
    )
    assert length_elsewhere(factory) == 4


def test_registered_ids_are_found():
    assert find_spec("CartPole-v1").id == "CartPole-v1"


@pytest.mark.parametrize(
    ("env_id", "suggestion"),
    [
        ("CartPole-v7", "'CartPole-v1'"),
        ("cartpole-v1", "'CartPole-v1'"),
        ("CatPole-v1", "'CartPole-v1'"),
        ("HalfCheetah-v0", "'HalfCheetah-v5'"),
        ("LunarLander-v9", "'LunarLander-v3'"),
    ],
)
def test_similar_ids_are_suggested(env_id, suggestion):
    with pytest.raises(EnvError, match=f"no environment '{env_id}'.*{suggestion}"):
        find_spec(env_id)


def test_without_a_similar_id_the_way_to_other_packages_is_shown():
    with pytest.raises(EnvError, match="found as 'module:id'"):
        find_spec("Xyzzy")


def test_a_malformed_id_is_an_unknown_one():
    with pytest.raises(EnvError, match="no environment 'Cart Pole!'"):
        find_spec("Cart Pole!")


def test_a_module_is_imported_first():
    name = "this.__main__"  # imported, prints nothing, registers nothing
    with pytest.raises(EnvError, match="module 'no_such_module' cannot be imported"):
        find_spec("no_such_module:CartPole-v1")
    assert name not in sys.modules
    assert find_spec("alf_lite.errors:CartPole-v1").id == "CartPole-v1"


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_atari_without_its_package_names_the_extra(env_id, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(EnvError, match=r"pip install 'alf_lite\[atari\]'"):
        find_spec(env_id)


@pytest.mark.parametrize(
    ("env_id", "text", "extra"),
    [
        ("HalfCheetah-v5", "DependencyNotInstalled: MuJoCo is not installed", "mujoco"),
        ("Ant-v5", "ModuleNotFoundError: No module named 'mujoco'", "mujoco"),
        ("LunarLander-v3", "DependencyNotInstalled: Box2D is not installed", "box2d"),
        ("CartPole-v1", "DependencyNotInstalled: pygame is not installed", "video"),
    ],
)
def test_missing_packages_name_their_extra(env_id, text, extra):
    assert f"alf_lite[{extra}]" in install_hint(env_id, EnvError(text))


def test_other_errors_get_no_advice():
    assert install_hint("Ant-v5", EnvError("ValueError: mujoco is angry")) == ""
    assert install_hint("Mine-v0", EnvError("ModuleNotFoundError: 'simulator'")) == ""
