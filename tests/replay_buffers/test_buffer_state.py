"""A buffer as plain data: only what is stored, and all of it."""

from __future__ import annotations

import copy

import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import StepType
from alf_lite.errors import CheckpointError
from alf_lite.replay_buffers.buffer_state import leaf_views
from alf_lite.replay_buffers.priorities import PriorityOptions
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.window_sampler import SamplingOptions
from alf_lite.tensor_specs import TensorSpec
from tests.replay_buffers.marked_steps import assert_steps, fill, make_buffer, steps

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


def through_a_file(state: dict, path) -> dict:
    torch.save(state, path)
    return torch.load(path, weights_only=True, mmap=True)


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
    state = through_a_file(buffer.state_dict(), tmp_path / "state.pt")
    restored = make_buffer(2, 6, **KINDS[kind])
    fill(restored, 3)
    restored.load_state_dict(state)
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
            directory=tmp_path if storage == "memmap" else None,
        )

    buffer = make()
    fill(buffer, 1000)
    for _ in range(50):
        _, info = buffer.get_batch(64, 3)
        buffer.update_priority(info.env_ids, info.positions, torch.rand(64) ** 4)
    restored = make()
    restored.load_state_dict(buffer.state_dict())
    positions = []
    for each in (buffer, restored):
        torch.manual_seed(5)
        positions.append([each.get_batch(64, 3)[1].positions for _ in range(100)])
    assert torch.equal(torch.stack(positions[0]), torch.stack(positions[1]))


def test_priorities_are_rounded_alike_after_loading():
    def prioritize(buffer: ReplayBuffer, scale: float) -> None:
        torch.manual_seed(3)
        _, info = buffer.get_batch(50, 1)
        buffer.update_priority(info.env_ids, info.positions, torch.rand(50) * scale)

    buffer = make_buffer(2, 50, prioritized_sampling=True)
    fill(buffer, 60)
    prioritize(buffer, 1e30)
    prioritize(buffer, 1e-3)  # in units of what was large once
    restored = make_buffer(2, 50, prioritized_sampling=True)
    restored.load_state_dict(buffer.state_dict())
    for _ in range(20):
        for each in (buffer, restored):
            prioritize(each, 1.0)
        assert_same(buffer, restored)


def test_only_what_is_stored_is_saved(tmp_path):
    buffer = make_buffer(2, 100_000)
    fill(buffer, 3)
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 10_000
    restored = make_buffer(2, 100_000)
    restored.load_state_dict(buffer.state_dict())
    assert restored.total_size == 6


def test_an_empty_buffer_can_be_saved():
    buffer = make_buffer(2, 5)
    restored = make_buffer(2, 5)
    fill(restored, 3)
    restored.load_state_dict(buffer.state_dict())
    assert restored.total_size == 0
    restored.check_valid()


def test_a_saved_buffer_describes_itself(tmp_path):
    buffer = used_buffer(9)
    state = through_a_file(buffer.state_dict(), tmp_path / "state.pt")
    views = leaf_views(state)
    assert set(views) == {
        "time_step.step_type",
        "time_step.reward",
        "time_step.observation['frame']",
        "time_step.observation['position']",
        "action",
    }
    # Chronologically, environment after environment.
    expected = [*range(4, 10), *range(5, 11)]
    assert views["time_step.observation['position']"].tolist() == expected
    assert views["time_step.reward"][6:].tolist() == [
        float(p) + 100 for p in expected[6:]
    ]


@pytest.mark.parametrize("max_length", [2, 5, 6, 50])
def test_a_buffer_of_another_length_takes_the_newest_steps(max_length):
    buffer = used_buffer(9)
    restored = make_buffer(2, max_length)
    restored.load_state_dict(buffer.state_dict())
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


def test_priorities_follow_their_steps_into_a_shorter_buffer():
    buffer = make_buffer(2, 6, prioritized_sampling=True)
    fill(buffer, 6)
    env_ids = torch.tensor([0, 0, 1, 1])
    positions = torch.tensor([4, 5, 4, 5])
    buffer.update_priority(env_ids, positions, torch.tensor([0.0, 0.0, 0.0, 7.0]))
    restored = make_buffer(2, 2, prioritized_sampling=True)
    restored.load_state_dict(buffer.state_dict())
    _, info = restored.get_batch(50, 1)
    assert set(info.env_ids.tolist()) == {1}
    assert set(info.positions.tolist()) == {5}


