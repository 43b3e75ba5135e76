"""Rings of rows, by either of the two ways to move rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.row_layout import RowLayout
from alf_lite.tensor_specs import TensorSpec

LAYOUT = RowLayout((TensorSpec((), torch.int64), TensorSpec((3,), torch.uint8)))


@pytest.fixture(
    params=["numpy", "torch", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def make_storage(request, monkeypatch):
    """Makes storages that move rows with numpy, or with torch as on other devices."""
    if request.param == "torch":
        monkeypatch.setattr(RingStorage, "_as_whole", lambda self, rows: rows)
    device = torch.device("cuda" if request.param == "cuda" else "cpu")

    def make(num_environments: int, max_length: int) -> RingStorage:
        return RingStorage(LAYOUT, num_environments, max_length, device)

    return make


def leaves(*numbers) -> list[torch.Tensor]:
    number = torch.tensor(numbers)
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


@pytest.mark.parametrize("num_steps", [1, 3, 4, 40, 41, 140])
def test_single_steps_are_kept_in_order(make_storage, num_steps):
    storage = make_storage(2, 40)
    for step in range(num_steps):
        storage.write(leaves(step, 100 + step))
    expected = list(range(max(0, num_steps - 40), num_steps))
    assert content(storage) == [expected, [100 + step for step in expected]]


@pytest.mark.parametrize("num_steps", [1, 2, 5, 39, 40, 41])
@pytest.mark.parametrize("is_in_step", [True, False])
def test_unrolls_are_kept_in_order(make_storage, num_steps, is_in_step):
    storage = make_storage(2, 40)
    if not is_in_step:
        storage.write_block(leaves([0]), np.array([1]))
    numbers = torch.arange(5 * num_steps)
    for unroll in numbers.split(num_steps):
        storage.write(leaves(*([int(i), 1000 + int(i)] for i in unroll)), num_steps)
    expected = numbers[-40:].tolist()
    of_second = ([] if is_in_step else [0]) + [1000 + int(i) for i in numbers]
    assert content(storage) == [expected, of_second[-40:]]


def test_what_is_written_is_copied(make_storage):
    storage = make_storage(1, 40)
    batch = leaves([1])
    for number in range(3):
        batch[0].fill_(number)
        batch[1].copy_(number + torch.arange(3))
        storage.write(batch)
    assert content(storage) == [[0, 1, 2]]


def test_environments_that_fall_out_of_step_and_meet_again(make_storage):
    storage = make_storage(2, 4)
    storage.write(leaves(0, 10))
    storage.write_block(leaves([1]), np.array([0]))
    storage.write(leaves(2, 11))
    storage.write_block(leaves([12]), np.array([1]))
    storage.write(leaves(3, 13))
    storage.write_block(leaves([4, 14], [5, 15]))
    assert content(storage) == [[2, 3, 4, 5], [12, 13, 14, 15]]
    assert storage.end.tolist() == [6, 6]


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


def test_steps_and_blocks_can_be_mixed(make_storage):
    storage = make_storage(2, 4)
    storage.write(leaves(0, 10))
    storage.write_block(leaves([1, 11], [2, 12]))
    storage.write_block(leaves([13], [14]), np.array([1]))
    storage.write(leaves(3, 15))
    assert content(storage) == [[0, 1, 2, 3], [12, 13, 14, 15]]
    assert storage.end.tolist() == [4, 6]


def test_of_a_block_longer_than_the_ring_the_newest_steps_stay(make_storage):
    storage = make_storage(2, 3)
    storage.write_block(leaves(*([i, 10 + i] for i in range(8))))
    assert content(storage) == [[5, 6, 7], [15, 16, 17]]
    assert storage.end.tolist() == [8, 8]
    storage.write_block(leaves(*([20 + i] for i in range(4))), np.array([0]))
    assert content(storage) == [[21, 22, 23], [15, 16, 17]]


def test_a_block_of_no_steps_or_no_environments_changes_nothing(make_storage):
    storage = make_storage(2, 3)
    storage.write(leaves(1, 2))
    storage.write_block([leaf[:0] for leaf in leaves([1, 2])])
    storage.write_block([leaf[:, :0] for leaf in leaves([1, 2])], np.zeros(0, np.int64))
    assert content(storage) == [[1], [2]]


def test_clearing_forgets_some_environments(make_storage):
    storage = make_storage(3, 3)
    storage.write(leaves(1, 2, 3))
    storage.clear(np.array([1]))
    assert content(storage) == [[1], [], [3]]
    storage.write(leaves(4, 5, 6))
    assert content(storage) == [[1, 4], [5], [3, 6]]
    storage.clear()
    assert content(storage) == [[], [], []]
    assert storage.end.tolist() == [2, 2, 2]


def test_one_leaf_of_some_rows_can_be_overwritten(make_storage):
    storage = make_storage(2, 3)
    storage.write_block(leaves([1, 2], [3, 4]))
    storage.scatter_leaf(1, storage.row_indices(np.array([0, 1]), np.array([1, 0])), 9)
    number, _ = storage.gather(storage.row_indices(np.arange(2), np.arange(2)))
    assert number.tolist() == [1, 4]
    storage.scatter_leaf(0, storage.row_indices(np.array([0]), np.array([1])), 7)
    assert storage.gather_leaf(0, np.array([0, 1])).tolist() == [1, 7]
    assert storage.gather_leaf(1, np.array([0, 1])).tolist() == [[1, 2, 3], [9, 9, 9]]


def test_what_was_gathered_does_not_change_any_more(make_storage):
    storage = make_storage(1, 2)
    storage.write_block(leaves([1], [2]))
    number, _ = storage.gather(np.array([0, 1]))
    storage.write_block(leaves([3], [4]))
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
    storage.write_block(leaves(*([i, i] for i in range(5))))
    storage.clear(np.array([1]))
    positions = np.arange(7)
    stored = storage.is_stored(np.zeros(7, np.int64), positions)
    assert positions[stored].tolist() == [2, 3, 4]
    assert not storage.is_stored(np.ones(7, np.int64), positions).any()
