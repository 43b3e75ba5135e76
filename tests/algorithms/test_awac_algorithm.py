from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.awac_algorithm import AwacAlgorithm, AwacInfo
from alf_lite.algorithms.learning.batch_loss import batch_loss
from alf_lite.algorithms.off_policy_algorithm import OffPolicyState
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    NormalActorNetwork,
    SquashedActorNetwork,
)
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


def test_the_losses_of_numbers_worked_out_by_hand():
    info = AwacInfo(
        q=torch.tensor([[[1.0, 2.0]], [[0.0, 0.5]]]),
        advantage=torch.tensor([[2.0], [-0.5]]),
        log_prob=torch.tensor([[-0.5], [-2.0]]),
        next_value=torch.tensor([[4.0], [100.0]]),
        reward=torch.tensor([[1.0], [2.0]]),
        discount=torch.tensor([[0.5], [0.0]]),
        num_steps=torch.ones(2, 1, dtype=torch.int64),
        step_type=torch.ones(2, 1, dtype=torch.int32),
    )
    loss = awac(temperature=0.5, max_weight=10.0).calc_loss(info)
    # Targets 1 + 0.5 · 4 = 3 and 2.
    assert loss.extra.critic_loss.tolist() == [[4.0 + 1.0], [4.0 + 2.25]]
    # exp(2 / 0.5) is more than 10; exp(−0.5 / 0.5).
    weights = [10.0, math.exp(-1)]
    assert loss.extra.weight.flatten().tolist() == pytest.approx(weights)
    actor_loss = [10.0 * 0.5, math.exp(-1) * 2]
    assert loss.extra.actor_loss.flatten().tolist() == pytest.approx(actor_loss)
    total = [5 + actor_loss[0], 6.25 + actor_loss[1]]
    assert loss.loss.flatten().tolist() == pytest.approx(total)
    # |δ|: (2 + 1) / 2 and (2 + 1.5) / 2, of which 0.9 max + 0.1 mean.
    assert loss.priority.tolist() == pytest.approx([0.9 * 1.75 + 0.1 * 1.625])


class Naive:
    """V of every row, with the random numbers drawn in the order of the algorithm."""

    def __init__(self, algorithm, steps, num_samples=1, seed=2) -> None:
        self.algorithm = algorithm
        now, then = steps.observation.unbind(1)
        torch.manual_seed(seed)
        self.value = self.values(algorithm._critics.online, now, num_samples)
        self.next_value = self.values(algorithm._critics.target, then, num_samples)

    def values(self, critic, observation, num_samples) -> list[float]:
        policy, _ = self.algorithm._policy(observation.repeat(num_samples, 1))
        if isinstance(policy, dict):
            action = {"gear": None, "move": policy["move"].sample()}
        else:
            action = policy.sample()
        means = []
        for b in range(len(observation)):
            rows = range(b, len(observation) * num_samples, len(observation))
            total = sum(
                self.expectation(critic, observation[b], policy, action, row)
                for row in rows
            )
            means.append(total / num_samples)
        return means

    def expectation(self, critic, observation, policy, action, row) -> float:
        """Over the discrete part, for the continuous one of the row."""
        action = nest.map_structure(lambda a: a[row], action)  # None has no rows
        if not isinstance(policy, dict):
            if action.is_floating_point():
                return q_of(critic, observation, action).min().item()
            probs = policy.probs[row]
            actions = [torch.tensor(j) for j in range(3)]
        else:
            probs = policy["gear"].probs[row]
            actions = [{**action, "gear": torch.tensor(j)} for j in range(3)]
        return sum(
            p.item() * q_of(critic, observation, a).min().item()
            for p, a in zip(probs, actions, strict=True)
        )


@SPECS
@pytest.mark.parametrize(("num_critics", "num_samples"), [(1, 1), (2, 1), (3, 4)])
def test_the_losses_are_those_of_a_naive_loop(spec, num_critics, num_samples):
    algorithm = awac(spec, num_critics=num_critics, num_action_samples=num_samples)
    steps = windows(spec)
    info = info_of(algorithm, steps)
    loss = algorithm.calc_loss(info)
    assert loss.loss.shape == (1, 5)
    naive = Naive(algorithm, steps, 1 if spec is CHOICE else num_samples)
    num_compared = 0
    for b in range(5):
        if steps.step_type[b, 0] == LAST:
            assert loss.priority[b] == 0
            continue
        now = steps.observation[b, 0]
        action = nest.map_structure(lambda a, b=b: a[b, 1], steps.prev_action)
        q = q_of(algorithm._critics.online, now, action).tolist()
        advantage = min(q) - naive.value[b]
        y = (
            steps.reward[b, 1] + GAMMA * steps.discount[b, 1] * naive.next_value[b]
        ).item()
        policy, _ = algorithm._policy(now[None])
        log_prob = distributions.log_prob(
            policy, nest.map_structure(lambda a: a[None], action)
        ).item()
        expected = {
            "advantage": advantage,
            "critic_loss": sum((k - y) ** 2 for k in q),
            "actor_loss": -min(math.exp(advantage / 0.5), 100.0) * log_prob,
        }
        for name, number in expected.items():
            part = getattr(loss.extra, name)[0, b].item()
            assert part == pytest.approx(number, abs=1e-3, rel=1e-3), name
        total = expected["critic_loss"] + expected["actor_loss"]
        assert loss.loss[0, b].item() == pytest.approx(total, abs=1e-3, rel=1e-3)
        delta = sum(abs(k - y) for k in q) / num_critics
        assert loss.priority[b].item() == pytest.approx(delta, abs=1e-4)
        num_compared += 1
    assert num_compared == 4


