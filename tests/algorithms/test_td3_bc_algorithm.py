from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.ddpg_algorithm import DdpgInfo, DdpgState
from alf_lite.algorithms.learning.batch_loss import LossFunction, batch_loss
from alf_lite.algorithms.learning.training_batches import TrainingBatch, transpose
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm, Td3BcInfo
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.networks.actor_networks import ActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
LINE = BoundedTensorSpec((1,), torch.float32, -1, 1)
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST
GAMMA = 0.9
NO_SOURCE = BatchInfo()

Actor = functools.partial(ActorNetwork, fc_layer_params=(16,))
Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(16,))


def make(cls=Td3BcAlgorithm, action_spec=BOX, *, spread: float = 0.3, **kwargs):
    """With random parameters, and an update of the actor at every step."""
    arguments = {
        "gamma": GAMMA,
        "actor_network_ctor": Actor,
        "critic_network_ctor": Critic,
        "actor_update_period": 1,
        "target_noise_std": 0.0,
        "optimizer": Adam(lr=3e-3),
        **kwargs,
    }
    torch.manual_seed(0)
    algorithm = cls(OBSERVATION, action_spec, **arguments)
    with torch.no_grad():
        for parameter in algorithm.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return algorithm


def windows(length: int = 2, reward_dims=()) -> TimeStep:
    """[B=5, T] of random steps.

    The second row terminates, the third hits a limit, the fourth begins with LAST.
    """
    torch.manual_seed(1)
    step_type = torch.full((5, length), MID, dtype=torch.int32)
    step_type[1:3, 1] = LAST
    step_type[3, :2] = torch.tensor([LAST, FIRST])
    discount = torch.ones(5, length)
    discount[1, 1] = 0.0
    if length > 2:
        step_type[1:3, 2] = FIRST
    return TimeStep(
        step_type=step_type,
        reward=torch.randn(5, length, *reward_dims),
        discount=discount,
        observation=torch.randn(5, length, 3),
        prev_action=BOX.sample((5, length)),
    )


def batch_of(algorithm, steps: TimeStep, batch_info=NO_SOURCE) -> TrainingBatch:
    with torch.no_grad():
        inputs, info = algorithm.preprocess_experience(steps, (), batch_info)
    inputs, info, valid = transpose((inputs, info, steps.step_type != LAST))
    return TrainingBatch(inputs, info, (), valid)


def info_of(algorithm, steps: TimeStep, batch_info=NO_SOURCE):
    batch = batch_of(algorithm, steps, batch_info)
    state = algorithm.get_initial_train_state(batch.valid.shape[1])
    return LossFunction(algorithm).info(batch, state)[0]


@pytest.mark.parametrize("alpha", [0.0, 2.5])
def test_the_loss_is_that_of_a_naive_computation(alpha):
    algorithm = make(bc_alpha=alpha)
    steps = windows()
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    assert loss.loss.shape == (1, 5)
    rows = []
    for b in range(5):
        observation, next_observation = steps.observation[b].unsqueeze(1)
        taken = steps.prev_action[b, 1]
        vector = torch.stack([taken[0], taken[1] / 5 - 1]).unsqueeze(0)
        next_action, _ = algorithm._target_policy(next_observation)
        next_q, _ = algorithm._critics.target((next_observation, next_action))
        y = steps.reward[b, 1] + GAMMA * steps.discount[b, 1] * min(next_q[0])
        q, _ = algorithm._critics.online((observation, vector))
        action, _ = algorithm._policy(observation)
        value, _ = algorithm._critics.online((observation, action))
        distance = ((action - vector)[0, 0] ** 2 + (action - vector)[0, 1] ** 2) / 2
        rows.append((sum((y - q[0, k]) ** 2 for k in range(2)), value[0, 0], distance))
    valid = [0, 1, 2, 4]
    size = sum(abs(rows[b][1].item()) for b in valid) / 4
    for b in valid:
        critic_loss, value, distance = rows[b]
        actor_loss = -alpha / size * value
        torch.testing.assert_close(loss.extra.td3.critic_loss[0, b], critic_loss)
        torch.testing.assert_close(loss.extra.td3.actor_loss[0, b], actor_loss)
        torch.testing.assert_close(loss.extra.bc_loss[0, b], distance)
        torch.testing.assert_close(loss.loss[0, b], critic_loss + actor_loss + distance)


