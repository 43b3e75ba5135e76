from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm, IqlState
from alf_lite.algorithms.learning.batch_loss import batch_loss
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.networks.actor_networks import NormalActorNetwork, SquashedActorNetwork
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
    windows,
)

GAMMA = 0.9
Actor = functools.partial(NormalActorNetwork, fc_layer_params=(16,))
Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(16,))
NETWORKS = {
    "actor_network_ctor": Actor,
    "critic_network_ctor": Critic,
    "value_network_ctor": Critic,
}


def iql(action_spec=BOX, *, observation_spec=OBSERVATION, **kwargs) -> IqlAlgorithm:
    arguments = {
        **NETWORKS,
        "gamma": GAMMA,
        "expectile": 0.8,
        "beta": 2.0,
        "action_margin": 0.0,
        "optimizer": Adam(lr=3e-3),
        **kwargs,
    }
    torch.manual_seed(0)
    algorithm = IqlAlgorithm(observation_spec, action_spec, **arguments)
    randomise(algorithm)
    return algorithm


# Acting


def many(spec) -> TimeStep:
    return nest.map_structure(
        lambda t: t[:1, 0].expand(400, *t.shape[2:]), windows(spec)
    )


def test_rollout_samples_and_prediction_is_greedy():
    algorithm = iql(MIXED)
    step = algorithm.rollout_step(many(MIXED), IqlState())
    assert step.info == ()
    assert step.output["move"].std(0).min() > 0
    assert len(step.output["gear"].unique()) > 1
    policy, _ = algorithm._policy(many(MIXED).observation)
    greedy = algorithm.predict_step(many(MIXED), IqlState()).output
    assert torch.equal(greedy["gear"], policy["gear"].logits.argmax(-1))
    assert torch.equal(greedy["move"], policy["move"].loc)
    sampling = iql(
        MIXED, config=TrainerConfig(num_iterations=1, epsilon_greedy=1.0)
    ).predict_step(many(MIXED), IqlState())
    assert sampling.output["move"].std(0).min() > 0


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


def test_squashed_policies_learn_from_actions_on_their_bounds():
    squashed = functools.partial(SquashedActorNetwork, fc_layer_params=(16,))
    algorithm = iql(BOX, actor_network_ctor=squashed, action_margin=1e-3)
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
        "value_network_ctor": functools.partial(Critic, activation="tanh"),
        "gamma": 0.9,
        "target_update_tau": 0.05,
        "optimizer": Adam(lr=5e-3),
        **kwargs,
    }
    return IqlAlgorithm(
        env.observation_spec, env.action_spec, env=env, config=config, **arguments
    )


@pytest.mark.parametrize("expectile", [0.5, 0.9])
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


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_best_actions_are_found_in_random_data(kind):
    ctor = functools.partial(probes.ObservationPolicyEnv, kind)
    beta = {"discrete": 3.0, "continuous": 20.0}[kind]
    at_least = {"discrete": 0.999, "continuous": 0.85}[kind]
    trained_on_random_steps(
        functools.partial(make, beta=beta), ctor, 400, at_least=at_least
    )


@pytest.mark.parametrize(
    ("is_continuous", "n_step"),
    [
        pytest.param(False, 1, marks=pytest.mark.slow),
        (True, 1),
        (False, 2),
        pytest.param(True, 2, marks=pytest.mark.slow),
    ],
)
def test_steps_are_put_together_to_what_no_random_policy_does(is_continuous, n_step):
    ctor = functools.partial(TwoStepsEnv, is_continuous)
    trained_on_random_steps(
        functools.partial(make, beta=10.0, expectile=0.9, n_step=n_step),
        ctor,
        400,
        mini_batch_length=n_step + 1,
        at_least=1.0,
    )


def test_a_recurrent_policy_learns_from_random_data():
    encoder = functools.partial(
        GRUEncodingNetwork, hidden_size=(16,), fc_layer_params=(16,), activation="tanh"
    )
    trained_on_random_steps(
        functools.partial(
            make,
            beta=10.0,
            expectile=0.9,
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
        functools.partial(make, beta=10.0, action_mask_key="action_mask"),
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
