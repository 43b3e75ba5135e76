"""Recorded actions map back to what an agent would have chosen."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.environments.space_specs import RecordedValues


def test_actions_map_to_what_the_environment_is_given():
    space = spaces.Box(
        np.array([-2, 0, -np.inf], np.float32), np.array([6, 3, np.inf], np.float32)
    )
    leaf = RecordedValues(space, space).actions[()]
    given = leaf.to_environment(np.array([[-1, 1, 9], [0, 0, -9], [3, -3, 0]]))
    assert given.tolist() == [[-2, 3, 9], [2, 1.5, -9], [6, 0, 0]]
    assert given.dtype == np.float32


def test_a_box_of_one_point_has_the_action_zero():
    space = spaces.Box(np.float32(3), np.float32(3), (1,))
    leaf = RecordedValues(space, space).actions[()]
    assert leaf.to_agent(np.full((2, 1), 3.0)).tolist() == [[0], [0]]


def test_values_that_are_not_finite_stay_so():
    space = spaces.Box(-2.0, 2.0, (1,))
    leaf = RecordedValues(space, space).actions[()]
    recorded = np.array([[np.nan], [np.inf], [-np.inf], [5.0]])
    expected = torch.tensor([[np.nan], [np.inf], [-np.inf], [2.5]]).double()
    back = torch.from_numpy(leaf.to_agent(recorded))
    torch.testing.assert_close(back, expected, equal_nan=True)


# (space, that it holds, that it does not, the range in the message)
IMAGE = spaces.Box(0, 255, (2,), np.uint8)
RANGES = [
    (spaces.Discrete(5), [0, 4], [-1, 5], "0 to 4"),
    (spaces.Discrete(5, start=3), [3, 7], [2, 8], "3 to 7"),
    (
        spaces.MultiDiscrete([2, 3], start=[0, -1]),
        [[0, -1], [1, 1]],
        [[1, -2], [0, 2]],
        "-1 to 1",
    ),
    (spaces.MultiBinary(2), [[0, 1], [1, 0]], [[0, 2], [1, -1]], "0 to 1"),
    (IMAGE, [[0, 0], [255, 255]], [[0, 256], [0, -1]], "0 to 255"),
    (spaces.Box(0, 5, (2,), np.int8), [[5, 0]], [[0, 6], [0, -1]], "0 to 5"),
    (spaces.Box(0, 1, (2,), np.bool_), [[0, 1]], [[0, 2]], "0 to 1"),
]


@pytest.mark.parametrize(("space", "inside", "outside", "ends"), RANGES)
def test_integers_that_a_space_cannot_hold_are_named(space, inside, outside, ends):
    leaf = RecordedValues(space, space).observations[()]
    leaf.check_range("observation", np.array(inside))
    for wrong in outside:
        batch = np.array([inside[0], wrong])
        element, value = ("[1]", wrong[1]) if batch.ndim == 2 else ("", wrong)
        text = f"observation{element}: expected an integer from {ends}, as in {space}"
        with pytest.raises(ValueError, match=re.escape(f"{text}, got {value}")):
            leaf.check_range("observation", batch)


def test_images_are_not_looked_at():
    class Unread(np.ndarray):
        def __lt__(self, other):
            raise AssertionError("compared")

    leaf = RecordedValues(IMAGE, IMAGE).observations[()]
    leaf.check_range("observation", np.zeros((1, 2), np.uint8).view(Unread))
