from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite.algorithms.awac_algorithm import AwacAlgorithm
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    NormalActorNetwork,
)
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing import probe_environments as probes
from tests.algorithms import actor_critics
from tests.algorithms.actor_critics import Critic
from tests.replayed_steps import (
    BOX,
    MIXED,
    each_action_equally_often,
    info_of,
    trained_on_random_steps,
    update,
    windows,
)

Actor = functools.partial(NormalActorNetwork, fc_layer_params=(16,))
NETWORKS = {"actor_network_ctor": Actor, "critic_network_ctor": Critic}


awac = functools.partial(
    actor_critics.make,
    AwacAlgorithm,
    actor_network_ctor=Actor,
    temperature=0.5,
    action_margin=0.0,
)


# The losses


def test_several_samples_make_the_value_of_continuous_actions_more_certain():
    steps = windows(BOX)
    spread = []
    for num_samples in (1, 16):
        algorithm = awac(BOX, num_action_samples=num_samples)
        values = [info_of(algorithm, steps, seed).next_value for seed in range(30)]
        spread.append(torch.stack(values).std(0).mean())
    assert spread[1] < spread[0] / 2.5  # a quarter, up to chance


@pytest.mark.parametrize("spec", [BOX, MIXED], ids=["box", "mixed"])
@pytest.mark.parametrize("kind", ["mixture", "tanh_mixture"])
@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_mixture_needs_no_gradient_of_its_samples(spec, kind, num_samples):
    actor = functools.partial(ActorDistributionNetwork, continuous_projection=kind)
    algorithm = awac(spec, actor_network_ctor=actor, num_action_samples=num_samples)
    info = info_of(algorithm, windows(spec))
    assert info.next_value.isfinite().all()
    assert info.log_prob.requires_grad
    update(algorithm, windows(spec))


# Learning


def make(env, config, **kwargs):
    arguments = {
        **NETWORKS,
        "critic_network_ctor": functools.partial(Critic, activation="tanh"),
        "gamma": 0.9,
        "target_update_tau": 0.05,
        "temperature": 0.1,
        "optimizer": Adam(lr=5e-3),
        **kwargs,
    }
    return AwacAlgorithm(
        env.observation_spec, env.action_spec, env=env, config=config, **arguments
    )


@pytest.mark.ci
def test_the_policy_is_that_of_the_data_times_the_exponential_of_their_value(
    monkeypatch,
):
    monkeypatch.setattr(AwacAlgorithm, "random_action", each_action_equally_often)
    algorithm = trained_on_random_steps(
        functools.partial(make, temperature=2.0),
        probes.PolicyEnv,
        300,
        mini_batch_size=512,
    )
    # exp(Q(a) / λ) for the rewards 1 and −1; the value of the state falls out.
    policy, _ = algorithm._policy(torch.zeros(1, 1))
    expected = 1 / (1 + math.exp(-2 / 2.0))
    assert policy.probs[0, 1].item() == pytest.approx(expected, abs=0.05)
    value = algorithm._value(algorithm._critics.online, torch.zeros(1, 1), policy)
    assert value.item() == pytest.approx(2 * expected - 1, abs=0.1)
