"""Tests of alf_lite.trainers.hooks."""

from __future__ import annotations

from alf_lite.trainers.hooks import Hook, Hooks


def test_lower_priority_first_and_ties_in_the_given_order():
    a, b, c = Hook(20), Hook(10), Hook(20)
    assert list(Hooks([a, b, c])) == [b, a, c]


def test_states_are_named_by_class_and_order_and_empty_ones_left_out():
    class Keeps(Hook):
        def __init__(self, value: int) -> None:
            super().__init__()
            self.value = value

        def state_dict(self):
            return {"value": self.value} if self.value else {}

        def load_state_dict(self, state):
            self.value = state["value"]

    hooks = Hooks([Keeps(1), Hook(), Keeps(0), Keeps(3)])
    states = hooks.state_dict()
    assert states == {"Keeps": {"value": 1}, "Keeps-3": {"value": 3}}
    others = Hooks([Keeps(7), Keeps(8), Keeps(9)])
    others.load_state_dict(states)
    assert [hook.value for hook in others] == [1, 8, 3]
