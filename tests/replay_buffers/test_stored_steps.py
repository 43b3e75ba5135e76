"""What is stored, read by environment and position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.data_structures import StepType, TimeStep
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from tests.replay_buffers.marked_steps import (
    all_starts,
    assert_steps,
    fill,
    make_buffer,
    saved,
    steps,
)

F, M, L = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
SPEC = {"step_type": BoundedTensorSpec((), torch.int32, 0, 2), "x": TensorSpec(())}


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
    with pytest.raises(ValueError, match="named step_type, found 0"):
        buffer.mark_truncated_end()


def add(buffer: ReplayBuffer, types: list[list[int]]) -> None:
    """Appends steps of these types, one list per environment."""
    step_type = torch.tensor(types, dtype=torch.int32).T
    batch = {"step_type": step_type, "x": torch.zeros(step_type.shape)}
    buffer.add_batch(batch, time_major=True)


def bounds(buffer: ReplayBuffer, env_id: int) -> list[tuple[int, int]]:
    """First and last position of the episode of every stored step."""
    begin, end = (
        int(positions[env_id])
        for positions in (buffer.begin_positions, buffer.end_positions)
    )
    positions = torch.arange(begin, end)
    begins, ends = buffer.get_episode_bounds(torch.tensor(env_id), positions)
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def naive_bounds(types: list[int], oldest: int) -> list[tuple[int, int]]:
    """The same by going through all steps since the first one."""
    stored = range(oldest, len(types))

    def begins(p: int) -> bool:
        return p == oldest or types[p] == F or types[p - 1] == L

    return [
        (
            max(q for q in stored if q <= p and begins(q)),
            min((q - 1 for q in stored if q > p and begins(q)), default=len(types) - 1),
        )
        for p in stored
    ]


def test_episodes_are_indexed_anew_after_loading_and_clearing(tmp_path):
    buffer, other = ReplayBuffer(SPEC, 1, 10), ReplayBuffer(SPEC, 1, 10)
    add(buffer, [[F, M, L, F]])
    assert bounds(buffer, 0) == [(0, 2)] * 3 + [(3, 3)]
    add(other, [[F, L, F, L, F, M]])
    buffer.load(saved(other, tmp_path))
    assert bounds(buffer, 0) == [(0, 1)] * 2 + [(2, 3)] * 2 + [(4, 5)] * 2
    buffer.clear()
    assert bounds(buffer, 0) == []
    add(buffer, [[M, F]])
    assert bounds(buffer, 0) == [(6, 6), (7, 7)]


def test_steps_that_are_not_stored_have_no_episode():
    buffer = ReplayBuffer(SPEC, 1, 3)
    add(buffer, [[F, M, M, M]])
    with pytest.raises(ValueError, match="position 0 of environment 0 is not stored"):
        buffer.get_episode_bounds(torch.tensor([0]), torch.tensor([0]))


CHUNK = st.lists(st.sampled_from([F, M, L]), min_size=1, max_size=9)


@pytest.mark.ci
@settings(max_examples=100)
@given(
    max_length=st.integers(1, 7),
    operations=st.lists(CHUNK | st.sampled_from(["look", "cut", "clear"]), max_size=9),
)
def test_episodes_are_those_of_going_through_all_steps(max_length, operations):
    buffer = ReplayBuffer(SPEC, 2, max_length)
    types: list[int] = []  # of environment 1; environment 0 has only one episode
    oldest = 0
    for operation in [*operations, "look"]:
        if operation == "look":
            assert bounds(buffer, 1) == naive_bounds(types, oldest)
        elif operation == "cut":
            buffer.mark_truncated_end()
            types[oldest:] = [*types[oldest:-1], *[L] * bool(types[oldest:])]
        elif operation == "clear":
            buffer.clear(torch.tensor([1]))
            oldest = len(types)
        else:
            add(buffer, [[M] * len(operation), operation])
            types += operation
        oldest = max(oldest, len(types) - max_length)
