from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.awac_algorithm import AwacAlgorithm
from alf_lite.algorithms.learning.batch_loss import batch_loss
from alf_lite.algorithms.off_policy_algorithm import OffPolicyState
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    NormalActorNetwork,
    SquashedActorNetwork,
)
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing import probe_environments as probes
from alf_lite.testing.masked_environment import ForbiddenActionEnv
from tests.replayed_steps import (
    BOX,
    MIXED,
    OBSERVATION,
    TwoStepsEnv,
    batch_of,
    each_action_equally_often,
    info_of,
    randomise,
    trained_on_random_steps,
    trained_until,
    update,
    windows,
)

GAMMA = 0.9
Actor = functools.partial(NormalActorNetwork, fc_layer_params=(16,))
Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(16,))
NETWORKS = {"actor_network_ctor": Actor, "critic_network_ctor": Critic}


def awac(action_spec=BOX, *, observation_spec=OBSERVATION, **kwargs) -> AwacAlgorithm:
    arguments = {
        **NETWORKS,
        "gamma": GAMMA,
        "temperature": 0.5,
        "action_margin": 0.0,
        "optimizer": Adam(lr=3e-3),
        **kwargs,
    }
    torch.manual_seed(0)
    algorithm = AwacAlgorithm(observation_spec, action_spec, **arguments)
    randomise(algorithm)
    return algorithm


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


# Acting


def many(spec) -> TimeStep:
    return nest.map_structure(
        lambda t: t[:1, 0].expand(400, *t.shape[2:]), windows(spec)
    )


def test_rollout_samples_and_prediction_is_greedy():
    algorithm = awac(MIXED)
    step = algorithm.rollout_step(many(MIXED), OffPolicyState())
    assert step.info == ()
    assert step.output["move"].std(0).min() > 0
    assert len(step.output["gear"].unique()) > 1
    policy, _ = algorithm._policy(many(MIXED).observation)
    greedy = algorithm.predict_step(many(MIXED), OffPolicyState()).output
    assert torch.equal(greedy["gear"], policy["gear"].logits.argmax(-1))
    assert torch.equal(greedy["move"], policy["move"].loc)
    sampling = awac(
        MIXED, config=TrainerConfig(num_iterations=1, epsilon_greedy=1.0)
    ).predict_step(many(MIXED), OffPolicyState())
    assert sampling.output["move"].std(0).min() > 0


# Actions


def test_squashed_policies_learn_from_actions_on_their_bounds():
    squashed = functools.partial(SquashedActorNetwork, fc_layer_params=(16,))
    algorithm = awac(BOX, actor_network_ctor=squashed, action_margin=1e-3)
    steps = windows(BOX)
    steps.prev_action[:] = torch.tensor(BOX.maximum)
    loss_info, info = batch_loss(algorithm, batch_of(algorithm, steps))
    assert (info.log_prob.abs() < 1000).all()
    loss_info.loss.backward()
    assert all(
        p.grad is None or p.grad.isfinite().all() for p in algorithm.parameters()
    )


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


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_best_actions_are_found_in_random_data(kind):
    ctor = functools.partial(probes.ObservationPolicyEnv, kind)
    at_least = {"discrete": 0.999, "continuous": 0.85}[kind]
    trained_on_random_steps(
        functools.partial(make, num_action_samples=4), ctor, 400, at_least=at_least
    )


@pytest.mark.parametrize("is_continuous", [False, True])
def test_steps_are_put_together_to_what_no_random_policy_does(is_continuous):
    ctor = functools.partial(TwoStepsEnv, is_continuous)
    trained_on_random_steps(make, ctor, 400, at_least=1.0)


def test_a_recurrent_policy_learns_from_random_data():
    encoder = functools.partial(
        GRUEncodingNetwork, hidden_size=(16,), fc_layer_params=(16,), activation="tanh"
    )
    trained_on_random_steps(
        functools.partial(
            make,
            **{
                name: functools.partial(ctor, encoding_network_ctor=encoder)
                for name, ctor in NETWORKS.items()
            },
        ),
        TwoStepsEnv,
        200,
        mini_batch_length=4,
        at_least=1.0,
    )


def test_masks_are_honoured_while_learning_from_random_data():
    trained_on_random_steps(
        functools.partial(make, action_mask_key="action_mask"),
        ForbiddenActionEnv,
        300,
        at_least=3.9,
    )


def test_training_goes_on_with_own_steps():
    ctor = functools.partial(probes.ObservationPolicyEnv, "discrete")
    algorithm = trained_on_random_steps(
        make, ctor, 5, num_steps=64, initial_random_policy=False
    )
    trained_until(algorithm, ctor, 1.0, 60)
