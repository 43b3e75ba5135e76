"""create_environment: from an id or a factory to a batch, and errors that help."""

from __future__ import annotations

import functools
import os
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from alf_lite.config import files as config_files
from alf_lite.environments import create_environment
from alf_lite.environments.creation import create_environment as the_same
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.environments.process_vector_env import ProcessVectorEnv
from alf_lite.environments.serial_vector_env import SerialVectorEnv
from alf_lite.errors import ConfigError, EnvError, MissingExtraError
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.fault_environment import FaultEnv
from alf_lite.testing.structured_environments import CountingEnv, ImageEnv, NestedEnv
from alf_lite.utils.ranks import ranks
from tests.environments.light_environments import NumberedEnv


@pytest.mark.slow  # starts forty processes; the adapter is the same as for sync
class TestAsync(EnvironmentContract):
    num_environments = 2
    num_steps = 40

    def make(self, num_environments, seed):
        return create_environment(
            "Acrobot-v1",
            num_environments,
            seed,
            vectorization_mode="async",
            max_episode_steps=20,
        )


def test_the_package_offers_it():
    assert create_environment is the_same


@pytest.mark.parametrize(
    ("mode", "vector_env_class"),
    [
        ("sync", SerialVectorEnv),
        ("async", ProcessVectorEnv),
        ("native", type(gymnasium.make_vec("CartPole-v1"))),
        ("auto", type(gymnasium.make_vec("CartPole-v1"))),
    ],
)
def test_every_mode_gives_its_kind_of_environment(mode, vector_env_class):
    with create_environment("CartPole-v1", 2, 0, vectorization_mode=mode) as env:
        assert isinstance(env, GymnasiumEnvironment)
        assert type(env.vector_env) is vector_env_class
        assert env.batch_size == 2
        assert env.name == "CartPole-v1"
        assert env.reset().observation.shape == (2, 4)


def test_auto_is_sync_where_there_is_no_native_one_or_wrappers_forbid_it():
    wrappers = [gymnasium.wrappers.TimeAwareObservation]
    for name, kwargs in (("Pendulum-v1", {}), ("CartPole-v1", {"wrappers": wrappers})):
        env = create_environment(name, vectorization_mode="auto", **kwargs)
        assert isinstance(env.vector_env, SerialVectorEnv)


@pytest.mark.parametrize("mode", ["sync", "async", "native"])
def test_the_time_limit_and_the_arguments_of_the_environment_are_passed_on(mode):
    env = create_environment(
        "CartPole-v1",
        2,
        0,
        vectorization_mode=mode,
        max_episode_steps=3,
        env_kwargs={"sutton_barto_reward": True},
    )
    with env:
        env.reset()
        steps = [env.step(torch.tensor([t % 2] * 2)) for t in range(3)]
    assert [s.is_last().tolist() for s in steps] == [
        [False] * 2,
        [False] * 2,
        [True] * 2,
    ]
    assert steps[0].reward.tolist() == [0, 0]
    assert steps[2].discount.tolist() == [1, 1]


@pytest.mark.ci
def test_sync_and_async_give_the_same_bits():
    def run(mode):
        with create_environment("CartPole-v1", 2, 5, vectorization_mode=mode) as env:
            rows = [env.reset()]
            rows += [env.step(torch.tensor([t % 2, 0])) for t in range(40)]
        return torch.stack([r.observation for r in rows])

    assert torch.equal(run("sync"), run("async"))


@pytest.mark.parametrize(
    "mode", ["sync", pytest.param("async", marks=pytest.mark.slow)]
)
def test_a_wrapper_whose_parameter_no_conf_sets_is_a_wrong_conf(mode):
    config_files.parse_config(
        None,
        [
            'create_environment.env_name = "CartPole-v1"',
            "create_environment.wrappers = [@ActionRepeat]",
            f"create_environment.vectorization_mode = '{mode}'",
        ],
    )
    with pytest.raises(ConfigError, match=r"`ActionRepeat\.num_repeats` must be set"):
        create_environment()


