"""Rewards with returns of their own are summed as a loop over their steps does."""

from __future__ import annotations

import pytest
import torch

from alf_lite.algorithms.parts.return_streams import ReturnStream, ReturnStreams
from alf_lite.data_structures import StepType
from alf_lite.utils import value_ops

FIRST, MID, LAST = (int(t) for t in StepType)
LAMBDA = 0.9


def some_steps():
    """Rows with a terminal end, a time limit, an end as the last step, and waiting."""
    torch.manual_seed(0)
    rows = [
        [MID, LAST, FIRST, MID, MID, LAST],
        [FIRST, MID, MID, LAST, FIRST, MID],
        [MID, LAST, LAST, LAST, FIRST, MID],
        [FIRST, MID, MID, LAST, LAST, LAST],
    ]
    step_type = torch.tensor(rows, dtype=torch.int32)
    discount = torch.ones(4, 6)
    discount[0, 1] = 0.0
    reward, value = torch.rand(4, 6, 2), torch.randn(4, 6, 2)
    reward[step_type == FIRST] = 0.0
    return reward, value, step_type, discount


def continuing_advantages(reward, value, step_type, gamma):
    """Of one row, [T-1]: as if there were one long episode without its LAST values."""
    num_steps = len(reward)
    value = value.clone()
    for t in reversed(range(num_steps - 1)):
        if step_type[t] == LAST:
            value[t] = gamma * value[t + 1]
    advantages, later = [], 0.0
    for t in reversed(range(num_steps - 1)):
        delta = reward[t + 1] + gamma * value[t + 1] - value[t]
        later = delta + gamma * LAMBDA * later
        advantages.insert(0, later)
    return torch.stack(advantages)


def test_one_reward_ends_with_the_episode_and_another_goes_on():
    reward, value, step_type, discount = some_steps()
    streams = ReturnStreams([ReturnStream(), ReturnStream(0.8, True)], gamma=0.95)
    args = reward, value, step_type, discount
    advantages = streams.advantages(*args, LAMBDA, time_major=False)
    expected = value_ops.generalized_advantage_estimation(
        reward[..., 0],
        value[..., 0],
        step_type,
        0.95 * discount,
        LAMBDA,
        time_major=False,
    )
    torch.testing.assert_close(advantages[..., 0], expected)
    for b in range(4):
        expected = continuing_advantages(
            reward[b, :, 1], value[b, :, 1], step_type[b], 0.8
        )
        valid = step_type[b, :-1] != LAST
        torch.testing.assert_close(advantages[b, :, 1][valid], expected[valid])
    swapped = [x.transpose(0, 1) for x in args]
    again = streams.advantages(*swapped, LAMBDA)
    torch.testing.assert_close(again.transpose(0, 1), advantages)


def test_an_end_costs_nothing_of_what_goes_on():
    """By hand: a reward of 1 at every step, whose value is 1 / (1 - γ) everywhere."""
    step_type = torch.tensor([[FIRST, MID, LAST, FIRST, MID]], dtype=torch.int32)
    discount = torch.tensor([[1.0, 1.0, 0.0, 1.0, 1.0]])
    reward = (step_type != FIRST).float().unsqueeze(-1)
    value = torch.full((1, 5, 1), 2.0)
    streams = ReturnStreams([ReturnStream(0.5, True)], gamma=0.9)
    advantages = streams.advantages(
        reward, value, step_type, discount, 1.0, time_major=False
    )
    # Only the step to FIRST has no reward, for which V(LAST) = ½ · 2.
    expected = torch.tensor([1 + 0.5 * (1 + 0.5 * 1) - 2, 1 + 0.5 * 1 - 2])
    torch.testing.assert_close(advantages[0, :2, 0], expected)
    assert advantages[0, 3, 0] == 0.0  # 1 + ½ · 2 - 2


def test_a_discount_is_a_share():
    with pytest.raises(ValueError, match=r"gamma of reward 1 .*got 1\.5"):
        ReturnStreams([ReturnStream(), ReturnStream(1.5)], gamma=0.9)
