"""Tests of alf_lite.environments.episode_memory."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from alf_lite.environments.episode_memory import ActionLog
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.errors import CheckpointError


def make_log() -> ActionLog:
    return ActionLog(SpaceTree(gymnasium.spaces.Discrete(99), "action").leaves, 3)


def lengths(log: ActionLog) -> list[int | None]:
    return [None if one is None else len(one[0]) for one in log.episodes()]


@pytest.mark.parametrize("num_steps", [0, 1, 7])
def test_episodes_come_back_also_those_that_begin_at_either_end(num_steps):
    log = make_log()
    for step in range(num_steps):
        log.add([np.array([step, 10 + step, 20 + step])])
        if step == 3:
            log.begin([1])
    log.begin([2])
    other = make_log()
    other.load_state_dict(log.state_dict())
    assert lengths(other) == lengths(log)
    assert lengths(log)[2] == 0
    for one, same in zip(log.episodes(), other.episodes(), strict=True):
        assert np.array_equal(one[0], same[0])


@pytest.mark.parametrize("start", [-1, 4, 10**30, "1", None, 0.5])
def test_starts_that_are_no_steps_are_refused(start):
    log = make_log()
    for step in range(2):
        log.add([np.array([step, step, step])])
    state = log.state_dict()
    state["starts"][1] = start
    with pytest.raises(CheckpointError, match="where nothing is known"):
        make_log().load_state_dict(state)
