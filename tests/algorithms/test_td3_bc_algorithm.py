from __future__ import annotations

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.ddpg_algorithm import DdpgInfo, DdpgState
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.parts.return_heads import QuantileHead
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm, Td3BcInfo
from alf_lite.data_structures import BatchInfo, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from tests.algorithms import actor_critics
from tests.replayed_steps import (
    BOX,
    FIRST,
    LAST,
    MID,
    batch_of,
    info_of,
    update,
    windows,
)

LINE = BoundedTensorSpec((1,), torch.float32, -1, 1)


def make(cls=Td3BcAlgorithm, **kwargs):
    """With an update of the actor at every step."""
    options = {"actor_update_period": 1, "target_noise_std": 0.0, **kwargs}
    return actor_critics.make(cls, **options)


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


def test_values_that_are_all_0_give_a_finite_loss():
    loss = make().calc_loss(hand_made([0.0, 0.0, 0.0], [0.1, 0.2, 0.0]))
    assert loss.loss[0, :2].tolist() == pytest.approx([0.1, 0.2])


def test_a_stored_action_beyond_the_bounds_counts_as_one_on_the_bound():
    algorithm = make()
    steps = windows(BOX)
    steps.prev_action[0, 1] = torch.tensor([3.0, -70.0])
    beyond = info_of(algorithm, steps).distance[0, 0]
    steps.prev_action[0, 1] = torch.tensor([1.0, 0.0])
    torch.testing.assert_close(beyond, info_of(algorithm, steps).distance[0, 0])


def test_a_pause_of_the_actor_is_one_of_the_cloning():
    algorithm = make(actor_update_period=2)
    td3 = make(Td3Algorithm, actor_update_period=2)
    td3.load_state_dict(algorithm.state_dict())
    steps = windows(BOX)
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    torch.testing.assert_close(loss.loss, td3.calc_loss(info_of(td3, steps)).loss)
    assert loss.extra.bc_loss == ()
    algorithm.after_update(TimeStep(), ())
    loss = algorithm.calc_loss(info_of(algorithm, steps))
    assert loss.extra.bc_loss.shape == (1, 5)


@pytest.mark.parametrize("alpha", [0.0, 2.5])
def test_squares_of_actions_weigh_the_same_whatever_the_values(alpha):
    plain, costly = (make(bc_alpha=alpha, action_l2=weight) for weight in (0.0, 0.3))
    costly.load_state_dict(plain.state_dict())
    steps = windows(BOX)
    action, _ = plain._policy(steps.observation[:, 0])
    without, with_cost = (a.calc_loss(info_of(a, steps)) for a in (plain, costly))
    torch.testing.assert_close(
        (with_cost.loss - without.loss)[0], 0.3 * action.square().sum(1)
    )


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


@pytest.mark.ci
def test_a_small_weight_stays_with_the_data_and_a_large_one_leaves_for_higher_values():
    greedy = {}
    for alpha in (0.0, 100.0):
        algorithm = make(
            action_spec=LINE, bc_alpha=alpha, spread=0.0, optimizer=Adam(lr=1e-2)
        )
        update(algorithm, bandit(), 120)
        inputs = TimeStep(observation=torch.ones(1, 3))
        greedy[alpha] = algorithm.predict_step(inputs, DdpgState()).output.item()
    assert greedy[0.0] == pytest.approx(-0.5, abs=0.03)
    assert greedy[100.0] > 0.0  # where no data are


def test_actions_in_a_nest_are_cloned_as_one_vector():
    spec = {"b": BOX, "a": BoundedTensorSpec((), torch.float32, -1, 1)}
    algorithm = make(action_spec=spec)
    steps = windows(spec)
    info = info_of(algorithm, steps)
    action, _ = algorithm._policy(steps.observation[:, 0])
    taken = algorithm._actions.to_vector(
        nest.map_structure(lambda t: t[:, 1], steps.prev_action)
    )
    torch.testing.assert_close(info.distance[0], ((action - taken) ** 2).sum(1) / 3)


# ReBRAC


def test_targets_stay_near_what_the_data_did_next():
    algorithm = make(critic_bc_weight=0.7)
    steps = windows(BOX, length=3)
    steps.prev_action[0, 2] = torch.tensor([5.0, 0.0])  # beyond the bounds
    steps.step_type[1, 1] = LAST
    info = info_of(algorithm, steps)
    plain = make()
    plain.load_state_dict(algorithm.state_dict())
    expected = info_of(plain, nest.narrow(steps, 0, 2, dim=1)).td3.next_value
    target = algorithm._target_policy(steps.observation[:, 1])[0]
    taken = algorithm._actions.to_vector(steps.prev_action[:, 2]).clamp(-1, 1)
    assert info.td3.next_value.shape == (1, 5)
    for b in (0, 1, 2, 4):  # row 3 begins with a LAST: nothing is trained there
        distance = sum((target[b, i] - taken[b, i]) ** 2 for i in range(2)).detach()
        if steps.step_type[b, 1] == LAST:
            distance = 0.0
        torch.testing.assert_close(
            info.td3.next_value[0, b], expected[0, b] - 0.7 * distance
        )


def test_targets_of_own_steps_are_as_free_as_their_actions():
    algorithm = make(critic_bc_weight=0.7, offline_rows_only=True)
    steps, is_offline = windows(BOX, length=3), torch.tensor([0, 1, 0, 0, 1])

    def next_value(source: list[int]):
        batch_info = BatchInfo(source=torch.tensor(source))
        batch = batch_of(algorithm, steps, batch_info)
        return LossFunction(algorithm).info(batch)[0].td3.next_value[0]

    near, free = next_value([1] * 5), next_value([0] * 5)
    assert (near < free)[[0, 4]].all()
    expected = torch.where(is_offline.bool(), near, free)
    torch.testing.assert_close(next_value(is_offline.tolist()), expected)


def test_what_has_no_near_targets_is_refused():
    with pytest.raises(ConfigError, match="together with a return_model"):
        make(critic_bc_weight=0.1, return_model=QuantileHead())
    with pytest.raises(ConfigError, match="together with a reward of several"):
        make(critic_bc_weight=0.1, reward_spec=TensorSpec((2,)))
    with pytest.raises(ValueError, match="critic_bc_weight"):
        make(critic_bc_weight=-0.1)
