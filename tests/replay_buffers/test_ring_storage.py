"""Rings of rows, by either of the two ways to move rows."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.row_layout import RowLayout
from alf_lite.tensor_specs import TensorSpec

LAYOUT = RowLayout((TensorSpec((), torch.int64), TensorSpec((3,), torch.uint8)))


class MovedByTorch(RingStorage):
    """Moves rows as on other devices."""

    def _as_whole(self, rows):
        return rows


WAYS = pytest.mark.parametrize(
    "way", ["numpy", "torch", pytest.param("cuda", marks=pytest.mark.gpu)]
)


def storage_of(way: str, num_environments: int, max_length: int) -> RingStorage:
    kind = MovedByTorch if way == "torch" else RingStorage
    device = torch.device("cuda" if way == "cuda" else "cpu")
    return kind(LAYOUT, num_environments, max_length, device)


@pytest.fixture(params=WAYS.args[1])
def make_storage(request):
    return functools.partial(storage_of, request.param)


def leaves(numbers) -> list[torch.Tensor]:
    number = torch.as_tensor(numbers)
    return [number, (number[..., None] + torch.arange(3)).to(torch.uint8)]


def content(storage: RingStorage) -> list[list[int]]:
    """The numbers stored of every environment, oldest first."""
    storage.flush()
    storage.check_valid()
    numbers = []
    for env_id, (begin, end) in enumerate(zip(storage.begin, storage.end, strict=True)):
        rows = storage.row_indices(np.array(env_id), np.arange(begin, end))
        number, vector = storage.gather(rows)
        assert torch.equal(storage.gather_leaf(0, rows), number)
        expected = (number[:, None].cpu() + torch.arange(3)).to(torch.uint8)
        assert torch.equal(vector.cpu(), expected)
        numbers.append(number.tolist())
    return numbers


NUM_STEPS = st.sampled_from([0, 1, 1, 2, 3, 5, 39, 40, 41, 90])
SOME = st.lists(st.integers(0, 2), unique=True, max_size=3)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), NUM_STEPS.filter(bool)),
    st.tuples(st.just("one by one"), NUM_STEPS),
    st.tuples(st.just("block"), NUM_STEPS, st.none() | SOME),
    st.tuples(st.just("clear"), st.none() | SOME),
    st.tuples(st.just("forget"), st.integers(0, 5)),
)


@pytest.mark.ci
@WAYS
@settings(max_examples=60)
@given(
    max_length=st.sampled_from([1, 2, 3, 7, 40, 100]),
    operations=st.lists(OPERATIONS, max_size=12),
)
def test_what_is_stored_is_what_lists_would_hold(way, max_length, operations):
    storage = storage_of(way, 3, max_length)
    lists: list[list[int]] = [[], [], []]
    ends = [0, 0, 0]

    def new(num_steps: int, ids: list[int]) -> np.ndarray:
        """Numbers [T, B] that come next, which the lists take in."""
        steps = np.array(
            [[1000 * e + ends[e] + t for e in ids] for t in range(num_steps)]
        )
        for column, e in enumerate(ids):
            ends[e] += num_steps
            lists[e] += steps[:, column].tolist() if num_steps else []
            del lists[e][:-max_length]
        return steps.reshape(num_steps, len(ids)).astype(np.int64)

    for name, *arguments in operations:
        if name == "write":
            storage.write(leaves(new(arguments[0], [0, 1, 2])), arguments[0])
        elif name == "one by one":
            for _ in range(arguments[0]):
                storage.write(leaves(new(1, [0, 1, 2])[0]))
        elif name == "block":
            num_steps, ids = arguments
            steps = leaves(new(num_steps, [0, 1, 2] if ids is None else ids))
            storage.write_block(steps, None if ids is None else np.array(ids, np.int64))
        elif name == "clear":
            ids = arguments[0]
            storage.clear(None if ids is None else np.array(ids, np.int64))
            for e in range(3) if ids is None else ids:
                lists[e] = []
        else:
            storage.forget_oldest(arguments[0])
            lists = [one[-arguments[0] :] if arguments[0] else [] for one in lists]
    assert content(storage) == lists
    assert storage.end.tolist() == ends


def test_what_is_written_is_copied(make_storage):
    storage = make_storage(1, 40)
    batch = leaves([1])
    for number in range(3):
        batch[0].fill_(number)
        batch[1].copy_(number + torch.arange(3))
        storage.write(batch)
    assert content(storage) == [[0, 1, 2]]


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 20), st.integers(-2, 6)), min_size=1, max_size=4),
)
def test_rows_between_positions(max_length, ranges):
    storage = RingStorage(LAYOUT, len(ranges), max_length, torch.device("cpu"))
    first, sizes = np.array(ranges).T
    rows = storage.rows_between(first, first + np.minimum(sizes, max_length))
    assert rows.tolist() == [
        e * max_length + (begin + i) % max_length
        for e, (begin, size) in enumerate(ranges)
        for i in range(min(size, max_length))
    ]


def test_one_leaf_of_some_rows_can_be_overwritten(make_storage):
    storage = make_storage(2, 3)
    storage.write_block(leaves([[1, 2], [3, 4]]))
    storage.scatter_leaf(1, storage.row_indices(np.array([0, 1]), np.array([1, 0])), 9)
    number, _ = storage.gather(storage.row_indices(np.arange(2), np.arange(2)))
    assert number.tolist() == [1, 4]
    storage.scatter_leaf(0, storage.row_indices(np.array([0]), np.array([1])), 7)
    assert storage.gather_leaf(0, np.array([0, 1])).tolist() == [1, 7]
    assert storage.gather_leaf(1, np.array([0, 1])).tolist() == [[1, 2, 3], [9, 9, 9]]


def test_what_was_gathered_does_not_change_any_more(make_storage):
    storage = make_storage(1, 2)
    storage.write_block(leaves([[1], [2]]))
    number, _ = storage.gather(np.array([0, 1]))
    storage.write_block(leaves([[3], [4]]))
    assert number.tolist() == [1, 2]


@given(st.integers(1, 8), st.data())
def test_windows_run_on_behind_the_seam(max_length, data):
    storage = RingStorage(LAYOUT, 3, max_length, torch.device("cpu"))
    length = data.draw(st.integers(1, max_length))
    windows = data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1)
    )
    env_ids, positions = np.array(windows).T
    expected = [
        [e * max_length + (p + t) % max_length for t in range(length)]
        for e, p in windows
    ]
    first_rows = storage.row_indices(env_ids, positions)
    assert storage.window_rows(env_ids, first_rows, length).tolist() == expected


def test_which_steps_are_stored(make_storage):
    storage = make_storage(2, 3)
    storage.write_block(leaves([[i, i] for i in range(5)]))
    storage.clear(np.array([1]))
    positions = np.arange(7)
    stored = storage.is_stored(np.zeros(7, np.int64), positions)
    assert positions[stored].tolist() == [2, 3, 4]
    assert not storage.is_stored(np.ones(7, np.int64), positions).any()
