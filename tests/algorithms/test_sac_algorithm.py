from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.batch_loss import LossFunction, batch_loss
from alf_lite.algorithms.learning.training_batches import TrainingBatch, transpose
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.algorithms.off_policy_algorithm import OffPolicyState
from alf_lite.algorithms.parts.temperature import entropy_of_mostly_one_value
from alf_lite.algorithms.sac_algorithm import SacAlgorithm, SacInfo
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_vectors import Entropies
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
MIXED = {"gear": CHOICE, "move": BOX}
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
GAMMA = 0.9

Actor = functools.partial(SquashedActorNetwork, fc_layer_params=(16,))
Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(16,))


def sac(action_spec=BOX, *, spread: float = 0.3, **kwargs) -> SacAlgorithm:
    """With random parameters, so that no two networks agree."""
    arguments = {
        "gamma": GAMMA,
        "actor_network_ctor": Actor,
        "critic_network_ctor": Critic,
        "initial_alpha": 0.3,
        "optimizer": Adam(lr=3e-3),
        **kwargs,
    }
    torch.manual_seed(0)
    algorithm = SacAlgorithm(OBSERVATION, action_spec, **arguments)
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            if "temperature" not in name:
                parameter.add_(spread * torch.randn_like(parameter))
    return algorithm


def windows(
    action_spec, length: int = 2, batch_size: int = 5, reward_dims=()
) -> TimeStep:
    """[B, T] of random steps; the second row terminates, the third hits a limit."""
    torch.manual_seed(1)
    step_type = torch.full((batch_size, length), MID, dtype=torch.int32)
    step_type[1:3, 1] = LAST
    discount = torch.ones(batch_size, length)
    discount[1, 1] = 0.0
    if length > 2:
        step_type[1:3, 2] = FIRST
    return TimeStep(
        step_type=step_type,
        reward=torch.randn(batch_size, length, *reward_dims),
        discount=discount,
        observation=torch.randn(batch_size, length, 3),
        prev_action=nest.map_structure(
            lambda spec: spec.sample((batch_size, length)), action_spec
        ),
    )


def batch_of(algorithm: SacAlgorithm, steps: TimeStep) -> TrainingBatch:
    with torch.no_grad():
        inputs, info = algorithm.preprocess_experience(steps, (), BatchInfo())
    inputs, info, valid = transpose((inputs, info, steps.step_type != LAST))
    return TrainingBatch(inputs, info, (), valid)


def info_of(algorithm: SacAlgorithm, steps: TimeStep, seed: int = 2) -> SacInfo:
    batch = batch_of(algorithm, steps)
    state = algorithm.get_initial_train_state(batch.valid.shape[1])
    torch.manual_seed(seed)
    return LossFunction(algorithm).info(batch, state)[0]


class Naive:
    """Every term of the losses of one-step windows, written out for single actions.

    The same random numbers are drawn in the same order as the algorithm does.
    """

    def __init__(self, algorithm: SacAlgorithm, steps: TimeStep, seed: int = 2) -> None:
        self.algorithm = algorithm
        observation, next_observation = steps.observation.unbind(1)
        taken = nest.map_structure(lambda t: t[:, 1], steps.prev_action)
        torch.manual_seed(seed)
        self.policy_value, self.entropy = self.value(
            algorithm._critics.online, observation
        )
        next_value, next_entropy = self.value(
            algorithm._critics.target, next_observation
        )
        bonus = sum(0.3 * entropy for entropy in next_entropy.values())
        not_end = GAMMA * steps.discount[:, 1]
        self.target = steps.reward[:, 1] + not_end * (next_value + bonus)
        self.q = self.q_values(algorithm._critics.online, observation, taken)

    def q_values(self, critic: CriticNetwork, observation: Tensor, action) -> Tensor:
        """[B, n], of one action per row."""
        vector, joint = None, torch.zeros(len(observation), dtype=torch.int64)
        if isinstance(action, dict):
            joint, action = action["gear"], action["move"]
        if action.is_floating_point():
            vector = torch.stack([action[:, 0], action[:, 1] / 5 - 1], dim=1)
        else:
            joint = action
        features, _ = critic.encode(observation)
        values = critic.evaluate(features, vector)
        return torch.stack([values[b, :, j] for b, j in enumerate(joint)])

    def value(self, critic, observation) -> tuple[Tensor, dict[str, Tensor]]:
        """E_π min_k Q_k and the entropies, by enumeration of the discrete part."""
        policy, _ = self.algorithm._policy(observation)
        parts = policy if isinstance(policy, dict) else {"": policy}
        vector, entropy = None, {}
        probs = torch.ones(len(observation), 1)
        for part in parts.values():
            if part.has_rsample:
                vector, log_prob = part.rsample_and_log_prob()
                entropy["continuous"] = -log_prob
            else:
                probs = part.probs
                entropy["discrete"] = torch.distributions.Categorical(probs).entropy()
        total = 0.0
        for j in range(probs.shape[1]):
            joint = torch.full((len(observation),), j)
            if vector is None:
                action = joint
            elif probs.shape[1] > 1:
                action = {"gear": joint, "move": vector}
            else:
                action = vector
            q = self.q_values(critic, observation, action)
            total = total + probs[:, j] * q.min(1).values
        return total, entropy


