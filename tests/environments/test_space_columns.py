"""Batches are stacked from rows without broadcasting, rounding or aliasing."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from alf_lite.environments.space_tree import Column, RowError, SpaceColumns
from alf_lite.errors import EnvError

FLOATS = Column("observation", (2,), np.float32)
INTEGERS = Column("observation", (2,), np.int32)


def test_rows_of_the_right_kind_are_stacked_into_fresh_memory():
    rows = [np.array([1, 2], np.float32), np.array([3, 4], np.float32)]
    batch = FLOATS.stack(rows)
    assert batch.dtype == np.float32
    assert batch.tolist() == [[1, 2], [3, 4]]
    rows[0][:] = 9
    assert batch.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "row", [[1, 2], (1.0, 2.0), np.array([1, 2]), np.array([1.0, 2.0]), [True, 2]]
)
def test_numbers_of_other_kinds_become_floats(row):
    batch = FLOATS.stack([np.array([5, 6], np.float32), row])
    assert batch.dtype == np.float32
    assert batch[1].tolist() == [1, 2]


def test_integers_of_another_size_are_converted_if_they_fit():
    batch = INTEGERS.stack([np.array([1, 2], np.int64), [3, 4]])
    assert batch.dtype == np.int32
    assert batch.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(RowError) as error:
        INTEGERS.stack([[0, 0], np.array([1, 2**40])])
    assert error.value.row == 1


@pytest.mark.parametrize(
    "row",
    [
        np.zeros(1, np.float32),
        np.zeros(3, np.float32),
        np.zeros((1, 2), np.float32),
        np.float32(1),
        None,
        [None, None],
        ["1", "2"],
        np.zeros(2, complex),
        np.zeros(2, object),
        [[1], [2, 3]],
        {"a": 1},
    ],
)
@pytest.mark.parametrize("all_rows", [False, True])
def test_nothing_is_broadcast_or_guessed(row, all_rows):
    good = np.zeros(2, np.float32)
    rows = [row, row] if all_rows else [good, row]
    with pytest.raises(RowError, match="observation: expected float32") as error:
        FLOATS.stack(rows)
    assert error.value.row == (0 if all_rows else 1)


def test_floats_are_never_rounded_to_integers():
    with pytest.raises(EnvError, match="expected int32"):
        INTEGERS.stack([[0, 0], [1.0, 2.0]])


def test_flags_may_be_zero_and_one_but_nothing_else():
    flags = Column("terminated", (), np.bool_)
    assert flags.stack([0, True, np.bool_(True)]).tolist() == [False, True, True]
    for wrong in (2, 0.0, "no", None, [True]):
        with pytest.raises(EnvError, match="terminated"):
            flags.stack([True, wrong])


def test_a_row_without_a_key_is_named():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})
    columns = SpaceColumns(space, "observation")
    with pytest.raises(RowError, match=r"missing \['b'\]") as error:
        columns.stack([{"a": 0, "b": 0}, {"a": 0}])
    assert error.value.row == 1