def test_fields_are_matched_by_path_and_not_by_order():
    first = ReplayBuffer({"a": TensorSpec((2,)), "b": TensorSpec(())}, 1, 4)
    first.add_batch({"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])})
    state = first.state_dict()
    state["leaves"] = state["leaves"][::-1]
    second = ReplayBuffer({"a": TensorSpec((2,)), "b": TensorSpec(())}, 1, 4)
    second.load_state_dict(state)
    batch, _ = second.get_batch(1, 1)
    assert batch["a"].tolist() == [[[1, 2]]]
    assert batch["b"].tolist() == [[3]]


def test_a_step_added_after_loading_does_not_continue_the_cut_episode():
    buffer = make_buffer(1, 10)
    for position, step_type in enumerate((StepType.FIRST, StepType.MID, StepType.MID)):
        buffer.add_batch(steps([0], position, step_type))
    restored = make_buffer(1, 10)
    restored.load_state_dict(buffer.state_dict())
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


# States that do not fit


def change(state: dict, **changes) -> dict:
    return {**copy.deepcopy(state), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not a saved replay buffer"),
        ({"rows": torch.zeros(3)}, "rows must be a torch.uint8 tensor with 2"),
        ({"begin": [0, 0]}, "begin must be a torch.int64 tensor with 1"),
        ({"end": torch.tensor([1, 1])}, "do not fit 12 rows"),
        ({"begin": torch.tensor([-1, 7])}, "do not fit"),
        ({"begin": torch.tensor([15, -1])}, "do not fit"),
        ({"rows": torch.zeros(12, 4, dtype=torch.uint8)}, "inside of a row"),
        ({"leaves": [["action", [2], "float33", 0]]}, "leaves: 'float33'"),
        ({"leaves": [["action", [2], "float32", -8]]}, "inside of a row"),
        ({"leaves": [["action", [2], "float32", 1]]}, "inside of a row"),
        ({"leaves": [["action", [10**9], "float32", 0]]}, "inside of a row"),
        ({"leaves": [["action", [-1, -2], "float32", 0]]}, "leaves"),
        ({"leaves": 3}, "leaves"),
        ({"sampler": {"weights": torch.zeros(12)}}, "sampled in another way"),
        ({"sampler": None}, "sampler must be a dict"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(changes, message):
    state = used_buffer(9).state_dict()
    restored = make_buffer(2, 6)
    fill(restored, 2)
    with pytest.raises(CheckpointError, match=message):
        restored.load_state_dict(change(state, **changes))
    assert restored.sizes.tolist() == [2, 2]
    assert_steps(restored.gather_all()[0], torch.arange(2)[:, None], torch.arange(2))


@pytest.mark.parametrize("state", [None, {}, {"format": "alf_lite-replay-1"}, []])
def test_something_else_is_refused(state):
    with pytest.raises(CheckpointError, match="saved replay buffer"):
        make_buffer(2, 6).load_state_dict(state)


def test_other_data_are_refused_field_by_field():
    state = ReplayBuffer(
        {"a": TensorSpec((2,)), "b": TensorSpec(())}, 1, 4
    ).state_dict()
    other = ReplayBuffer({"a": TensorSpec((3,)), "c": TensorSpec(())}, 1, 4)
    with pytest.raises(CheckpointError) as error:
        other.load_state_dict(state)
    for line in (
        r"['a']: expected (3,) float32, saved (2,) float32",
        r"['b']: expected nothing, saved () float32",
        r"['c']: expected () float32, saved nothing",
    ):
        assert line in str(error.value)


def test_another_number_of_environments_is_refused():
    state = make_buffer(3, 4).state_dict()
    with pytest.raises(CheckpointError, match="has 3 environments, this one has 2"):
        make_buffer(2, 4).load_state_dict(state)


def test_another_way_of_sampling_is_refused():
    state = make_buffer(2, 4, prioritized_sampling=True).state_dict()
    with pytest.raises(CheckpointError, match="sampled in another way"):
        make_buffer(2, 4).load_state_dict(state)
    with pytest.raises(CheckpointError, match="sampled in another way"):
        used_buffer(**KINDS["both"]).load_state_dict(state)
