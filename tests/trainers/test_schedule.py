"""Tests of alf_lite.trainers.schedule."""

from __future__ import annotations

from alf_lite.trainers.schedule import is_evaluation_due


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
