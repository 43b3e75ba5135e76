"""How off-policy actor-critics explore: noise that lasts, optimism, random actions."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.oac_algorithm import OacAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.exploration import GaussianNoise
from alf_lite.distributions.sample_noise import CorrelatedNoise, StateDependentNoise
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from tests.algorithms.actor_critics import Actor, Critic, first_step, make
from tests.replayed_steps import (
    BOX,
    CHOICE,
    MIXED,
    OBSERVATION,
)


@pytest.mark.parametrize("noise_ctor", [CorrelatedNoise, StateDependentNoise])
@pytest.mark.parametrize(
    "kind", [(SacAlgorithm, {}), (OacAlgorithm, {"max_divergence": 0.0})]
)
def test_the_rollout_draws_with_noise_that_lasts(kind, noise_ctor):
    cls, settings = kind
    algorithm = make(cls, exploration_noise_ctor=noise_ctor, **settings)
    assert nest.is_empty(algorithm.train_state_spec)  # nothing is stored
    inputs = first_step(torch.randn(1, 3).expand(400, 3))
    state = algorithm.get_initial_rollout_state(400)
    torch.manual_seed(0)
    drawn = []
    for _ in range(2):
        step = algorithm.rollout_step(inputs, state)
        drawn.append(step.output[:, 0].atanh())
        state = step.state
    correlation = torch.corrcoef(torch.stack(drawn))[0, 1].item()
    assert correlation == pytest.approx(
        0.9 if noise_ctor is CorrelatedNoise else 1.0, abs=0.05
    )
    policy, _ = algorithm._policy(inputs.observation)
    assert drawn[1].mean().item() == pytest.approx(policy.loc[0, 0].item(), abs=0.1)
    assert drawn[1].std().item() == pytest.approx(policy.scale[0, 0].item(), rel=0.1)


def test_noise_of_a_policy_with_memory_and_discrete_parts():
    actor = functools.partial(Actor, encoding_network_ctor=GRUEncodingNetwork)
    algorithm = make(
        action_spec=MIXED,
        actor_network_ctor=actor,
        exploration_noise_ctor=StateDependentNoise,
    )
    state = algorithm.get_initial_rollout_state(2)
    nest.assert_same_structure(state, algorithm.train_state_spec)
    step = algorithm.rollout_step(first_step(torch.randn(2, 3)), state)
    assert step.output["gear"].shape == (2,)
    assert step.state.noise.age.tolist() == [1.0, 1.0]


def test_noise_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="no part of the action is continuous"):
        make(action_spec=CHOICE, exploration_noise_ctor=StateDependentNoise)
    with pytest.raises(
        ConfigError, match="must build CorrelatedNoise, RepeatedNoise or"
    ):
        make(exploration_noise_ctor=lambda *sizes: GaussianNoise(sizes[0]))
    beta = functools.partial(ActorDistributionNetwork, continuous_projection="beta")
    with pytest.raises(ConfigError, match="Only normal distributions"):
        make(actor_network_ctor=beta, exploration_noise_ctor=CorrelatedNoise)
    with pytest.raises(ConfigError, match="GaussianNoise or OrnsteinUhlenbeckNoise"):
        make(DdpgAlgorithm, exploration_noise_ctor=lambda n: CorrelatedNoise(n, 0))

    class Plain(torch.nn.Module):
        def forward(self, observation):
            return ActorDistributionNetwork(OBSERVATION, BOX)(observation)[0]

    with pytest.raises(ConfigError, match="needs features"):
        make(
            actor_network_ctor=lambda *specs: Plain(),
            exploration_noise_ctor=StateDependentNoise,
        )


def test_optimism_moves_the_mean_along_the_slope_of_the_upper_bound():
    smooth = functools.partial(Critic, activation="tanh")
    algorithm = make(
        OacAlgorithm,
        critic_network_ctor=smooth,
        optimism=2.0,
        max_divergence=0.3,
    )
    observation = torch.randn(4, 3)
    policy, _ = algorithm._policy(observation)
    critic = algorithm._critics.online
    moved = algorithm._optimistic(policy, critic.encode(observation)[0])

    def upper_bound(u):
        first, second = critic((observation, u.tanh()))[0].squeeze(-1).unbind(1)
        return (first + second) / 2 + 2.0 * (first - second).abs() / 2

    loc, variance = policy.loc.detach(), policy.scale.detach().square()
    slope = torch.zeros_like(loc)
    for i in range(2):
        by = torch.zeros(2)
        by[i] = 1e-2
        slope[:, i] = (upper_bound(loc + by) - upper_bound(loc - by)).detach() / 2e-2
    norm = (slope.square() * variance).sum(1, keepdim=True).sqrt()
    expected = loc + math.sqrt(0.6) * variance * slope / norm
    torch.testing.assert_close(moved.loc, expected, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(moved.scale, policy.scale.detach())
    # The divergence of the two is δ.
    kl = distributions.kl_divergence(moved, distributions.detach(policy))
    torch.testing.assert_close(kl, torch.full((4,), 0.3), atol=1e-3, rtol=0.0)
    step = algorithm.rollout_step(
        first_step(observation), algorithm.get_initial_rollout_state(4)
    )
    assert step.output.shape == (4, 2)


def test_optimism_needs_continuous_actions():
    with pytest.raises(ConfigError, match="moves the mean of continuous actions"):
        make(OacAlgorithm, action_spec=MIXED)


def test_some_actions_of_ddpg_are_random():
    algorithm = make(
        DdpgAlgorithm,
        rollout_random_action=0.25,
        exploration_noise_ctor=functools.partial(GaussianNoise, std=0.0),
    )
    observation = torch.randn(3).expand(2000, 3)
    state = algorithm.get_initial_rollout_state(2000)
    torch.manual_seed(0)
    action = algorithm.rollout_step(first_step(observation), state).output
    greedy = algorithm.predict_step(first_step(observation), state).output
    is_random = (action != greedy).any(1)
    assert is_random.float().mean().item() == pytest.approx(0.25, abs=0.03)
    spread = action[is_random, 1]
    assert spread.mean().item() == pytest.approx(5.0, abs=0.5)  # in [0, 10]
    assert spread.std().item() == pytest.approx(10 / math.sqrt(12), abs=0.3)
    with pytest.raises(ValueError, match="rollout_random_action must lie in"):
        make(DdpgAlgorithm, rollout_random_action=2.0)
