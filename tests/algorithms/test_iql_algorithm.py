from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm, IqlInfo, IqlState
from alf_lite.algorithms.learning.batch_loss import batch_loss
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.networks.actor_networks import NormalActorNetwork, SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing import probe_environments as probes
from alf_lite.testing.masked_environment import ForbiddenActionEnv
from tests.replayed_steps import (
    BOX,
    CHOICE,
    LAST,
    MIXED,
    OBSERVATION,
    CountingEncoder,
    TwoStepsEnv,
    batch_of,
    each_action_equally_often,
    info_of,
    q_of,
    randomise,
    trained_modules,
    trained_on_random_steps,
    trained_until,
    update,
    windows,
)

GAMMA = 0.9
SPECS = pytest.mark.parametrize(
    "spec", [BOX, CHOICE, MIXED], ids=["box", "choice", "mixed"]
)
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


# The losses


def hand_made_info() -> IqlInfo:
    """Two steps of one environment and two critics."""
    return IqlInfo(
        q=torch.tensor([[[1.0, 2.0]], [[0.0, 0.5]]]),
        target_q=torch.tensor([[3.0], [1.0]]),
        value=torch.tensor([[1.0], [1.5]]),
        next_value=torch.tensor([[4.0], [100.0]]),
        log_prob=torch.tensor([[-0.5], [-2.0]]),
        reward=torch.tensor([[1.0], [2.0]]),
        discount=torch.tensor([[0.5], [0.0]]),
        num_steps=torch.ones(2, 1, dtype=torch.int64),
        step_type=torch.ones(2, 1, dtype=torch.int32),
    )


def test_the_losses_of_numbers_worked_out_by_hand():
    loss = iql(expectile=0.8, beta=2.0, max_weight=10.0).calc_loss(hand_made_info())
    extra = loss.extra
    # Advantages 3 − 1 = 2 and 1 − 1.5 = −0.5.
    assert extra.advantage.tolist() == [[2.0], [-0.5]]
    assert extra.value_loss.tolist() == [
        [pytest.approx(0.8 * 4)],
        [pytest.approx(0.2 * 0.25)],
    ]
    # Targets 1 + 0.5 · 4 = 3 and 2.
    assert extra.critic_loss.tolist() == [[4.0 + 1.0], [4.0 + 2.25]]
    # exp(2 · 2) is more than 10; exp(−1).
    weights = [10.0, math.exp(-1)]
    assert extra.weight.flatten().tolist() == pytest.approx(weights)
    actor_loss = [10.0 * 0.5, math.exp(-1) * 2]
    assert extra.actor_loss.flatten().tolist() == pytest.approx(actor_loss)
    total = [3.2 + 5 + actor_loss[0], 0.05 + 6.25 + actor_loss[1]]
    assert loss.loss.flatten().tolist() == pytest.approx(total)
    # |δ|: (2 + 1) / 2 and (2 + 1.5) / 2, of which 0.9 max + 0.1 mean.
    assert loss.priority.tolist() == pytest.approx([0.9 * 1.75 + 0.1 * 1.625])


@SPECS
@pytest.mark.parametrize("num_critics", [1, 2, 4])
def test_the_losses_are_those_of_a_naive_loop(spec, num_critics):
    algorithm = iql(spec, num_critics=num_critics)
    steps = windows(spec)
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    assert loss.loss.shape == (1, 5)

    def value(observation) -> float:
        return algorithm._value_network((observation[None], None))[0].item()

    num_compared = 0
    for b in range(5):
        if steps.step_type[b, 0] == LAST:
            assert loss.priority[b] == 0
            continue
        now, then = steps.observation[b]
        action = nest.map_structure(lambda a, b=b: a[b, 1], steps.prev_action)
        q = q_of(algorithm._critics.online, now, action)
        target_q = q_of(algorithm._critics.target, now, action)
        advantage = min(target_q.tolist()) - value(now)
        weight = 0.8 if advantage >= 0 else 0.2
        y = steps.reward[b, 1] + GAMMA * steps.discount[b, 1] * value(then)
        policy, _ = algorithm._policy(now[None])
        log_prob = distributions.log_prob(
            policy, nest.map_structure(lambda a: a[None], action)
        )
        expected = {
            "value_loss": weight * advantage**2,
            "critic_loss": sum((k.item() - y.item()) ** 2 for k in q),
            "actor_loss": -min(math.exp(2 * advantage), 100.0) * log_prob.item(),
        }
        for name, number in expected.items():
            part = getattr(loss.extra, name)[0, b].item()
            assert part == pytest.approx(number, abs=1e-3, rel=1e-3), name
        total = sum(expected.values())
        assert loss.loss[0, b].item() == pytest.approx(total, abs=1e-3, rel=1e-3)
        delta = sum(abs(k.item() - y.item()) for k in q) / num_critics
        assert loss.priority[b].item() == pytest.approx(delta, abs=1e-4)
        num_compared += 1
    assert num_compared == 4


