"""Recipes for environments, and what is configured, reach another process."""

from __future__ import annotations

import functools

import gin
import gymnasium
import numpy as np
import pytest
import torch

from alf_lite.config import files as config_files
from alf_lite.config.shipping import needs_main_module
from alf_lite.environments.creation import create_environment
from alf_lite.environments.env_factory import (
    EnvFactory,
    dump_factory,
    load_factory,
)
from alf_lite.environments.process_vector_env import ProcessVectorEnv
from alf_lite.errors import ConfigError
from alf_lite.testing.structured_environments import CountingEnv
from tests.environments.light_environments import limited

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


def wrapped_cart_pole():
    return gymnasium.wrappers.TimeAwareObservation(
        gymnasium.make("CartPole-v1", max_episode_steps=4)
    )


def test_a_time_limit_replaces_that_of_what_is_made():
    made = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=4)
    for ctor, limit, length in (
        (made, None, 4),
        (made, 3, 3),
        (made, 6, 6),
        (wrapped_cart_pole, 3, 3),
        (wrapped_cart_pole, 4, 4),
        (CountingEnv, 3, 3),
    ):
        env = EnvFactory(ctor=ctor, max_episode_steps=limit)()
        env.reset(seed=0)
        ends = [any(env.step(t % 2)[2:4]) for t in range(length)]
        assert ends == [False] * (length - 1) + [True]
    assert "TimeLimit" not in str(EnvFactory(ctor=made, max_episode_steps=0)())
    for limit in (0, 6):  # inside of another wrapper, where it cannot be taken off
        with pytest.raises(
            ConfigError, match=f"steps = {limit}: .* TimeLimit of 4 steps inside"
        ):
            EnvFactory(ctor=wrapped_cart_pole, max_episode_steps=limit)()


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


@pytest.mark.ci
@pytest.mark.parametrize(
    "scope", [pytest.param("", marks=pytest.mark.slow), "evaluation"]
)
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


def test_wrappers_from_the_configuration_reach_another_process():
    config_files.parse_config_text(
        "import tests.environments.light_environments\nlimited.max_steps = 4\n"
    )
    factory = EnvFactory(gymnasium.spec("CartPole-v1"), wrappers=(limited,))
    assert length_elsewhere(factory) == 4