def test_a_termination_is_not_bootstrapped_and_a_time_limit_is():
    info = info_of(awac(CHOICE), windows(CHOICE))
    assert info.discount[0, :3].tolist() == pytest.approx([GAMMA, 0.0, GAMMA])


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


def test_actions_of_the_policy_are_valued_within_their_bounds():
    wide = functools.partial(Actor, initial_log_std=2.0)
    algorithm = awac(BOX, actor_network_ctor=wide)
    seen = []

    def evaluate(features, vector):
        seen.append(vector)
        return CriticNetwork.evaluate(algorithm._critics.online, features, vector)

    algorithm._critics.online.evaluate = evaluate
    policy, _ = algorithm._policy(torch.zeros(100, 3))
    algorithm._value(algorithm._critics.online, torch.zeros(100, 3), policy)
    (vector,) = seen
    assert vector.abs().max() == 1
    assert (vector.abs() < 1).any()


@SPECS
@pytest.mark.parametrize(
    ("loss_name", "modules"),
    [
        ("critic_loss", {"_critics"}),
        ("actor_loss", {"_policy"}),
        ("loss", {"_critics", "_policy"}),
    ],
)
def test_every_loss_reaches_its_own_parameters_only(spec, loss_name, modules):
    algorithm = awac(spec)
    loss = algorithm.calc_loss(info_of(algorithm, windows(spec)))
    part = loss.loss if loss_name == "loss" else getattr(loss.extra, loss_name)
    part.sum().backward()
    assert trained_modules(algorithm) == modules


def test_n_step_targets_reach_further_but_not_over_an_end():
    algorithm = awac(CHOICE, n_step=2)
    steps = windows(CHOICE, length=3)
    info = info_of(algorithm, steps)
    goes_on = steps.reward[0, 1] + GAMMA * steps.reward[0, 2]
    torch.testing.assert_close(info.reward[0, 0], goes_on)
    assert info.discount[0, [0, 1, 2, 4]].tolist() == pytest.approx(
        [0.81, 0.0, 0.9, 0.81]
    )
    naive = Naive(algorithm, steps._replace(observation=steps.observation[:, [0, 2]]))
    assert info.next_value[0, 0].item() == pytest.approx(naive.next_value[0], abs=1e-4)
    naive = Naive(algorithm, steps._replace(observation=steps.observation[:, :2]))
    assert info.next_value[0, 2].item() == pytest.approx(naive.next_value[2], abs=1e-4)


def test_the_weights_of_the_reward_decide_about_advantage_and_critic():
    weights = torch.tensor([1.0, -2.0])
    algorithm = awac(
        CHOICE, reward_spec=TensorSpec((2,)), reward_weights=weights.tolist()
    )
    steps = windows(CHOICE, reward_dims=(2,))
    info = info_of(algorithm, steps)
    assert info.q.shape == (1, 5, 2, 2)
    loss = algorithm.calc_loss(info)

    def value(critic, observation):
        probs = algorithm._policy(observation[None])[0].probs[0]
        values = [
            min(q_of(critic, observation, torch.tensor(j)), key=lambda v: v @ weights)
            for j in range(3)
        ]
        return probs @ torch.stack(values)

    for b in (0, 1, 2, 4):
        now, then = steps.observation[b]
        q = q_of(algorithm._critics.online, now, steps.prev_action[b, 1])
        taken = min(q, key=lambda v: v @ weights)
        advantage = (taken - value(algorithm._critics.online, now)) @ weights
        torch.testing.assert_close(
            info.advantage[0, b], advantage.detach(), atol=1e-4, rtol=1e-4
        )
        next_value = value(algorithm._critics.target, then).detach()
        torch.testing.assert_close(info.next_value[0, b], next_value)
        y = steps.reward[b, 1] + GAMMA * steps.discount[b, 1] * next_value
        torch.testing.assert_close(
            loss.extra.critic_loss[0, b], (q - y).square().sum(), atol=1e-4, rtol=1e-4
        )
        delta = ((y - q) @ weights).abs().mean().detach()
        torch.testing.assert_close(loss.priority[b], delta, atol=1e-4, rtol=1e-4)