@pytest.mark.parametrize("spec", [BOX, CHOICE, MIXED], ids=["box", "choice", "mixed"])
@pytest.mark.parametrize("num_critics", [1, 2, 4])
def test_the_losses_are_those_of_a_naive_computation(spec, num_critics):
    algorithm = sac(spec, num_critics=num_critics)
    steps = windows(spec)
    naive = Naive(algorithm, steps)
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    assert loss.loss.shape == (1, 5)
    close = functools.partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
    critic_loss = (0.5 * (naive.q - naive.target[:, None]) ** 2).sum(1)
    close(loss.extra.critic_loss[0], critic_loss)
    bonus = sum(0.3 * entropy for entropy in naive.entropy.values())
    close(loss.extra.actor_loss[0], -bonus - naive.policy_value)
    targets = {
        "continuous": math.log(5) - 2,
        "discrete": entropy_of_mostly_one_value(3),
    }
    alpha_loss = sum(
        math.log(0.3) * (entropy - targets[part])
        for part, entropy in naive.entropy.items()
    )
    close(loss.extra.alpha_loss[0], alpha_loss)
    close(loss.loss[0], critic_loss - bonus - naive.policy_value + alpha_loss)
    # |δ|, not its square, averaged over the critics.
    close(loss.priority, (naive.q - naive.target[:, None]).abs().mean(1))


def test_a_termination_is_not_bootstrapped_and_a_time_limit_is():
    algorithm = sac(CHOICE)
    steps = windows(CHOICE)
    info = info_of(algorithm, steps)
    assert info.discount[0, :3].tolist() == pytest.approx([GAMMA, 0.0, GAMMA])


def parameters_with_gradient(algorithm: SacAlgorithm) -> set[str]:
    return {
        name.split(".")[0]
        for name, p in algorithm.named_parameters()
        if p.grad is not None and p.grad.abs().sum() > 0
    }


@pytest.mark.parametrize("spec", [BOX, CHOICE, MIXED], ids=["box", "choice", "mixed"])
@pytest.mark.parametrize(
    ("loss_name", "modules"),
    [
        ("critic_loss", {"_critics"}),
        ("actor_loss", {"_policy"}),
        ("alpha_loss", {"_temperatures"}),
    ],
)
def test_every_loss_reaches_its_own_parameters_only(spec, loss_name, modules):
    algorithm = sac(spec)
    loss = algorithm.calc_loss(info_of(algorithm, windows(spec)))
    getattr(loss.extra, loss_name).sum().backward()
    assert parameters_with_gradient(algorithm) == modules


def test_one_backward_pass_gives_every_part_the_gradient_of_its_own_loss():
    spec, gradients = MIXED, {}
    for name in ("critic_loss", "actor_loss", "alpha_loss", "loss"):
        algorithm = sac(spec)
        loss = algorithm.calc_loss(info_of(algorithm, windows(spec)))
        (loss.loss if name == "loss" else getattr(loss.extra, name)).sum().backward()
        gradients[name] = {
            n: p.grad for n, p in algorithm.named_parameters() if p.grad is not None
        }
    total = gradients.pop("loss")
    assert set(total) == set().union(*gradients.values())
    for own in gradients.values():
        for name, gradient in own.items():
            torch.testing.assert_close(total[name], gradient)


