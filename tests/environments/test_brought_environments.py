"""Environments of other people: odd attributes, batches of their own, time limits."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments import create_environment
from alf_lite.errors import ConfigError, EnvError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.structured_environments import CountingEnv
from alf_lite.trainers.trainer import Trainer
from tests.environments.light_environments import OddEnv, Pool, ReportingEnv

ODD_ATTRIBUTES = [
    ({"observation_space": ...}, ConfigError, "has no observation_space"),
    ({"action_space": ...}, ConfigError, r"Set self.action_space"),
    ({"observation_space": None}, ConfigError, "observation_space: expected a space"),
    ({"action_space": (2,)}, ConfigError, r"action_space: .*got tuple \(2,\)"),
    ({"action_space": spaces.Box}, ConfigError, "got type"),
    ({"action_space": spaces.Text(4)}, ConfigError, "no fixed shape"),
    ({"observation_space": spaces.Dict()}, ConfigError, "is empty"),
    ({"observation_space": ValueError("lost")}, EnvError, "raised ValueError: lost"),
    ({"metadata": RuntimeError("lost")}, EnvError, "metadata raised RuntimeError"),
    ({"metadata": ["human"]}, EnvError, "metadata raised"),
    ({"render_mode": RuntimeError("lost")}, EnvError, "render_mode raised"),
    ({"spec": RuntimeError("lost")}, EnvError, "spec raised"),
    ({"reward_space": RuntimeError("lost")}, EnvError, "reward_space raised"),
    ({"reward_space": spaces.Discrete(2)}, ConfigError, "reward_space: expected a Box"),
]


@pytest.mark.parametrize(("attributes", "kind", "message"), ODD_ATTRIBUTES)
def test_odd_attributes_are_one_message(attributes, kind, message):
    with pytest.raises(kind, match=message):
        create_environment(env_ctor=functools.partial(OddEnv, **attributes))


@pytest.mark.ci
def test_odd_attributes_in_another_process_are_the_same_message():
    for attributes, kind, message in (ODD_ATTRIBUTES[0], ODD_ATTRIBUTES[7]):
        make = functools.partial(OddEnv, **attributes)
        with pytest.raises(kind, match=message):
            create_environment(env_ctor=make, vectorization_mode="async")


def test_metadata_and_spec_of_other_kinds_do_no_harm():
    for attributes in ({"metadata": None}, {"spec": "mine"}):
        make = functools.partial(OddEnv, **attributes)
        with create_environment(env_ctor=make) as env:
            env.reset()
            env.step(torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"single_action_space": None}, "single_action_space: expected a space"),
        ({"num_envs": "2"}, "num_envs must be a positive integer, got '2'"),
        ({"num_envs": 0}, "got 0"),
        ({"metadata": None}, "autoreset_mode"),
    ],
)
def test_odd_batches_are_one_message(attributes, message):
    def make():
        batch = SyncVectorEnv([CountingEnv] * 2)
        for name, value in attributes.items():
            setattr(batch, name, value)
        return batch

    with pytest.raises(ConfigError, match=message):
        create_environment(env_ctor=make)


def test_an_environment_constructor_cannot_end_the_program():
    def leave():
        raise SystemExit(0)

    with pytest.raises(EnvError, match="SystemExit"):
        create_environment(env_ctor=leave)


# Integers that torch has not


def test_integers_beyond_those_of_torch_are_refused():
    large = spaces.Box(0, 2**64 - 1, (2,), np.uint64)
    wide = spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64)
    with pytest.raises(ConfigError, match=r"above 2\*\*63 - 1"):
        create_environment(env_ctor=functools.partial(OddEnv, observation_space=large))
    for space in (large, wide):
        with pytest.raises(ConfigError, match="too many values"):
            create_environment(env_ctor=functools.partial(OddEnv, action_space=space))


# Time limits


@pytest.mark.parametrize("mode", ["sync", "async", "auto"])
def test_zero_steps_are_no_limit(mode):
    with create_environment(
        "MountainCar-v0", max_episode_steps=0, vectorization_mode=mode
    ) as env:
        env.reset(0)
        still = torch.ones(1, dtype=torch.int64)
        assert not any(env.step(still).is_last().item() for _ in range(250))


def test_zero_steps_are_no_limit_around_an_environment_of_ones_own():
    make = functools.partial(CountingEnv, (50,))
    env = create_environment(env_ctor=make, max_episode_steps=0)
    env.reset()
    steps = [env.step(torch.zeros(1, dtype=torch.int64)) for _ in range(50)]
    assert [bool(step.is_last()) for step in steps] == [False] * 49 + [True]


@pytest.mark.parametrize("limit", [-1, 2.5, True, "10"])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit):
    with pytest.raises(ConfigError, match="max_episode_steps must be a number of st"):
        create_environment("CartPole-v1", max_episode_steps=limit)


def test_a_native_batch_has_always_a_limit():
    with pytest.raises(ConfigError, match="cannot be had with"):
        create_environment(
            "CartPole-v1", max_episode_steps=0, vectorization_mode="native"
        )


# Infos


def steps_with_infos(env, num_steps=8):
    env.reset()
    return [env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(num_steps)]


REPORTING_ENVIRONMENTS = {
    "sync": functools.partial(create_environment, "", 2, env_ctor=ReportingEnv),
    "async": functools.partial(
        create_environment, "", 2, env_ctor=ReportingEnv, vectorization_mode="async"
    ),
    "batch": functools.partial(
        create_environment, env_ctor=lambda: SyncVectorEnv([ReportingEnv] * 2)
    ),
}


@pytest.mark.parametrize("kind", REPORTING_ENVIRONMENTS)
def test_a_misspelt_info_key_is_an_error_at_the_first_end(kind):
    make = REPORTING_ENVIRONMENTS[kind]
    # Those that come at ends only, or that are optional, are right.
    with make(env_info_keys=["speed", "success", "nested/x", "never?"]) as env:
        steps = steps_with_infos(env)
        assert [int(s.env_info["success"][0]) for s in steps[:3]] == [0, 0, 1]
        assert steps[-1].env_info["never"].tolist() == [0, 0]
    with (
        make(env_info_keys=["speed", "successes"]) as env,
        pytest.raises(ConfigError, match="step 3: env_info_keys: 'successes'") as error,
    ):
        steps_with_infos(env)
    message = str(error.value)
    assert "the keys nested/x, speed, success." in message
    assert "Did you mean 'success'?" in message
    assert "'successes?'" in message


# Batches that are environments, too


def make_env_pool():
    envpool = pytest.importorskip("envpool")
    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=3)


# What EnvPool itself does with float64 bounds, and that it cannot be seeded later.
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.filterwarnings("ignore:EnvPool seeds are fixed")
@pytest.mark.parametrize("make", [Pool, make_env_pool])
def test_a_batch_that_is_an_environment_is_trained_in(make, tmp_path):
    with config_files.gin_errors():
        config = TrainerConfig(
            algorithm_ctor=functools.partial(PPOAlgorithm, optimizer=Adam(lr=0.01)),
            num_iterations=3,
            unroll_length=32,
            evaluate=True,
            num_eval_episodes=4,
            random_seed=0,
        )
    create = functools.partial(create_environment, env_ctor=make)
    trainer = Trainer(config, tmp_path, create_env=create)
    result = trainer.train()
    assert 4 * 32 * 3 > result.env_steps > 3 * 32 * 3
    assert result.evaluation.num_env_steps == sum(result.evaluation.returns)
    assert trainer.algorithm.env.name == type(make()).__name__


def test_a_batch_is_not_stepped_in_processes():
    with pytest.raises(ConfigError, match=r"one per call\), got .*Pool"):
        create_environment(env_ctor=Pool, vectorization_mode="async")
