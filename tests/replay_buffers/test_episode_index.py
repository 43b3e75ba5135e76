"""Where episodes begin and end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.data_structures import StepType
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from tests.replay_buffers.marked_steps import saved

F, M, L = int(StepType.FIRST), int(StepType.MID), int(StepType.LAST)
SPEC = {"step_type": BoundedTensorSpec((), torch.int32, 0, 2), "x": TensorSpec(())}


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


def test_episodes_are_found_and_the_newest_one_is_open():
    buffer = ReplayBuffer(SPEC, 2, 10)
    add(buffer, [[F, M, L, F, M], [M, L, F, L, F]])
    assert bounds(buffer, 0) == [(0, 2)] * 3 + [(3, 4)] * 2
    assert bounds(buffer, 1) == [(0, 1)] * 2 + [(2, 3)] * 2 + [(4, 4)]
    add(buffer, [[M, L], [M, M]])
    assert bounds(buffer, 0) == [(0, 2)] * 3 + [(3, 6)] * 4


def test_what_was_overwritten_is_not_part_of_an_episode():
    buffer = ReplayBuffer(SPEC, 1, 4)
    add(buffer, [[F, M, M, M]])
    assert bounds(buffer, 0) == [(0, 3)] * 4
    add(buffer, [[M, L]])
    assert bounds(buffer, 0) == [(2, 5)] * 4


def test_a_cut_episode_ends_at_the_cut():
    buffer = ReplayBuffer(SPEC, 1, 10)
    add(buffer, [[F, M, M]])
    assert bounds(buffer, 0) == [(0, 2)] * 3
    buffer.mark_truncated_end()
    add(buffer, [[M, M]])  # not even a FIRST
    assert bounds(buffer, 0) == [(0, 2)] * 3 + [(3, 4)] * 2


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


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.lists(st.sampled_from([F, M, L]), max_size=9), max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_index_agrees_with_going_through_all_steps(max_length, chunks, asks):
    buffer = ReplayBuffer(SPEC, 1, max_length)
    types: list[int] = []
    for chunk, ask in zip(chunks, asks, strict=False):
        if chunk:
            add(buffer, [chunk])
        types += chunk
        if ask:
            expected = naive_bounds(types, max(0, len(types) - max_length))
            assert bounds(buffer, 0) == expected