@SPECS
def test_the_aggregated_loss_is_the_mean_over_the_steps_that_go_on(spec):
    algorithm = iql(spec)
    steps = windows(spec)
    loss_info, info = batch_loss(algorithm, batch_of(algorithm, steps))
    own = algorithm.calc_loss(info).loss[0, [0, 1, 2, 4]]
    torch.testing.assert_close(loss_info.loss, own.mean())


def test_a_termination_is_not_bootstrapped_and_a_time_limit_is():
    info = info_of(iql(CHOICE), windows(CHOICE))
    assert info.discount[0, :3].tolist() == pytest.approx([GAMMA, 0.0, GAMMA])


@SPECS
@pytest.mark.parametrize(
    ("loss_name", "modules"),
    [
        ("critic_loss", {"_critics"}),
        ("value_loss", {"_value_network"}),
        ("actor_loss", {"_policy"}),
        ("loss", {"_critics", "_value_network", "_policy"}),
    ],
)
def test_every_loss_reaches_its_own_parameters_only(spec, loss_name, modules):
    algorithm = iql(spec)
    loss = algorithm.calc_loss(info_of(algorithm, windows(spec)))
    part = loss.loss if loss_name == "loss" else getattr(loss.extra, loss_name)
    part.sum().backward()
    assert trained_modules(algorithm) == modules


def test_n_step_targets_reach_further_but_not_over_an_end():
    algorithm = iql(CHOICE, n_step=2)
    steps = windows(CHOICE, length=3)
    info = info_of(algorithm, steps)
    goes_on = steps.reward[0, 1] + GAMMA * steps.reward[0, 2]
    torch.testing.assert_close(info.reward[0, 0], goes_on)
    torch.testing.assert_close(info.reward[0, 2], steps.reward[2, 1])
    assert info.discount[0, [0, 1, 2, 4]].tolist() == pytest.approx(
        [0.81, 0.0, 0.9, 0.81]
    )
    value = algorithm._value(steps.observation.flatten(0, 1))[0].unflatten(0, (5, 3))
    torch.testing.assert_close(info.next_value[0, 0], value[0, 2].detach())
    torch.testing.assert_close(info.next_value[0, 2], value[2, 1].detach())


def test_the_weights_of_the_reward_decide_about_advantage_and_critic():
    weights = torch.tensor([1.0, -2.0])
    algorithm = iql(
        MIXED, reward_spec=TensorSpec((2,)), reward_weights=weights.tolist()
    )
    steps = windows(MIXED, reward_dims=(2,))
    info = info_of(algorithm, steps)
    assert info.q.shape == (1, 5, 2, 2)
    loss = algorithm.calc_loss(info)
    for b in (0, 1, 2, 4):
        now, then = steps.observation[b]
        action = nest.map_structure(lambda a, b=b: a[b, 1], steps.prev_action)
        critics = q_of(algorithm._critics.target, now, action)
        target_q = min(critics, key=lambda v: v @ weights)
        value, next_value = (
            algorithm._value_network((o[None], None))[0][0, 0] for o in (now, then)
        )
        advantage = (target_q - value) @ weights
        w = 0.8 if advantage >= 0 else 0.2
        torch.testing.assert_close(
            loss.extra.value_loss[0, b], w * (target_q - value).square().sum()
        )
        torch.testing.assert_close(loss.extra.advantage[0, b], advantage.detach())
        y = steps.reward[b, 1] + GAMMA * steps.discount[b, 1] * next_value
        q = q_of(algorithm._critics.online, now, action)
        torch.testing.assert_close(
            loss.extra.critic_loss[0, b], (q - y).square().sum(), atol=1e-4, rtol=1e-4
        )
        delta = ((y - q) @ weights).abs().mean().detach()
        torch.testing.assert_close(loss.priority[b], delta, atol=1e-4, rtol=1e-4)


# Memory


@pytest.mark.parametrize("n", [1, 2])
def test_networks_with_memory_learn_the_same_targets(n):
    plain = iql(MIXED, n_step=n)
    with_state = iql(
        MIXED,
        n_step=n,
        **{
            name: functools.partial(ctor, encoding_network_ctor=CountingEncoder)
            for name, ctor in NETWORKS.items()
            if name != "actor_network_ctor"  # one without memory among others
        },
    )
    with_state.load_state_dict(plain.state_dict())
    assert not with_state.is_temporally_independent
    steps = windows(MIXED, length=4)
    expected = plain.calc_loss(info_of(plain, steps))
    loss = with_state.calc_loss(info_of(with_state, steps))
    assert loss.loss.shape == expected.loss.shape == (4 - n, 5)
    valid = (steps.step_type[:, : 4 - n] != LAST).T
    torch.testing.assert_close(loss.loss[valid], expected.loss[valid])
    torch.testing.assert_close(loss.priority, expected.priority)