def hand_made(policy_value: list[float], distance: list[float]) -> Td3BcInfo:
    """One row [1, B] of steps; the last one is LAST."""
    num_rows = len(policy_value)
    zeros = torch.zeros(1, num_rows)
    step_type = torch.full((1, num_rows), MID)
    step_type[0, -1] = LAST
    td3 = DdpgInfo(
        q=torch.zeros(1, num_rows, 2),
        policy_value=torch.tensor([policy_value]),
        next_value=zeros,
        reward=zeros,
        discount=zeros,
        num_steps=torch.ones(1, num_rows, dtype=torch.int64),
        step_type=step_type,
    )
    return Td3BcInfo(td3, torch.tensor([distance]), ())


def test_by_hand_values_are_scaled_by_their_mean_size_over_the_valid_steps():
    algorithm = make(bc_alpha=2.0)
    loss = algorithm.calc_loss(hand_made([1.0, -3.0, 500.0], [0.25, 0.5, 9.0]))
    # mean |Q| = 2, so λ = 1.
    assert loss.loss[0, :2].tolist() == pytest.approx([-1 + 0.25, 3 + 0.5])


def test_the_loss_does_not_depend_on_the_unit_of_the_reward():
    algorithm = make()
    small, large = (
        algorithm.calc_loss(hand_made([a, -3 * a, 0.0], [0.1, 0.2, 0.0])).loss
        for a in (1e-3, 1e3)
    )
    torch.testing.assert_close(small, large)


def test_values_that_are_all_0_give_a_finite_loss():
    loss = make().calc_loss(hand_made([0.0, 0.0, 0.0], [0.1, 0.2, 0.0]))
    assert loss.loss[0, :2].tolist() == pytest.approx([0.1, 0.2])


def test_the_scale_has_no_gradient():
    algorithm = make(bc_alpha=2.0)
    info = hand_made([1.0, 3.0, 0.0], [0.0] * 3)
    value = info.td3.policy_value.requires_grad_()
    algorithm.calc_loss(info).loss[0, :2].sum().backward()
    assert value.grad[0].tolist() == pytest.approx([-1.0, -1.0, 0.0])


def test_both_terms_are_learnt_by_the_actor_only():
    for part in ("bc_loss", "actor_loss"):
        algorithm = make()
        extra = algorithm.calc_loss(info_of(algorithm, windows())).extra
        getattr(extra if part == "bc_loss" else extra.td3, part).sum().backward()
        changed = {
            name.split(".")[0]
            for name, p in algorithm.named_parameters()
            if p.grad is not None and p.grad.any()
        }
        assert changed == {"_policy"}


def test_what_stands_at_a_last_step_does_not_matter():
    algorithm = make()
    steps = windows()
    losses = []
    for junk in (0.0, 50.0):
        steps.observation[3] = junk
        loss_info, _ = batch_loss(algorithm, batch_of(algorithm, steps))
        losses.append(loss_info.loss.item())
    assert losses[0] == losses[1]


def test_a_stored_action_beyond_the_bounds_counts_as_one_on_the_bound():
    algorithm = make()
    steps = windows()
    steps.prev_action[0, 1] = torch.tensor([3.0, -70.0])
    beyond = info_of(algorithm, steps).distance[0, 0]
    steps.prev_action[0, 1] = torch.tensor([1.0, 0.0])
    torch.testing.assert_close(beyond, info_of(algorithm, steps).distance[0, 0])


def test_only_rows_of_offline_buffers_if_asked_for():
    algorithm = make(offline_rows_only=True)
    steps = windows()
    source = BatchInfo(source=torch.tensor([1, 0, 2, 1, 0]))
    extra = algorithm.calc_loss(info_of(algorithm, steps, source)).extra
    everywhere = make().calc_loss(info_of(make(), steps)).extra
    factor = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    torch.testing.assert_close(extra.bc_loss[0], factor * everywhere.bc_loss[0])
    torch.testing.assert_close(extra.td3.actor_loss, everywhere.td3.actor_loss)
    assert not algorithm.calc_loss(info_of(algorithm, steps)).extra.bc_loss.any()


def test_a_pause_of_the_actor_is_one_of_the_cloning():
    algorithm = make(actor_update_period=2)
    td3 = make(Td3Algorithm, actor_update_period=2)
    td3.load_state_dict(algorithm.state_dict())
    steps = windows()
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    torch.testing.assert_close(loss.loss, td3.calc_loss(info_of(td3, steps)).loss)
    assert loss.extra.bc_loss == ()
    algorithm.after_update(TimeStep(), ())
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    assert loss.extra.bc_loss.shape == (1, 5)


