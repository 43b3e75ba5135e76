"""A buffer in a file: only what is stored, and all of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import StepType
from alf_lite.errors import CheckpointError
from alf_lite.replay_buffers.priority_options import PriorityOptions
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.window_sampler import SamplingOptions
from alf_lite.tensor_specs import TensorSpec
from tests.replay_buffers.marked_steps import (
    assert_steps,
    fill,
    make_buffer,
    saved,
    steps,
)

KINDS = {
    "uniform": {},
    "prioritized": {"prioritized_sampling": True},
    "limited": {"sampling": SamplingOptions(max_use=50, max_staleness=5)},
    "both": {
        "prioritized_sampling": True,
        "sampling": SamplingOptions(max_use=50),
        "num_earliest_frames_ignored": 1,
    },
}


def used_buffer(num_steps: int = 8, **kwargs) -> ReplayBuffer:
    """One that has seen some life; environment 1 is a step ahead."""
    buffer = make_buffer(2, 6, **kwargs)
    fill(buffer, num_steps)
    buffer.add_batch(steps([1], [num_steps]), torch.tensor([1]))
    buffer.set_iteration(1)
    _, info = buffer.get_batch(4, 2)
    if kwargs.get("prioritized_sampling"):
        buffer.update_priority(info.env_ids, info.positions, torch.rand(4) * 5)
    fill(buffer, 1)
    return buffer


def assert_same(first: ReplayBuffer, second: ReplayBuffer) -> None:
    for name in ("sizes", "begin_positions", "end_positions"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    for seed in range(3):
        drawn = []
        for buffer in (first, second):
            torch.manual_seed(seed)
            drawn.append(buffer.get_batch(4, 2))
        for a, b in zip(*map(nest.flatten, drawn), strict=True):
            assert torch.equal(a, b)
    second.check_valid()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_steps", [2, 8, 30])
def test_a_saved_buffer_goes_on_in_the_same_way(tmp_path, kind, num_steps):
    buffer = used_buffer(num_steps, **KINDS[kind])
    file = saved(buffer, tmp_path)
    restored = make_buffer(2, 6, **KINDS[kind])
    fill(restored, 3)
    restored.load(file)
    assert_same(buffer, restored)
    for each in (buffer, restored):
        fill(each, 2)
    assert_same(buffer, restored)


@pytest.mark.parametrize("storage", ["memory", "memmap"])
def test_a_hundred_draws_are_the_same_after_loading(tmp_path, storage):
    def make() -> ReplayBuffer:
        return make_buffer(
            3,
            400,
            prioritized_sampling=True,
            priority=PriorityOptions(alpha=0.7),
            storage=storage,
            directory=tmp_path / "map" if storage == "memmap" else None,
        )

    buffer = make()
    fill(buffer, 1000)
    for _ in range(50):
        _, info = buffer.get_batch(64, 3)
        buffer.update_priority(info.env_ids, info.positions, torch.rand(64) ** 4)
    restored = make()
    restored.load(saved(buffer, tmp_path))
    positions = []
    for each in (buffer, restored):
        torch.manual_seed(5)
        positions.append([each.get_batch(64, 3)[1].positions for _ in range(100)])
    assert torch.equal(torch.stack(positions[0]), torch.stack(positions[1]))


def test_priorities_are_rounded_alike_after_loading(tmp_path):
    def prioritize(buffer: ReplayBuffer, scale: float) -> None:
        torch.manual_seed(3)
        _, info = buffer.get_batch(50, 1)
        buffer.update_priority(info.env_ids, info.positions, torch.rand(50) * scale)

    buffer = make_buffer(2, 50, prioritized_sampling=True)
    fill(buffer, 60)
    prioritize(buffer, 1e30)
    prioritize(buffer, 1e-3)  # in units of what was large once
    restored = make_buffer(2, 50, prioritized_sampling=True)
    restored.load(saved(buffer, tmp_path))
    for _ in range(20):
        for each in (buffer, restored):
            prioritize(each, 1.0)
        assert_same(buffer, restored)


def test_only_what_is_stored_is_saved(tmp_path):
    buffer = make_buffer(2, 100_000)
    fill(buffer, 3)
    file = saved(buffer, tmp_path)
    assert file.path.stat().st_size < 10_000
    restored = make_buffer(2, 100_000)
    restored.load(file)
    assert restored.total_size == 6


def test_rows_are_written_from_where_they_lie(tmp_path):
    buffer = make_buffer(2, 6)
    fill(buffer, 8)  # around the seam: two slices of each environment
    header, *rows = buffer.save().pieces()
    assert len(header) % 4096 == 0
    sizes = [np.frombuffer(piece, np.uint8).size for piece in rows[:4]]
    row_bytes = buffer.num_bytes // 12
    assert sizes == [4 * row_bytes, 2 * row_bytes] * 2
    stored = buffer._storage.rows.numpy()
    assert all(np.shares_memory(np.asarray(piece), stored) for piece in rows[:4])


def test_an_empty_buffer_can_be_saved(tmp_path):
    buffer = make_buffer(2, 5)
    restored = make_buffer(2, 5)
    fill(restored, 3)
    restored.load(saved(buffer, tmp_path))
    assert restored.total_size == 0
    restored.check_valid()


@pytest.mark.parametrize("max_length", [2, 5, 6, 50])
def test_a_buffer_of_another_length_takes_the_newest_steps(tmp_path, max_length):
    buffer = used_buffer(9)
    restored = make_buffer(2, max_length)
    restored.load(saved(buffer, tmp_path))
    size = min(max_length, 6)
    assert restored.sizes.tolist() == [size, size]
    for env_id, end in enumerate(buffer.end_positions.tolist()):
        positions = torch.arange(end - size, end)
        env_ids = torch.full((size,), env_id)
        reward = restored.get_field("time_step.reward", env_ids, positions)
        assert torch.equal(reward, steps(env_ids, positions).time_step.reward)
    fill(restored, 3)
    batch, info = restored.get_batch(20, 2)
    assert_steps(
        batch, info.env_ids[:, None], info.positions[:, None] + torch.arange(2)
    )


def test_priorities_follow_their_steps_into_a_shorter_buffer(tmp_path):
    buffer = make_buffer(2, 6, prioritized_sampling=True)
    fill(buffer, 6)
    env_ids = torch.tensor([0, 0, 1, 1])
    positions = torch.tensor([4, 5, 4, 5])
    buffer.update_priority(env_ids, positions, torch.tensor([0.0, 0.0, 0.0, 7.0]))
    restored = make_buffer(2, 2, prioritized_sampling=True)
    restored.load(saved(buffer, tmp_path))
    _, info = restored.get_batch(50, 1)
    assert set(info.env_ids.tolist()) == {1}
    assert set(info.positions.tolist()) == {5}


class FirstA(NamedTuple):
    a: Any = ()
    b: Any = ()


class FirstB(NamedTuple):
    b: Any = ()
    a: Any = ()


def test_fields_are_matched_by_path_and_not_by_order(tmp_path):
    a, b = TensorSpec((2,)), TensorSpec(())
    first = ReplayBuffer(FirstA(a, b), 1, 4)
    for i in range(6):
        first.add_batch(FirstA(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0 + i])))
    second = ReplayBuffer(FirstB(b, a), 1, 4)
    second.load(saved(first, tmp_path))
    batch, _ = second.get_batch(1, 4)
    assert batch.a.tolist() == [[[1, 2]] * 4]
    assert batch.b.tolist() == [[5, 6, 7, 8]]


def test_a_step_added_after_loading_does_not_continue_the_cut_episode(tmp_path):
    buffer = make_buffer(1, 10)
    for position, step_type in enumerate((StepType.FIRST, StepType.MID, StepType.MID)):
        buffer.add_batch(steps([0], position, step_type))
    restored = make_buffer(1, 10)
    restored.load(saved(buffer, tmp_path))
    restored.mark_truncated_end()
    for position, step_type in ((3, StepType.FIRST), (4, StepType.MID)):
        restored.add_batch(steps([0], position, step_type))
    batch, info = restored.get_batch(50, 2)
    types = batch.time_step.step_type
    crossing = info.positions == 2
    assert crossing.any()
    assert (types[crossing, 0] == StepType.LAST).all()
    begins, ends = restored.get_episode_bounds(torch.tensor(0), torch.arange(5))
    assert begins.tolist() == [0, 0, 0, 3, 3]
    assert ends.tolist() == [2, 2, 2, 4, 4]


# Files that do not fit


def test_other_data_are_refused_field_by_field(tmp_path):
    file = saved(
        ReplayBuffer({"a": TensorSpec((2,)), "b": TensorSpec(())}, 1, 4), tmp_path
    )
    other = ReplayBuffer({"a": TensorSpec((3,)), "c": TensorSpec(())}, 1, 4)
    with pytest.raises(CheckpointError) as error:
        other.load(file)
    for line in (
        r"['a']: expected (3,) float32, saved (2,) float32",
        r"['b']: expected nothing, saved () float32",
        r"['c']: expected () float32, saved nothing",
    ):
        assert line in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_environments": 3}, "has 2 environments, the replay buffer has 3"),
    ],
)
def test_a_buffer_of_another_kind_is_refused_and_changes_nothing(
    tmp_path, arguments, message
):
    file = saved(used_buffer(9), tmp_path)
    restored = make_buffer(**{"num_environments": 2, "max_length": 6, **arguments})
    fill(restored, 2)
    with pytest.raises(CheckpointError, match=message):
        restored.load(file)
    num = restored.num_environments
    assert restored.sizes.tolist() == [2] * num
    assert_steps(restored.gather_all()[0], torch.arange(num)[:, None], torch.arange(2))


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_a_buffer_that_draws_in_another_way_takes_the_steps_as_new_ones(
    tmp_path, caplog, before, after
):
    file = saved(used_buffer(9, **KINDS[before]), tmp_path)
    restored = used_buffer(4, **KINDS[after])
    restored.set_iteration(20)
    restored.load(file)
    restored.check_valid()
    assert restored.sizes.tolist() == [6, 6]
    assert ("12 steps count as new ones" in caplog.text) == (before != after)
    if before == after:
        return
    # As if they had just come.
    expected = make_buffer(2, 6, **KINDS[after])
    expected.set_iteration(20)
    fill(expected, 10)
    assert restored.num_windows(2) == expected.num_windows(2)
    torch.manual_seed(0)
    _, info = restored.get_batch(4, 2)
    if "prioritized_sampling" in KINDS[after]:
        assert (info.importance_weights == 1).all()
    # An age counts from here on.
    restored.set_iteration(25)
    assert restored.num_windows(2) > 0
    restored.set_iteration(26)
    if after == "limited":
        assert restored.num_windows(2) == 0


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_what_is_known_of_steps_goes_on_beside_the_same_steps(before, after):
    buffer, restored = used_buffer(**KINDS[before]), used_buffer(**KINDS[after])
    assert restored.load_sampling_state(buffer.sampling_state()) == (before == after)
    restored.check_valid()
    if before == after:
        assert_same(buffer, restored)