def test_recurrent_networks_keep_all_their_states():
    encoder = functools.partial(GRUEncodingNetwork, hidden_size=(8,))
    algorithm = iql(
        MIXED,
        **{
            name: functools.partial(ctor, encoding_network_ctor=encoder)
            for name, ctor in NETWORKS.items()
        },
    )
    state = algorithm.get_initial_rollout_state(5)
    steps = windows(MIXED, length=4)
    step = algorithm.rollout_step(nest.map_structure(lambda t: t[:, 0], steps), state)
    nest.assert_same_structure(step.state, state)
    assert all(t.abs().sum() > 0 for t in nest.flatten(step.state))
    loss_info, _ = batch_loss(algorithm, batch_of(algorithm, steps))
    loss_info.loss.backward()
    for network in (
        algorithm._policy._network,
        algorithm._critics.online,
        algorithm._value_network,
    ):
        assert network._encoder._cells[0].weight_hh.grad.abs().sum() > 0


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


def test_evaluation_needs_the_actor_only():
    algorithm = iql(MIXED, is_eval=True, optimizer=None)
    modules = {name.split(".")[0] for name, _ in algorithm.named_parameters()}
    assert modules == {"_policy"}
    algorithm.predict_step(many(MIXED), IqlState())


# Targets, optimizers


def test_the_target_critics_move_with_every_update():
    algorithm = iql(MIXED, target_update_tau=0.25)
    target = algorithm._critics.target
    assert not any(p.requires_grad for p in target.parameters())
    for _ in range(3):
        before = [p.clone() for p in target.parameters()]
        update(algorithm, windows(MIXED))
        sources = algorithm._critics.online.parameters()
        for old, new, source in zip(before, target.parameters(), sources, strict=True):
            torch.testing.assert_close(new, old + 0.25 * (source - old))
            assert not torch.equal(new, old)


def test_every_network_may_have_its_own_optimizer():
    own = {f"{n}_optimizer": Adam(lr=1e-4) for n in ("actor", "critic", "value")}
    names = [name for name, _ in iql(BOX, optimizer=None, **own).optimizers()]
    assert names == ["_policy", "_critics.online", "_value_network"]
    shared = iql(BOX, value_optimizer=Adam(lr=1e-3))
    assert [name for name, _ in shared.optimizers()] == ["root", "_value_network"]


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


def test_a_choice_that_does_not_begin_at_zero_is_valued_and_imitated():
    spec = BoundedTensorSpec((2,), torch.int64, [5, 3], [6, 4])
    algorithm = iql(spec)
    steps = windows(spec)  # with zeros where an end ignored its action
    info = info_of(algorithm, steps)
    taken = steps.prev_action[0, 1] - torch.tensor([5, 3])
    joint = int(2 * taken[0] + taken[1])
    values, _ = algorithm._critics.online((steps.observation[:1, 0], None))
    torch.testing.assert_close(info.q[0, 0], values[0, :, joint])


def test_what_a_mask_rules_out_is_not_imitated():
    spec = {
        "mask": BoundedTensorSpec((3,), torch.int8, 0, 1),
        "state": OBSERVATION,
    }
    algorithm = iql(CHOICE, observation_spec=spec, action_mask_key="mask")
    steps = windows(CHOICE)
    mask = torch.ones(5, 2, 3, dtype=torch.int8)
    mask[0, 0] = torch.tensor([0, 1, 1])
    mask[1, 0] = 0
    steps.prev_action[0, 1] = 0
    steps = steps._replace(observation={"mask": mask, "state": steps.observation})
    loss_info, info = batch_loss(algorithm, batch_of(algorithm, steps))
    assert info.log_prob[0, :2].tolist() == [0.0, 0.0]
    assert info.log_prob[0, 4] < 0
    loss_info.loss.backward()
    for name, parameter in algorithm.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    drawn = algorithm.random_action(nest.map_structure(lambda t: t[:, 0], steps))
    assert drawn[0] != 0


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


# Bad input


def test_what_cannot_be_handled_names_an_algorithm_that_can():
    with pytest.raises(ValueError, match=r"\['x'\].*with recorded steps .*BcAlgorithm"):
        iql({"x": TensorSpec((2,)), "y": CHOICE})
    with pytest.raises(ValueError, match=r"262144 joint values.*for many discrete"):
        iql(BoundedTensorSpec((18,), torch.int64, 0, 1))
    with pytest.raises(ValueError, match=r"expectile must lie in \(0, 1\), got 1.0"):
        iql(expectile=1.0)
    with pytest.raises(ValueError, match="beta must be positive"):
        iql(beta=0.0)
    with pytest.raises(ValueError, match="max_weight must be positive"):
        iql(max_weight=-1.0)
    with pytest.raises(ValueError, match="gamma must lie"):
        iql(gamma=1.1)
    with pytest.raises(ValueError, match="action_margin must lie"):
        iql(action_margin=-0.1)