def test_a_reward_of_several_dimensions_is_weighted():
    weights = [1.0, -2.0]
    algorithm = make(reward_spec=TensorSpec((2,)), reward_weights=weights, bc_alpha=3.0)
    steps = windows(reward_dims=(2,))
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    observation = steps.observation[:, 0]
    action, _ = algorithm._policy(observation)
    q = algorithm._critics.online((observation, action))[0][:, 0]
    value = q @ torch.tensor(weights)
    size = value[[0, 1, 2, 4]].abs().mean()
    torch.testing.assert_close(loss.extra.td3.actor_loss[0], -3 * value / size)


class CountingEncoder(EncodingNetwork):
    """Has a state that does not matter: every path must give the same result."""

    def __init__(self, input_spec, **kwargs) -> None:
        super().__init__(input_spec, **kwargs)
        self._state_spec = TensorSpec(())

    def forward(self, inputs, state=()):
        return super().forward(inputs)[0], state + 1


@pytest.mark.parametrize("n", [1, 2])
def test_networks_with_memory_have_the_same_loss(n):
    encoder = {"encoding_network_ctor": CountingEncoder}
    plain = make(n_step=n, offline_rows_only=True)
    with_state = make(
        n_step=n,
        offline_rows_only=True,
        actor_network_ctor=functools.partial(Actor, **encoder),
        critic_network_ctor=functools.partial(Critic, **encoder),
    )
    with_state.load_state_dict(plain.state_dict())
    steps = windows(length=4)
    source = BatchInfo(source=torch.tensor([1, 0, 1, 1, 0]))
    expected = plain.calc_loss(info_of(plain, steps, source)).loss
    loss = with_state.calc_loss(info_of(with_state, steps, source)).loss
    assert loss.shape == expected.shape == (4 - n, 5)
    valid = (steps.step_type[:, : 4 - n] != LAST).T
    torch.testing.assert_close(loss[valid], expected[valid])


def bandit() -> TimeStep:
    """90 one-step episodes near the action -0.5, whose value is themselves."""
    torch.manual_seed(3)
    step_type = torch.tensor([FIRST, LAST], dtype=torch.int32).expand(90, 2)
    action = -0.5 + 0.1 * torch.randn(90, 2, 1)
    return TimeStep(
        step_type=step_type,
        reward=action.squeeze(-1),
        discount=(step_type != LAST).float(),
        observation=torch.ones(90, 2, 3),
        prev_action=action,
    )


def test_a_small_weight_stays_with_the_data_and_a_large_one_leaves_for_higher_values():
    greedy = {}
    for alpha in (0.0, 0.1, 100.0):
        algorithm = make(
            action_spec=LINE, bc_alpha=alpha, spread=0.0, optimizer=Adam(lr=1e-2)
        )
        batch = batch_of(algorithm, bandit())
        for _ in range(200):
            loss_info, info = batch_loss(algorithm, batch)
            update_with_gradient(algorithm, loss_info)
            algorithm.after_update(batch.inputs, info)
        inputs = TimeStep(observation=torch.ones(1, 3))
        greedy[alpha] = algorithm.predict_step(inputs, DdpgState()).output.item()
    assert greedy[0.0] == pytest.approx(-0.5, abs=0.03)
    assert greedy[0.1] == pytest.approx(-0.5, abs=0.2)
    assert greedy[0.1] > greedy[0.0]
    assert greedy[100.0] > 0.0  # where no data are


def test_evaluation_needs_the_actor_only():
    algorithm = make(is_eval=True, optimizer=None, spread=0.0)
    modules = {name.split(".")[0] for name, _ in algorithm.named_parameters()}
    assert modules == {"_policy"}


def test_bad_arguments_are_refused():
    for alpha in (-0.1, math.inf):
        with pytest.raises(ValueError, match="bc_alpha must be finite and not neg"):
            make(bc_alpha=alpha)
    message = "Td3BcAlgorithm cannot handle these actions.*CqlDqnAlgorithm"
    with pytest.raises(ValueError, match=message):
        make(action_spec=BoundedTensorSpec((), torch.int64, 0, 1))


def test_actions_in_a_nest_are_cloned_as_one_vector():
    spec = {"b": BOX, "a": BoundedTensorSpec((), torch.float32, -1, 1)}
    algorithm = make(action_spec=spec)
    steps = windows()
    steps = steps._replace(
        prev_action=nest.map_structure(lambda s: s.sample((5, 2)), spec)
    )
    info = info_of(algorithm, steps)
    action, _ = algorithm._policy(steps.observation[:, 0])
    taken = algorithm._actions.to_vector(
        nest.map_structure(lambda t: t[:, 1], steps.prev_action)
    )
    torch.testing.assert_close(info.distance[0], ((action - taken) ** 2).sum(1) / 3)
