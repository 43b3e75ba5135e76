"""Arrays that several processes map hold what was written, and leave nothing behind."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
from gymnasium import spaces

from alf_lite.environments.env_server import SharedSteps
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.errors import EnvError

SPACE = spaces.Dict(
    {"a": spaces.Box(0, 255, (3,), np.uint8), "b": spaces.Tuple((spaces.Discrete(5),))}
)


@pytest.fixture
def pair():
    """Two views of the same memory, and its file descriptor."""
    views = [
        SharedSteps(2, SPACE, SPACE, (3,), InfoKeys({"x": (2,)})) for _ in range(2)
    ]
    descriptor = views[0].create()
    views[1].attach(descriptor)
    yield (*views, descriptor)
    os.close(descriptor)


def test_what_one_side_writes_the_other_reads(pair):
    one, two, _ = pair
    one.write_observation(1, {"a": np.array([1, 2, 3], np.uint8), "b": (4,)})
    one.rewards[1] = [1, 2, 3]
    one.terminated[0] = True
    one.infos["x"][1] = [5, 6]
    observation = two.read_observations()
    assert observation["a"].tolist() == [[0, 0, 0], [1, 2, 3]]
    assert observation["b"][0].tolist() == [0, 4]
    assert two.rewards.tolist() == [[0, 0, 0], [1, 2, 3]]
    assert two.terminated.tolist() == [True, False]
    assert two.truncated.tolist() == [False, False]
    assert two.read_infos()["x"].tolist() == [[0, 0], [5, 6]]
    two.write_actions({"a": np.full((2, 3), 7, np.uint8), "b": (np.array([1, 2]),)})
    action = one.read_action(1)
    assert action["a"].tolist() == [7, 7, 7]
    assert action["b"] == (2,)


def test_the_arrays_do_not_overlap(pair):
    one, _, _ = pair
    arrays = [*one.observations, *one.actions, one.rewards, one.terminated]
    arrays += [one.truncated, *one.infos.values()]
    for i, array in enumerate(arrays):
        array[...] = i % 2 if array.dtype == bool else i
    for i, array in enumerate(arrays):
        assert (array == (i % 2 if array.dtype == bool else i)).all()


def test_what_was_read_does_not_change(pair):
    one, two, _ = pair
    before, info = two.read_observations(), two.read_infos()
    action = two.read_action(0)
    one.observations[0][...] = 9
    one.infos["x"][...] = 9
    one.actions[0][...] = 9
    assert (before["a"] == 0).all()
    assert (info["x"] == 0).all()
    assert (action["a"] == 0).all()


def test_nothing_is_broadcast(pair):
    one, _, _ = pair
    with pytest.raises(EnvError, match=r"observation\['a'\].*shape \(1,\)"):
        one.write_observation(0, {"a": np.zeros(1, np.uint8), "b": (0,)})
    with pytest.raises(ValueError, match=r"action\['a'\]: expected shape \(2, 3\)"):
        one.write_actions({"a": np.zeros((1, 3), np.uint8), "b": (np.zeros(2, int),)})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_memory_has_no_name_in_the_file_system(pair):
    target = os.readlink(f"/proc/self/fd/{pair[2]}")
    assert target.endswith("(deleted)")
