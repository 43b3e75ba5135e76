"""Recorded actions map back to what an agent would have chosen."""

from __future__ import annotations

import numpy as np
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
    expected = torch.tensor([[np.nan], [np.inf], [-np.inf], [1.0]]).double()
    back = torch.from_numpy(leaf.to_agent(recorded))
    torch.testing.assert_close(back, expected, equal_nan=True)
