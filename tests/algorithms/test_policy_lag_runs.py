"""Whole iterations: without a lag a correction changes nothing, with one it does."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.lagging_policy import lagging
from alf_lite.testing.structured_environments import NestedEnv, VectorRewardEnv

ENVIRONMENTS = {
    "discrete": {"env_name": "CartPole-v1"},
    "continuous": {"env_name": "Pendulum-v1"},
    "mixed": {"env_ctor": functools.partial(NestedEnv, episode_length=3)},
    "rewards": {"env_ctor": VectorRewardEnv},
}
ENCODER = functools.partial(LSTMEncodingNetwork, hidden_size=(8,), fc_layer_params=(8,))
RECURRENT = {
    "actor_network_ctor": functools.partial(
        ActorDistributionNetwork, encoding_network_ctor=ENCODER
    ),
    "value_network_ctor": functools.partial(
        ValueNetwork, encoding_network_ctor=ENCODER
    ),
}


def a2c(wrap, corrects, recurrent):
    cls = ImpalaAlgorithm if corrects else ActorCriticAlgorithm
    return functools.partial(wrap(cls), td_lambda=0.8), {}


def ppo(wrap, corrects, recurrent):
    length = {} if recurrent else {"mini_batch_length": 1}
    settings = {"num_updates_per_train_iter": 2, "mini_batch_size": 8, **length}
    correction = "vtrace" if corrects else "none"
    ctor = functools.partial(wrap(PPOAlgorithm), off_policy_correction=correction)
    return ctor, settings


def trained(kind, env, *, corrects, recurrent, lag=0, num_iterations=4):
    torch.manual_seed(0)

    def wrap(cls):
        return lagging(cls, lag) if lag else cls

    ctor, settings = kind(wrap, corrects, recurrent)
    env = create_environment(num_parallel_environments=3, seed=0, **ENVIRONMENTS[env])
    algorithm = ctor(
        env.observation_spec,
        env.action_spec,
        reward_spec=env.reward_spec,
        env=env,
        config=TrainerConfig(num_iterations=1, unroll_length=5, **settings),
        optimizer=Adam(lr=1e-2, eps=1e-3),
        **(RECURRENT if recurrent else {}),
    )
    assert nest.is_empty(algorithm.rollout_state_spec) != recurrent
    for _ in range(num_iterations):
        algorithm.train_iter()
    return algorithm


def largest_difference(one, other) -> float:
    return max(
        (parameter - other.get_parameter(name)).abs().max().item()
        for name, parameter in one.named_parameters()
    )


@pytest.mark.parametrize(
    ("env", "recurrent"),
    [("discrete", False), ("continuous", False), ("mixed", True), ("rewards", True)],
)
@pytest.mark.parametrize("kind", [a2c, ppo])
def test_without_a_lag_a_correction_changes_nothing(kind, env, recurrent):
    one, other = (
        trained(kind, env, corrects=corrects, recurrent=recurrent)
        for corrects in (True, False)
    )
    assert one.corrects_policy_lag
    assert not other.corrects_policy_lag
    assert largest_difference(one, other) < 2e-5
    untrained = trained(kind, env, corrects=True, recurrent=recurrent, num_iterations=0)
    assert largest_difference(one, untrained) > 1e-2


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", [a2c, ppo])
def test_with_a_lag_it_does(kind, recurrent):
    one, other = (
        trained(
            kind,
            "discrete",
            corrects=corrects,
            recurrent=recurrent,
            lag=2,
            num_iterations=10,
        )
        for corrects in (True, False)
    )
    assert largest_difference(one, other) > 1e-3
