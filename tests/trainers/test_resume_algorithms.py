"""Real algorithms in real environments resume to the bit."""

from __future__ import annotations

import functools

import pytest

from alf_lite import config_files
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.data_transformers.observation_normalizer import ObservationNormalizer
from alf_lite.data_transformers.reward_normalizer import RewardNormalizer
from alf_lite.environments.creation import create_environment
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.utils.schedulers import LinearScheduler
from tests.trainers.run_comparison import Dies, assert_same_run


def with_optimizer(algorithm_class, **kwargs):
    """A constructor that builds a new optimizer each time, as a conf does."""

    def build(*args, **more):
        schedule = LinearScheduler(((0.0, 0.01), (1.0, 0.0)))
        optimizer = Adam(lr=schedule, gradient_clipping=0.5)
        return algorithm_class(*args, optimizer=optimizer, **kwargs, **more)

    return build


RECURRENT = {
    "actor_network_ctor": functools.partial(
        ActorDistributionNetwork, encoding_network_ctor=LSTMEncodingNetwork
    ),
    "value_network_ctor": functools.partial(
        ValueNetwork, encoding_network_ctor=LSTMEncodingNetwork
    ),
}
NORMALIZE = {"data_transformer_ctor": [ObservationNormalizer, RewardNormalizer]}
MINI_BATCHES = {
    "num_updates_per_train_iter": 2,
    "mini_batch_length": 1,
    "mini_batch_size": 8,
}
REPLAY = {
    "checkpoint_replay_buffer": True,
    "replay_buffer_length": 25,  # goes round within the run
    "initial_collect_steps": 50,  # more than there are before the first checkpoint
    "initial_random_policy": True,
    "mini_batch_length": 2,
    "mini_batch_size": 16,
    "num_updates_per_train_iter": 2,
}
EVALUATE = {"evaluate": True, "eval_interval": 2, "num_eval_episodes": 3}

CASES = {
    "dqn": (
        "CartPole-v1",
        with_optimizer(DqnAlgorithm),
        {**REPLAY, "priority_replay": True},
    ),
    "sac with normalizers": (
        "Pendulum-v1",
        with_optimizer(SacAlgorithm),
        {**REPLAY, **NORMALIZE, **EVALUATE},
    ),
    "a2c": ("CartPole-v1", with_optimizer(ActorCriticAlgorithm), {}),
    "ppo": ("CartPole-v1", with_optimizer(PPOAlgorithm), MINI_BATCHES),
    "ppo with normalizers": (
        "Pendulum-v1",
        with_optimizer(PPOAlgorithm),
        {**MINI_BATCHES, **NORMALIZE, **EVALUATE},
    ),
    "recurrent ppo": ("CartPole-v1", with_optimizer(PPOAlgorithm, **RECURRENT), {}),
    "recurrent a2c with normalizers": (
        "CartPole-v1",
        with_optimizer(ActorCriticAlgorithm, **RECURRENT),
        NORMALIZE,
    ),
}


OPTIONS = {
    "dqn": (
        "PriorityOptions.initial_priority = 3.0",
        "PriorityOptions.beta = @LinearScheduler()",
        "LinearScheduler.schedule = ((0.0, 0.4), (1.0, 1.0))",
        "SamplingOptions.max_use = 7",
        "SamplingOptions.max_staleness = 3",
    ),
    "sac with normalizers": (
        "StorageOptions.storage = 'memmap'",
        "SamplingOptions.recent_data_ratio = 0.25",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_equals_uninterrupted(train, tmp_path, case):
    env_name, algorithm_ctor, config = CASES[case]

    def create(*, seed, num_parallel_environments=4):
        return create_environment(
            env_name, num_parallel_environments, seed, max_episode_steps=30
        )

    settings = {
        "algorithm_ctor": algorithm_ctor,
        "create_env": create,
        "unroll_length": 8,
        "num_iterations": 6,
        "num_checkpoints": 3,
        **config,
    }
    config_files.parse_config(None, OPTIONS.get(case, ()))
    train("straight", **settings)
    for dies_at in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            train("resumed", hooks=[Dies(dies_at)], **settings)
    assert train("resumed", **settings).iterations == 6
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")
