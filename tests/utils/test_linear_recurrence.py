"""The solution of a linear recurrence equals a loop over its steps."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.utils.linear_recurrence import linear_recurrence


def naive_recurrence(multipliers, increments, initial):
    rows, y = [], initial
    for a, b in zip(multipliers, increments, strict=True):
        y = a * y + b
        rows.append(y)
    return np.stack(rows)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 8, 9, 64, 100])
def test_equals_a_loop(num_steps):
    rng = np.random.default_rng(num_steps)
    multipliers = rng.uniform(-1, 1, (num_steps, 3, 1))
    increments = rng.normal(size=(num_steps, 3, 2))
    initial = rng.normal(size=(3, 2))
    np.testing.assert_allclose(
        linear_recurrence(multipliers, increments, initial),
        naive_recurrence(multipliers, increments, initial),
        rtol=1e-12,
        atol=1e-13,
    )


def test_powers_by_hand():
    ones, zeros = np.ones(4), np.zeros(4)
    y = linear_recurrence(0.5 * ones, zeros, np.array(16.0))
    np.testing.assert_array_equal(y, [8.0, 4.0, 2.0, 1.0])


def test_zero_multiplier_starts_anew():
    multipliers = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    y = linear_recurrence(multipliers, np.ones(5), np.array(100.0))
    np.testing.assert_array_equal(y, [101.0, 102.0, 1.0, 2.0, 3.0])


def test_arguments_are_left_as_they_were():
    arguments = np.full(9, 0.5), np.ones(9), np.array(2.0)
    before = [a.copy() for a in arguments]
    linear_recurrence(*arguments)
    for a, b in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_steps_is_an_error():
    with pytest.raises(ValueError, match="T=0"):
        linear_recurrence(np.ones(0), np.ones(0), np.array(0.0))
