"""Tests of alf_lite.trainers.hooks."""

from __future__ import annotations

from alf_lite.trainers.hooks import Hook, in_order


def test_lower_priority_first_and_ties_in_the_given_order():
    a, b, c = Hook(20), Hook(10), Hook(20)
    assert in_order([a, b, c]) == [b, a, c]