def test_wrappers_are_applied_in_order():
    wrappers = [
        gymnasium.wrappers.TimeAwareObservation,
        functools.partial(gymnasium.wrappers.FrameStackObservation, stack_size=2),
    ]
    env = create_environment("CartPole-v1", 2, wrappers=wrappers)
    assert env.observation_spec.shape == (2, 5)


def test_env_info_is_declared():
    env = create_environment(CountingEnv, env_info_keys=["step"])
    env.reset()
    step = env.step(torch.zeros(1, dtype=torch.int64))
    assert step.env_info["step"].tolist() == [1]


# The user's own factory


@pytest.mark.parametrize("mode", ["sync", "async", "auto"])
def test_a_factory_of_single_environments_is_called_for_each(mode):
    env = create_environment(
        env_ctor=NestedEnv, num_parallel_environments=2, vectorization_mode=mode
    )
    with env:
        assert env.reset(0).observation["target"].shape == (2, 2)


@pytest.mark.parametrize(("mode", "rank"), [("sync", 0), ("sync", 1), ("async", 1)])
def test_a_factory_is_told_the_number_of_its_environment(mode, rank, monkeypatch):
    monkeypatch.setattr(ranks, "index", rank)
    make = NumberedEnv
    with create_environment(
        env_ctor=make, num_parallel_environments=3, vectorization_mode=mode
    ) as env:
        observation = env.reset().observation
    assert observation[:, 0].tolist() == [3 * rank, 3 * rank + 1, 3 * rank + 2]


def test_a_time_limit_is_put_around_the_users_own_environment():
    make = functools.partial(CountingEnv, (50,))
    env = create_environment(env_ctor=make, max_episode_steps=2)
    env.reset()
    zero = torch.zeros(1, dtype=torch.int64)
    steps = [env.step(zero) for _ in range(2)]
    assert [bool(s.is_last()) for s in steps] == [False, True]
    assert steps[1].discount.tolist() == [1]


def test_a_factory_may_return_a_whole_batch():
    env = create_environment(
        env_ctor=lambda: SyncVectorEnv([CountingEnv] * 3), seed=1, env_name="Counting"
    )
    assert env.batch_size == 3
    assert env.name == "Counting"
    own = create_environment(env_ctor=lambda: env)
    assert own is env


def test_a_batch_of_another_size_than_asked_for_is_refused():
    make = functools.partial(SyncVectorEnv, [CountingEnv] * 3)
    with pytest.raises(ConfigError, match="returned 3 environments, but num_parallel"):
        create_environment(env_ctor=make, num_parallel_environments=2)
    with pytest.raises(ConfigError, match="Apply them inside of env_ctor"):
        create_environment(env_ctor=make, max_episode_steps=5)
    with pytest.raises(ConfigError, match=r"must return a gymnasium.Env"):
        create_environment(env_ctor=make, vectorization_mode="async")


