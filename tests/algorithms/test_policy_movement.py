"""Learning rates and steps that follow how far updates move the policy."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.distributions import functions as distributions
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.probe_environments import ObservationPolicyEnv


def build(cls, *, action_kind="discrete", lr, **arguments):
    env = create_environment(
        env_ctor=functools.partial(ObservationPolicyEnv, action_kind=action_kind),
        num_parallel_environments=8,
        vectorization_mode="sync",
    )
    settings = {}
    if cls is PPOAlgorithm:
        settings = {"epochs": 4, "mini_batch_length": 1, "mini_batch_size": 32}
    config = TrainerConfig(
        num_iterations=40, random_seed=0, unroll_length=16, **settings
    )
    return cls(env=env, config=config, optimizer=Adam(lr=lr), **arguments)


def moves(algorithm):
    """KL(π before ‖ π after) of every update, on the steps that it trains.

    Those that an episode ends with are half of all.
    """
    kls = []
    after_update = algorithm.after_update

    def look(root_inputs, info):
        old = nest.map_structure(torch.Tensor.detach, info.action_distribution)
        after_update(root_inputs, info)
        with torch.no_grad():
            new, _ = algorithm._policy(root_inputs.observation)
        trained = ~root_inputs.is_last()
        if type(algorithm) is ActorCriticAlgorithm:
            trained[-1] = False  # it is bootstrapped from
        kls.append(distributions.kl_divergence(old, new)[trained].mean().item())

    algorithm.after_update = look
    return kls


@pytest.mark.parametrize("cls", [ActorCriticAlgorithm, PPOAlgorithm])
@pytest.mark.parametrize("action_kind", ["discrete", "continuous"])
def test_no_update_moves_the_policy_farther_than_allowed(cls, action_kind):
    limit = 0.01
    free = build(cls, action_kind=action_kind, lr=0.1)
    kls = moves(free)
    for _ in range(3):
        free.train_iter()
    assert max(kls) > 2 * limit
    limited = build(cls, action_kind=action_kind, lr=0.1, max_policy_kl=limit)
    kls = moves(limited)
    for _ in range(10):
        limited.train_iter()
    assert limited._trust_region.num_shortened > 0
    assert max(kls) <= limit * 1.001


@pytest.mark.ci
def test_the_learning_rate_comes_to_what_moves_the_policy_as_desired():
    desired = 0.01
    means = []
    for lr in (1e-4, 3e-2):
        algorithm = build(
            PPOAlgorithm, action_kind="continuous", lr=lr, desired_kl=desired
        )
        rate = algorithm._adaptive_rate
        adapt, factors = rate.adapt, []
        rate.adapt = lambda kl, adapt=adapt, rate=rate, factors=factors: (
            adapt(kl),
            factors.append(rate.factor),
        )
        for _ in range(8):
            algorithm.train_iter()
        ((_, optimizer),) = algorithm.optimizers()
        assert optimizer.learning_rate == pytest.approx(lr * rate.factor)
        # It goes up and down with the updates on an unroll.
        latest = torch.tensor(factors[len(factors) // 2 :])
        means.append(latest.log().mean().exp().item())
        # A checkpoint takes the factor along.
        assert "_adaptive_rate._factor" in algorithm.state_dict()
    assert means[0] > 3.0
    assert means[1] < 0.3
    assert 0.1 < 300 * means[1] / means[0] < 10.0  # of the learning rates


def test_a_policy_with_memory_is_refused():
    recurrent = functools.partial(
        ActorDistributionNetwork, encoding_network_ctor=GRUEncodingNetwork
    )
    with pytest.raises(ConfigError, match=r"max_policy_kl needs a policy without"):
        build(
            ActorCriticAlgorithm,
            lr=0.1,
            max_policy_kl=0.01,
            actor_network_ctor=recurrent,
        )
