from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite.algorithms.iql_algorithm import IqlAlgorithm
from alf_lite.networks.actor_networks import NormalActorNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing import probe_environments as probes
from tests.algorithms import actor_critics
from tests.algorithms.actor_critics import Critic
from tests.replayed_steps import (
    BOX,
    each_action_equally_often,
    info_of,
    trained_on_random_steps,
    windows,
)

Actor = functools.partial(NormalActorNetwork, fc_layer_params=(16,))
NETWORKS = {
    "actor_network_ctor": Actor,
    "critic_network_ctor": Critic,
    "value_network_ctor": Critic,
}


iql = functools.partial(
    actor_critics.make,
    IqlAlgorithm,
    **NETWORKS,
    expectile=0.8,
    beta=2.0,
    action_margin=0.0,
)


# Actions


def test_what_the_environment_clipped_is_valued_as_clipped():
    steps = windows(BOX)
    beyond = steps._replace(prev_action=torch.full((5, 2, 2), 99.0))
    on_the_bound = steps._replace(
        prev_action=torch.tensor(BOX.maximum).expand(5, 2, 2).clone()
    )
    info, expected = (info_of(iql(BOX), s) for s in (beyond, on_the_bound))
    torch.testing.assert_close(info.q, expected.q)
    torch.testing.assert_close(info.log_prob, expected.log_prob)


# Learning


def make(env, config, **kwargs):
    arguments = {
        **NETWORKS,
        "critic_network_ctor": functools.partial(Critic, activation="tanh"),
        "value_network_ctor": functools.partial(Critic, activation="tanh"),
        "gamma": 0.9,
        "target_update_tau": 0.05,
        "optimizer": Adam(lr=5e-3),
        **kwargs,
    }
    return IqlAlgorithm(
        env.observation_spec, env.action_spec, env=env, config=config, **arguments
    )


@pytest.mark.ci
@pytest.mark.parametrize("expectile", [pytest.param(0.5, marks=pytest.mark.slow), 0.9])
def test_the_value_is_the_expectile_of_what_the_data_do(expectile, monkeypatch):
    monkeypatch.setattr(IqlAlgorithm, "random_action", each_action_equally_often)
    algorithm = trained_on_random_steps(
        functools.partial(make, expectile=expectile, beta=0.5),
        probes.PolicyEnv,
        300,
        mini_batch_size=512,
    )
    # Of the rewards 1 and −1: τ (1 − v) = (1 − τ) (v + 1).
    value = algorithm._value(torch.zeros(1, 1))[0].item()
    assert value == pytest.approx(2 * expectile - 1, abs=0.1)
    # π(a) ∝ exp(β Q(a)): the value of the state falls out.
    policy, _ = algorithm._policy(torch.zeros(1, 1))
    expected = 1 / (1 + math.exp(-0.5 * 2))
    assert policy.probs[0, 1].item() == pytest.approx(expected, abs=0.05)
