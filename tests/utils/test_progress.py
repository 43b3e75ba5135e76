"""The counters of a run."""

from __future__ import annotations

import pytest

from alf_lite.errors import CheckpointError
from alf_lite.utils.progress import Limits, Progress


def test_counters_start_at_zero_and_move_with_the_run():
    p = Progress()
    assert set(p.state_dict().values()) == {0}
    p.move_to(3, 60, Limits(num_iterations=6, num_env_steps=100))
    assert (p.iterations, p.env_steps, p.percent) == (3, 60, 0.6)


def test_state_survives_a_round_trip():
    p, q = Progress(), Progress()
    p.percent, p.iterations, p.env_steps, p.global_counter = 0.5, 1, 2**40, 3
    q.load_state_dict(p.state_dict())
    assert q.state_dict() == p.state_dict()
    assert "env_steps=1099511627776" in repr(q)


@pytest.mark.parametrize("change", [{"steps": 1}, {"percent": None}])
def test_a_state_with_other_counters_is_refused(change):
    state = {**Progress().state_dict(), **change}
    state = {name: value for name, value in state.items() if value is not None}
    p = Progress()
    with pytest.raises(CheckpointError, match="expected the counters"):
        p.load_state_dict(state)
    assert p.state_dict() == Progress().state_dict()


def test_a_misspelt_counter_is_an_error():
    with pytest.raises(AttributeError):
        Progress().iteration = 1


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
