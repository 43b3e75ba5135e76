"""What is stored, read by environment and position."""

from __future__ import annotations

import pytest
import torch

from alf_lite.data_structures import StepType, TimeStep
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import TensorSpec
from tests.replay_buffers.marked_steps import (
    all_starts,
    assert_steps,
    fill,
    make_buffer,
    steps,
)


def test_fields_of_stored_steps_can_be_read():
    buffer = make_buffer(2, 5)
    fill(buffer, 8)
    env_ids = torch.tensor([[0], [1]])
    positions = torch.tensor([[3, 7, 4], [5, 5, 6]])
    expected = steps(env_ids, positions)
    reward = buffer.get_field("time_step.reward", env_ids, positions)
    assert torch.equal(reward, expected.time_step.reward)
    both = buffer.get_field(
        {"o": "time_step.observation", "a": "action"}, env_ids, positions
    )
    assert torch.equal(both["a"], expected.action)
    assert torch.equal(both["o"]["frame"], expected.time_step.observation["frame"])


def test_windows_can_be_read_where_they_are_wanted():
    buffer = make_buffer(2, 5)
    fill(buffer, 8)
    env_ids, positions = torch.tensor([1, 0, 1]), torch.tensor([3, 4, 5])
    batch = buffer.get_windows(env_ids, positions, 3)
    assert_steps(batch, env_ids[:, None], positions[:, None] + torch.arange(3))
    for wrong in (2, 6):
        with pytest.raises(ValueError, match="is not stored"):
            buffer.get_windows(env_ids, torch.tensor([3, 3, wrong]), 3)


@pytest.mark.parametrize("position", [2, 8])
def test_steps_that_are_not_stored_cannot_be_read(position):
    buffer = make_buffer(2, 5)
    fill(buffer, 8)
    with pytest.raises(
        ValueError, match=rf"position {position} of environment 1 .* 3 to 7"
    ):
        buffer.get_field("action", torch.tensor([0, 1]), torch.tensor([5, position]))


def test_positions_go_on_after_clearing():
    buffer = make_buffer(2, 5)
    fill(buffer, 3)
    buffer.clear()
    assert buffer.total_size == 0
    with pytest.raises(ValueError, match="has 0 steps"):
        buffer.get_batch(1, 1)
    fill(buffer, 2)
    assert all_starts(buffer, 1) == {(0, 3), (0, 4), (1, 3), (1, 4)}
    buffer.clear(torch.tensor([1]))
    assert buffer.sizes.tolist() == [2, 0]
    assert all_starts(buffer, 2) == {(0, 3)}


def test_the_newest_steps_can_be_made_the_last_of_their_episodes():
    buffer = make_buffer(3, 5)
    fill(buffer, 7)
    buffer.clear(torch.tensor([1]))
    buffer.add_batch(steps([2], [7]), torch.tensor([2]))
    buffer.mark_truncated_end()
    buffer.add_batch(steps(torch.arange(3), buffer.end_positions, StepType.FIRST))
    types = {
        env_id: buffer.get_field(
            "time_step.step_type", torch.tensor(env_id), torch.arange(begin, end)
        ).tolist()
        for env_id, begin, end in ((0, 3, 8), (1, 7, 8), (2, 4, 9))
    }
    mid, last, first = int(StepType.MID), int(StepType.LAST), int(StepType.FIRST)
    assert types == {
        0: [mid, mid, mid, last, first],
        1: [first],
        2: [mid, mid, mid, last, first],
    }
    # Nothing but the type has changed.
    assert (0, 6) in all_starts(buffer, 2)


def test_a_buffer_without_step_types_says_what_it_needs():
    buffer = ReplayBuffer(TimeStep(reward=TensorSpec(())), 1, 3)
    buffer.add_batch(TimeStep(reward=torch.zeros(1)))
    with pytest.raises(ValueError, match="step_type_field"):
        buffer.mark_truncated_end()
