"""Rows found by a mass of the running sum of weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.replay_buffers.sum_tree import SumTree

# (p + 0)^0.6 of the priorities 1, 2, 4, 8.
WEIGHTS = np.array([1, 2, 4, 8]) ** 0.6
weights = st.floats(0, 1e6, allow_subnormal=False).map(lambda w: w if w > 1e-9 else 0.0)


def table_of(values) -> SumTree:
    table = SumTree(len(values))
    table.set(np.arange(len(values)), np.asarray(values, float))
    return table


def found(table: SumTree, *masses: float) -> list[int]:
    return table.find(np.array(masses)).tolist()


def test_masses_fall_into_the_parts_of_their_rows():
    table = table_of(WEIGHTS)
    assert table.total == pytest.approx(8.295316, abs=1e-6)
    assert found(table, 0, 0.99, 1.0, 2.5, 2.52, 4.9) == [0, 0, 1, 1, 2, 3]
    assert found(table, 1.036914, 3.110743, 5.184572, 7.258401) == [1, 2, 3, 3]


def test_masses_of_the_total_and_more_find_the_last_row_that_has_a_weight():
    table = table_of([*WEIGHTS, 0.0, 0.0])
    total = table.total
    assert found(table, total - 1e-9, total, 2 * total) == [3, 3, 3]


def test_rows_of_weight_zero_are_never_found():
    table = table_of([0, 1, 0, 0, 2, 0])
    rows = table.find(np.linspace(0, 3, 1000))
    assert set(rows.tolist()) == {1, 4}


def test_nothing_can_be_found_without_weights():
    with pytest.raises(ValueError, match="nothing to find"):
        SumTree(5).find(np.zeros(1))


@settings(max_examples=60)
@given(
    st.integers(1, 3000),
    st.lists(st.lists(st.tuples(st.integers(0, 2999), weights), max_size=20)),
)
def test_table_agrees_with_the_running_sum_after_any_updates(num_rows, updates):
    table = SumTree(num_rows)
    expected = np.zeros(num_rows)
    for update in updates:
        rows = np.array([row % num_rows for row, _ in update], np.int64)
        values = np.array([weight for _, weight in update])
        table.set(rows, values)
        for row, value in zip(rows, values, strict=True):
            expected[row] = value  # of two for one row the last one stays
        table.check_valid()
    got = table.get(np.arange(num_rows))
    # Rounded up, to two units if the unit has grown since.
    assert ((got >= expected) & (got <= expected + 2 * table.unit)).all()
    assert ((got > 0) == (expected > 0)).all()
    positive = got[got > 0]
    assert table.total == math.fsum(got)  # exactly
    assert table.maximum == got.max()
    assert table.minimum == (positive.min() if len(positive) else 0)
    if len(positive):
        # Sums of multiples of one unit are exact here, too.
        sums = got.cumsum()
        masses = np.linspace(0, sums[-1], 50)[:-1]
        assert (table.find(masses) == sums.searchsorted(masses, "right")).all()


@pytest.mark.parametrize("num_rows", [1, 2, 63, 64, 65, 300_000])
def test_every_row_can_be_found_at_any_size(num_rows):
    table = SumTree(num_rows)
    table.set(np.arange(num_rows), np.ones(num_rows))
    rows = np.unique(np.linspace(0, num_rows - 1, 500).astype(np.int64))
    assert (table.find(rows + 0.5) == rows).all()
    assert (table.find(rows.astype(float)) == rows).all()


def test_the_sums_do_not_depend_on_the_order_of_updates():
    rng = np.random.default_rng(0)
    values = rng.random(10_000) ** 8
    at_once, one_by_one = SumTree(10_000), SumTree(10_000)
    at_once.set(np.arange(10_000), values)
    for rows in np.array_split(rng.permutation(10_000), 300):
        one_by_one.set(rows, rng.random(len(rows)))
        one_by_one.set(rows, values[rows])
    assert at_once.total == one_by_one.total  # to the bit
    masses = rng.random(1000) * at_once.total
    assert (at_once.find(masses) == one_by_one.find(masses)).all()


def test_a_weight_however_small_is_rounded_up_to_one_unit():
    table = table_of([1.0, 1e-300, 0.0])
    assert table.get(np.arange(3)).tolist() == [1.0, table.unit, 0.0]
    assert table.unit == 2.0**-51  # 3 rows share 53 bits


def test_a_larger_weight_coarsens_the_unit_of_all():
    table = table_of([1.0, 0.3, 1e-9])
    table.set(np.array([0]), np.array([1e15]))
    table.check_valid()
    assert table.get(np.arange(3)).tolist() == [1e15, 0.5, 0.5]
    assert table.unit == 0.5
    assert (table.maximum, table.minimum, table.total) == (1e15, 0.5, 1e15 + 1)
    # It does not become finer again by itself: what was rounded stays rounded.
    table.set(np.array([0]), np.array([0.1]))
    assert table.get(np.array([0])).tolist() == [0.5]
    table.clear()
    assert (table.total, table.maximum, table.minimum) == (0, 0, 0)
    table.set(np.array([0]), np.array([0.1]))
    assert table.maximum == pytest.approx(0.1, abs=1e-15)


def test_a_cleared_table_can_go_on_as_another_one():
    first, second = table_of([1.0, 1e12, 1.0]), table_of([3.0, 1.0, 1.0])
    second.clear(first.unit)
    second.set(np.arange(3), first.get(np.arange(3)))
    for table in (first, second):
        table.set(np.array([1]), np.array([0.123456]))
    assert first.get(np.arange(3)).tolist() == second.get(np.arange(3)).tolist()
    assert first.unit == second.unit


def test_weights_that_cannot_be_added_up_are_refused():
    table = table_of([1.0, 2.0])
    for weight in (np.inf, 1e308):
        with np.errstate(over="ignore"), pytest.raises(ValueError, match="too large"):
            table.set(np.array([0, 1]), np.array([1.0, weight]))
    assert table.get(np.arange(2)).tolist() == [1, 2]


def test_frequencies_are_proportional_to_the_weights():
    table = table_of([1, 2, 3, 4])
    rng = np.random.default_rng(0)
    rows = table.find(rng.random(100_000) * table.total)
    counts = np.bincount(rows, minlength=4)
    expected = 100_000 * np.array([0.1, 0.2, 0.3, 0.4])
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_extremes_survive_ties_and_rows_given_twice():
    table = table_of([5, 5, 1, 1, 3])
    assert (table.maximum, table.minimum) == (5, 1)
    table.set(np.array([0]), np.array([2.0]))
    assert table.maximum == 5
    table.set(np.array([1, 1]), np.array([9.0, 4.0]))
    assert table.maximum == 4
    table.set(np.array([2, 3]), np.array([0.0, 2.0]))
    assert table.minimum == 2
    table.set(np.arange(5), np.zeros(5))
    assert (table.maximum, table.minimum, table.total) == (0, 0, 0)
    table.set(np.array([2]), np.array([0.5]))
    assert (table.maximum, table.minimum) == (0.5, 0.5)