# Memory


@pytest.mark.parametrize("n", [1, 2])
def test_networks_with_memory_learn_the_same_targets(n):
    plain = awac(CHOICE, n_step=n)
    with_state = awac(
        CHOICE,
        n_step=n,
        **{
            name: functools.partial(ctor, encoding_network_ctor=CountingEncoder)
            for name, ctor in NETWORKS.items()
        },
    )
    with_state.load_state_dict(plain.state_dict())
    assert not with_state.is_temporally_independent
    steps = windows(CHOICE, length=4)
    expected = plain.calc_loss(info_of(plain, steps))
    loss = with_state.calc_loss(info_of(with_state, steps))
    assert loss.loss.shape == expected.loss.shape == (4 - n, 5)
    valid = (steps.step_type[:, : 4 - n] != LAST).T
    torch.testing.assert_close(loss.loss[valid], expected.loss[valid])
    torch.testing.assert_close(loss.priority, expected.priority)


def test_recurrent_networks_keep_all_their_states():
    encoder = functools.partial(GRUEncodingNetwork, hidden_size=(8,))
    algorithm = awac(
        MIXED,
        num_action_samples=2,
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
    for network in (algorithm._policy._network, algorithm._critics.online):
        assert network._encoder._cells[0].weight_hh.grad.abs().sum() > 0


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


def test_evaluation_needs_the_actor_only():
    algorithm = awac(MIXED, is_eval=True, optimizer=None)
    modules = {name.split(".")[0] for name, _ in algorithm.named_parameters()}
    assert modules == {"_policy"}
    algorithm.predict_step(many(MIXED), OffPolicyState())


# Targets, optimizers


def test_the_target_critics_move_with_every_update():
    algorithm = awac(MIXED, target_update_tau=0.25)
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
    own = {f"{n}_optimizer": Adam(lr=1e-4) for n in ("actor", "critic")}
    names = [name for name, _ in awac(BOX, optimizer=None, **own).optimizers()]
    assert names == ["_policy", "_critics.online"]
    shared = awac(BOX, critic_optimizer=Adam(lr=1e-3))
    assert [name for name, _ in shared.optimizers()] == ["root", "_critics.online"]


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


def test_a_choice_that_does_not_begin_at_zero_is_valued():
    spec = BoundedTensorSpec((2,), torch.int64, [5, 3], [6, 4])
    algorithm = awac(spec)
    steps = windows(spec)  # with zeros where an end ignored its action
    info = info_of(algorithm, steps)
    taken = steps.prev_action[0, 1] - torch.tensor([5, 3])
    joint = int(2 * taken[0] + taken[1])
    values, _ = algorithm._critics.online((steps.observation[:1, 0], None))
    torch.testing.assert_close(info.q[0, 0], values[0, :, joint])


def test_a_mask_restricts_the_value_and_what_is_imitated():
    spec = {
        "mask": BoundedTensorSpec((3,), torch.int8, 0, 1),
        "state": OBSERVATION,
    }
    algorithm = awac(CHOICE, observation_spec=spec, action_mask_key="mask")
    steps = windows(CHOICE)
    mask = torch.ones(5, 2, 3, dtype=torch.int8)
    mask[0, 0] = torch.tensor([0, 1, 1])
    mask[1, 0] = 0
    mask[2, 1] = torch.tensor([0, 0, 1])
    steps.prev_action[0, 1] = 0
    steps = steps._replace(observation={"mask": mask, "state": steps.observation})
    loss_info, info = batch_loss(algorithm, batch_of(algorithm, steps))
    assert info.log_prob[0, :2].tolist() == [0.0, 0.0]
    only = q_of(
        algorithm._critics.target._network,
        steps.observation["state"][2, 1],
        torch.tensor(2),
    )
    torch.testing.assert_close(info.next_value[0, 2], only.min().detach())
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


# Bad input


def test_what_cannot_be_handled_names_an_algorithm_that_can():
    with pytest.raises(ValueError, match=r"\['x'\].*with recorded steps .*BcAlgorithm"):
        awac({"x": TensorSpec((2,)), "y": CHOICE})
    with pytest.raises(ValueError, match=r"262144 joint values.*for many discrete"):
        awac(BoundedTensorSpec((18,), torch.int64, 0, 1))
    with pytest.raises(ValueError, match="temperature must be positive"):
        awac(temperature=0.0)
    with pytest.raises(ValueError, match="max_weight must be positive"):
        awac(max_weight=-1.0)
    with pytest.raises(ValueError, match="num_action_samples must be positive"):
        awac(num_action_samples=0)
    with pytest.raises(ValueError, match="gamma must lie"):
        awac(gamma=1.1)
    with pytest.raises(ValueError, match="action_margin must lie"):
        awac(action_margin=-0.1)
