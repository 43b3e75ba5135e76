"""The counters of a run."""

from __future__ import annotations

import pytest

from alf_lite.errors import CheckpointError
from alf_lite.utils import schedulers
from alf_lite.utils.progress import Progress, progress


def test_counters_start_at_zero_and_reset():
    p = Progress()
    p.percent, p.iterations, p.env_steps, p.global_counter = 0.5, 1, 2, 3
    p.reset()
    assert p.state_dict() == Progress().state_dict()
    assert set(p.state_dict().values()) == {0}


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


def test_schedulers_read_the_one_progress_of_the_process():
    assert schedulers.progress is progress