# Mistakes


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "set env_name or env_ctor"),
        ({"env_name": "CartPole-v1", "vectorization_mode": "fast"}, "sync, async, nat"),
        ({"env_name": "CartPole-v1", "num_parallel_environments": 0}, "positive int"),
        ({"env_name": "CartPole-v1", "num_parallel_environments": 2.0}, "got 2.0"),
        ({"env_ctor": FaultEnv()}, "write @name, not @name"),
        ({"env_ctor": FaultEnv, "env_kwargs": {"mode": ""}}, "env_kwargs belong to"),
        ({"env_ctor": FaultEnv, "vectorization_mode": "native"}, "leave it out"),
        ({"env_ctor": dict}, "got builtins.dict"),
        ({"env_name": "Pendulum-v1", "vectorization_mode": "native"}, "it has none"),
        (
            {
                "env_name": "CartPole-v1",
                "vectorization_mode": "native",
                "wrappers": [gymnasium.wrappers.ClipAction],
            },
            "wrappers cannot be applied",
        ),
        (
            {
                "env_name": "CartPole-v1",
                "wrappers": gymnasium.wrappers.FlattenObservation,
            },
            r"wrappers must be a list .* got <class .*FlattenObservation'>",
        ),
        (
            {"env_name": "CartPole-v1", "wrappers": [FaultEnv()]},
            r"wrappers must be a list of classes or functions, .*got \[",
        ),
        ({"env_name": "CartPole-v1", "env_info_keys": "step"}, "Did you mean"),
        (
            {"env_name": "CartPole-v1", "env_timeout_seconds": 60.0},
            "='async', not for 'sync': leave it out, got 60.0",
        ),
    ],
)
def test_arguments_that_cannot_be_used_are_explained(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        create_environment(**kwargs)


def test_an_unknown_id_is_a_wrong_setting_with_suggestions():
    with pytest.raises(ConfigError, match="'CartPole-v1'"):
        create_environment("CartPol-v1")


@pytest.mark.parametrize("mode", ["sync", "async", "native"])
def test_a_constructor_that_raises_is_an_environment_error(mode):
    with pytest.raises(EnvError, match=r"constructor.* raised TypeError"):
        create_environment(
            "CartPole-v1", 2, vectorization_mode=mode, env_kwargs={"colour": "red"}
        )


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_factory_that_raises_is_an_environment_error(mode):
    make = functools.partial(FaultEnv, "raise", where="constructor")
    with pytest.raises(EnvError, match="RuntimeError: 100% %d"):
        create_environment(env_ctor=make, vectorization_mode=mode)


def test_a_missing_package_names_the_extra(monkeypatch):
    for name in [n for n in sys.modules if "mujoco" in n.lower()]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"^HalfCheetah-v5 needs.*mujoco"):
        create_environment("HalfCheetah-v5")


def test_one_faulty_environment_of_several_is_named(tmp_path):
    make = functools.partial(
        FaultEnv, "nan_reward", 2, instance=1, state_dir=str(tmp_path)
    )
    env = create_environment(env_ctor=make, num_parallel_environments=3)
    env.reset()
    zero = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(EnvError, match="environment 1 returned reward = nan"):
        for _ in range(5):
            env.step(zero)


def test_everything_can_be_configured():
    config_files.parse_config_text(
        """
        import alf_lite.environments.creation
        import alf_lite.testing.structured_environments
        create_environment.env_ctor = @CountingEnv
        create_environment.num_parallel_environments = 2
        CountingEnv.episode_lengths = (1,)
        """
    )
    env = create_environment()
    assert env.batch_size == 2
    env.reset()
    assert env.step(torch.zeros(2, dtype=torch.int64)).is_last().all()


# Drawing


def test_mujoco_draws_without_a_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: f"lib{name}.so")
    monkeypatch.setattr(sys, "platform", "linux")
    create_environment("CartPole-v1", render_mode="rgb_array")
    assert os.environ["MUJOCO_GL"] == "egl"
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    create_environment("CartPole-v1", render_mode="rgb_array")
    assert os.environ["MUJOCO_GL"] == "glfw"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setenv("DISPLAY", ":0")
    create_environment("CartPole-v1", render_mode="rgb_array")
    assert "MUJOCO_GL" not in os.environ


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_users_own_factory_is_told_how_to_draw(mode):
    env = create_environment(
        env_ctor=ImageEnv,
        num_parallel_environments=2,
        render_mode="rgb_array",
        vectorization_mode=mode,
    )
    with env:
        env.reset()
        assert env.render().shape == (16, 16, 3)
    # A factory that draws nothing is built all the same.
    create_environment(env_ctor=CountingEnv, render_mode="rgb_array").reset()


def test_a_frame_can_be_drawn():
    pytest.importorskip("pygame")
    with create_environment("CartPole-v1", 2, 0, render_mode="rgb_array") as env:
        env.reset()
        frame = env.render()
    assert frame.ndim == 3
    assert frame.dtype == np.uint8
