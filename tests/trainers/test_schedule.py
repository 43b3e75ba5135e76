"""Tests of alf_lite.trainers.schedule."""

from __future__ import annotations

import pytest

from alf_lite.trainers.schedule import Limits, is_evaluation_due


def slots_at(limits: Limits, num_slots: int, steps_per_iteration: int) -> list[int]:
    """The iterations after which a new slot is completed."""
    previous, found = 0, []
    for iteration in range(1, 1001):
        env_steps = iteration * steps_per_iteration
        slot = limits.slot(iteration, env_steps, num_slots)
        if slot > previous:
            found.append(iteration)
        previous = slot
        if limits.are_reached(iteration, env_steps):
            break
    return found


def test_slots_are_spread_evenly_and_end_with_the_run():
    assert slots_at(Limits(100, 0), 4, 1) == [25, 50, 75, 100]
    assert slots_at(Limits(10, 0), 3, 1) == [4, 7, 10]
    assert slots_at(Limits(0, 1000), 5, 100) == [2, 4, 6, 8, 10]
    assert slots_at(Limits(3, 0), 10, 1) == [1, 2, 3]


def test_twice_the_run_with_twice_the_slots_has_the_same_slots():
    assert slots_at(Limits(200, 0), 8, 1)[:4] == slots_at(Limits(100, 0), 4, 1)


def test_no_slots_are_never_completed():
    assert slots_at(Limits(10, 0), 0, 1) == []


def test_first_limit_reached_ends_the_run():
    limits = Limits(num_iterations=10, num_env_steps=100)
    assert not limits.are_reached(9, 99)
    assert limits.are_reached(10, 0)
    assert limits.are_reached(1, 100)
    assert limits.fraction(5, 80) == pytest.approx(0.8)
    assert limits.fraction(9, 300) == 1.0
    assert not Limits(0, 100).are_reached(10**6, 99)


def test_evaluation_is_due_at_every_multiple_and_once_each():
    asked = [0, 0, 999, 1000, 1000, 1500, 2000]
    last, answers = None, []
    for iteration in asked:
        due = is_evaluation_due(iteration, last, 1000)
        answers.append(due)
        if due:
            last = iteration
    assert answers == [True, False, False, True, False, False, True]
    assert not is_evaluation_due(0, None, 0)