def test_every_parameter_of_the_actor_learns_through_the_critic():
    algorithm = sac(BOX)
    info = info_of(algorithm, windows(BOX))
    info.policy_value.sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in algorithm._policy.parameters())
    assert all(p.grad is None for p in algorithm._critics.online.parameters())
    assert all(p.requires_grad for p in algorithm._critics.online.parameters())


@pytest.mark.parametrize("spec", [BOX, MIXED], ids=["box", "mixed"])
def test_a_reward_of_several_dimensions_has_a_critic_output_for_each_and_the_entropy(
    spec,
):
    weights = [1.0, -2.0]
    algorithm = sac(spec, reward_spec=TensorSpec((2,)), reward_weights=weights)
    steps = windows(spec, reward_dims=(2,))
    info = info_of(algorithm, steps)
    assert info.q.shape == (1, 5, 2, 3)
    assert info.policy_value.shape == (1, 5)
    target = algorithm._critics.target
    torch.manual_seed(2)
    policy, _ = algorithm._policy(steps.observation[:, 0])
    algorithm._actions.sample(policy)  # as train_step, for the current step
    with torch.no_grad():
        policy, _ = algorithm._policy(steps.observation[:, 1])
        vector, probs, entropies = algorithm._actions.sample(policy)
        values = target.evaluate(steps.observation[:, 1], vector)  # [5, 2, A, 3]
    probs = torch.ones(5, 1) if probs is None else probs
    bonus = sum(0.3 * h for h in nest.flatten(entropies))
    full_weights = torch.tensor([*weights, 1.0])
    for b in range(5):
        expected = torch.zeros(3)
        for a in range(probs.shape[1]):
            critics = values[b, :, a]
            expected += probs[b, a] * min(critics, key=lambda v: v @ full_weights)
        expected[2] += bonus[b]
        torch.testing.assert_close(info.next_value[0, b], expected)
    loss = algorithm.calc_loss(info)
    reward = torch.cat([steps.reward[:, 1], torch.zeros(5, 1)], dim=1)
    y = reward + GAMMA * steps.discount[:, 1, None] * info.next_value[0]
    expected = (0.5 * (info.q[0] - y[:, None]) ** 2).sum((1, 2))
    torch.testing.assert_close(loss.extra.critic_loss[0], expected)
    delta = ((y[:, None] - info.q[0]) @ full_weights).abs().mean(1)
    torch.testing.assert_close(loss.priority, delta)
    loss.loss.sum().backward()


def test_the_weights_of_the_reward_decide_what_the_actor_wants():
    algorithm = sac(BOX, reward_spec=TensorSpec((2,)), reward_weights=[1.0, 0.0])
    steps = windows(BOX, reward_dims=(2,))
    before = info_of(algorithm, steps).policy_value
    algorithm.set_reward_weights([0.0, 1.0])
    assert not torch.allclose(info_of(algorithm, steps).policy_value, before)


def test_n_step_targets_reach_further():
    algorithm = sac(CHOICE, n_step=2)
    steps = windows(CHOICE, length=3)
    info = info_of(algorithm, steps)
    assert info.reward.shape == (1, 5)
    goes_on = steps.reward[0, 1] + GAMMA * steps.reward[0, 2]
    torch.testing.assert_close(info.reward[0, 0], goes_on)
    torch.testing.assert_close(info.reward[0, 2], steps.reward[2, 1])  # a limit
    assert info.discount[0].tolist() == pytest.approx([0.81, 0.0, 0.9, 0.81, 0.81])
    torch.manual_seed(2)
    for row, end in ((0, 2), (2, 1)):
        observation = steps.observation[:, end]
        policy, _ = algorithm._policy(observation)
        value, _ = algorithm._next_value(observation, policy, ())
        torch.testing.assert_close(info.next_value[0, row], value[row])


class CountingEncoder(EncodingNetwork):
    """Has a state that does not matter: every path must give the same result."""

    def __init__(self, input_spec, **kwargs) -> None:
        super().__init__(input_spec, **kwargs)
        self._state_spec = TensorSpec(())

    def forward(self, inputs, state=()):
        return super().forward(inputs)[0], state + 1


