from __future__ import annotations

import pytest

from alf_lite.algorithms.parts.critics import UpdateCounter


@pytest.mark.parametrize("period", [1, 2, 3])
def test_an_update_counter_is_due_once_per_period(period):
    counter = UpdateCounter(period)
    announced = []
    due = []
    for _ in range(6):
        announced.append(counter.is_due)
        due.append(counter.advance())
    assert due == announced == [n % period == 0 for n in range(1, 7)]
    assert counter.count == 6


def test_an_update_counter_continues_from_its_state():
    counter = UpdateCounter(4)
    for _ in range(6):
        counter.advance()
    resumed = UpdateCounter(4)
    resumed.load_state_dict(counter.state_dict())
    assert [resumed.advance() for _ in range(3)] == [False, True, False]


@pytest.mark.parametrize("period", [0, -1, 1.5, True, "2"])
def test_a_period_is_a_positive_integer(period):
    with pytest.raises(ValueError, match="period must be a positive integer"):
        UpdateCounter(period)