@pytest.mark.parametrize("n", [1, 2])
def test_networks_with_memory_learn_the_same_targets(n):
    plain = sac(CHOICE, n_step=n)
    with_state = sac(
        CHOICE,
        n_step=n,
        actor_network_ctor=functools.partial(
            Actor, encoding_network_ctor=CountingEncoder
        ),
        critic_network_ctor=functools.partial(
            Critic, encoding_network_ctor=CountingEncoder
        ),
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
    algorithm = sac(
        MIXED,
        actor_network_ctor=functools.partial(Actor, encoding_network_ctor=encoder),
        critic_network_ctor=functools.partial(Critic, encoding_network_ctor=encoder),
    )
    state = algorithm.get_initial_rollout_state(5)
    steps = windows(MIXED, length=4)
    inputs = nest.map_structure(lambda t: t[:, 0], steps)
    step = algorithm.rollout_step(inputs, state)
    nest.assert_same_structure(step.state, state)
    assert all(t.abs().sum() > 0 for t in nest.flatten(step.state))
    loss_info, _ = batch_loss(algorithm, batch_of(algorithm, steps))
    loss_info.loss.backward()
    for network in (algorithm._policy._network, algorithm._critics.online):
        assert network._encoder._cells[0].weight_hh.grad.abs().sum() > 0


def test_rollout_samples_within_the_bounds_and_prediction_is_greedy():
    algorithm = sac(MIXED)
    steps = nest.map_structure(
        lambda t: t[:1, 0].expand(400, *t.shape[2:]), windows(MIXED)
    )
    step = algorithm.rollout_step(steps, OffPolicyState())
    assert step.info == ()
    move = step.output["move"]
    assert (
        (torch.tensor(BOX.minimum) <= move) & (move <= torch.tensor(BOX.maximum))
    ).all()
    assert move.std(0).min() > 0
    assert len(step.output["gear"].unique()) > 1
    policy, _ = algorithm._policy(steps.observation)
    greedy = algorithm.predict_step(steps, OffPolicyState()).output
    expected = distributions.mode(policy)
    assert torch.equal(greedy["gear"], expected["gear"])
    torch.testing.assert_close(greedy["move"], expected["move"])


def test_prediction_samples_if_the_trainer_says_so():
    config = TrainerConfig(num_iterations=1, epsilon_greedy=1.0)
    algorithm = sac(BOX, config=config)
    steps = nest.map_structure(
        lambda t: t[:1, 0].expand(50, *t.shape[2:]), windows(BOX)
    )
    assert algorithm.predict_step(steps, OffPolicyState()).output.std(0).min() > 0


def test_default_target_entropies():
    targets = {
        part: temperature.target_entropy
        for part, temperature in sac(MIXED)._temperatures.items()
    }
    # −1 for each element in units of half of its range: 1 and 5.
    assert targets["continuous"] == pytest.approx(-2 + math.log(5))
    assert targets["discrete"] == pytest.approx(entropy_of_mostly_one_value(3))
    given = sac(MIXED, target_entropy=-3.0, discrete_target_entropy=0.5)._temperatures
    assert given["continuous"].target_entropy == -3.0
    assert given["discrete"].target_entropy == 0.5


def test_a_fixed_alpha_stays():
    algorithm = sac(BOX, learn_alpha=False, initial_alpha=0.2)
    loss_info, _ = batch_loss(algorithm, batch_of(algorithm, windows(BOX)))
    update_with_gradient(algorithm, loss_info)
    alpha = algorithm._temperatures["continuous"].alpha
    assert alpha.item() == pytest.approx(0.2)
    assert loss_info.extra.alpha.continuous == alpha


def test_every_network_may_have_its_own_optimizer():
    algorithm = sac(
        BOX,
        optimizer=None,
        actor_optimizer=Adam(lr=1e-4),
        critic_optimizer=Adam(lr=1e-3),
        alpha_optimizer=Adam(lr=1e-2),
    )
    names = dict(algorithm.optimizers())
    assert list(names) == ["_policy", "_critics.online", "_temperatures"]
    assert names["_temperatures"].learning_rate == 1e-2
    shared = sac(BOX, critic_optimizer=Adam(lr=1e-3))
    assert [name for name, _ in shared.optimizers()] == ["root", "_critics.online"]


def test_the_target_critics_follow():
    algorithm = sac(BOX, target_update_tau=1.0, target_update_period=2)
    source = algorithm._critics.online.state_dict()
    target = algorithm._critics.target
    algorithm.after_update(TimeStep(), ())
    assert not all(torch.equal(source[k], v) for k, v in target.state_dict().items())
    algorithm.after_update(TimeStep(), ())
    assert all(torch.equal(source[k], v) for k, v in target.state_dict().items())
    assert not any(p.requires_grad for p in target.parameters())


def bandit(action_spec, reward) -> TimeStep:
    """512 one-step episodes of random actions."""
    torch.manual_seed(3)
    action = nest.map_structure(lambda spec: spec.sample((512, 2)), action_spec)
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(512, 2)
    return TimeStep(
        step_type=step_type,
        reward=reward(action),
        discount=(step_type != LAST).float(),
        observation=torch.ones(512, 2, 3),
        prev_action=action,
    )


def train(algorithm: SacAlgorithm, steps: TimeStep, num_updates: int) -> None:
    batch = batch_of(algorithm, steps)
    for _ in range(num_updates):
        loss_info, info = batch_loss(algorithm, batch)
        update_with_gradient(algorithm, loss_info)
        algorithm.after_update(batch.inputs, info)


def test_the_best_mixed_action_of_a_bandit_is_found():
    def reward(action):
        distance = (action["move"] - torch.tensor([0.5, 8.0])) / torch.tensor(
            [1.0, 5.0]
        )
        return 2 * (action["gear"] == 1) - distance.square().sum(-1)

    algorithm = sac(
        MIXED,
        spread=0.0,
        optimizer=Adam(lr=1e-2),
        critic_network_ctor=functools.partial(Critic, joint_fc_layer_params=(64,)),
    )
    train(algorithm, bandit(MIXED, reward), 250)
    inputs = TimeStep(observation=torch.ones(1, 3))
    action = algorithm.predict_step(inputs, OffPolicyState()).output
    assert action["gear"].item() == 1
    assert reward(action).item() > 2 - 0.2  # at random 0.2 less 1.1


def test_the_temperature_holds_the_entropy_at_its_target():
    algorithm = sac(
        CHOICE, spread=0.0, optimizer=Adam(lr=1e-2), discrete_target_entropy=0.7
    )
    train(algorithm, bandit(CHOICE, lambda action: action.float()), 400)
    info = info_of(algorithm, bandit(CHOICE, lambda action: action.float()))
    assert info.entropies.discrete.mean().item() == pytest.approx(0.7, abs=0.05)
    # The soft optimum: π ∝ exp(Q / α).
    policy, _ = algorithm._policy(torch.ones(1, 3))
    alpha = algorithm._temperatures["discrete"].alpha
    soft = (torch.tensor([0.0, 1.0, 2.0]) / alpha).softmax(0)
    torch.testing.assert_close(policy.probs[0].detach(), soft, atol=0.05, rtol=0.0)


def test_evaluation_needs_the_actor_only():
    algorithm = sac(MIXED, is_eval=True, optimizer=None, spread=0.0)
    modules = {name.split(".")[0] for name, _ in algorithm.named_parameters()}
    assert modules == {"_policy"}
    inputs = nest.map_structure(lambda t: t[:, 0], windows(MIXED))
    algorithm.predict_step(inputs, OffPolicyState())


def test_unsupported_actions_name_an_algorithm_that_supports_them():
    with pytest.raises(ValueError, match=r"\['x'\].*PPOAlgorithm for unbounded"):
        sac({"x": TensorSpec((2,)), "y": CHOICE})
    with pytest.raises(ValueError, match="DqnAlgorithm for many discrete"):
        sac(BoundedTensorSpec((18,), torch.int64, 0, 1))
    with pytest.raises(ValueError, match="gamma must lie"):
        sac(gamma=-0.1)
    with pytest.raises(ValueError, match="initial_alpha must be positive"):
        sac(initial_alpha=-1.0)


def test_entropies_of_parts_that_are_not_there_are_left_out():
    loss_info, _ = batch_loss(sac(BOX), batch_of(sac(BOX), windows(BOX)))
    assert loss_info.extra.entropy.discrete == ()
    assert isinstance(loss_info.extra.alpha, Entropies)
    assert len(nest.flatten(loss_info.extra.alpha)) == 1
