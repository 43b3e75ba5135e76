"""Recorded actions map back to what an agent would have chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.environments import space_specs
from alf_lite.environments.numpy_time_steps import ActionLeaf
from alf_lite.environments.space_specs import RecordedValues
from alf_lite.environments.space_tree import SpaceTree


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-2.0, 6.0, (3,)),
        spaces.Box(
            np.array([-1, 0, -np.inf], np.float32),
            np.array([3, np.inf, np.inf], np.float32),
        ),
        spaces.Box(-3, 4, (2,), np.int16),
        spaces.Discrete(4, start=7),
        spaces.MultiDiscrete([3, 4], start=[1, -2]),
        spaces.MultiBinary(3),
    ],
)
def test_what_an_environment_is_given_maps_back(space):
    [leaf] = SpaceTree(space, "action").leaves
    torch.manual_seed(0)
    action = space_specs.action_leaf_spec(leaf).sample((50,))
    given = ActionLeaf(leaf, 50).to_environment(action, np.empty_like(action))
    back = RecordedValues(space, space).actions[()].to_agent(given)
    assert back == pytest.approx(action.numpy(), abs=1e-6)


def test_actions_map_to_what_the_environment_is_given():
    space = spaces.Box(
        np.array([-2, 0, -np.inf], np.float32), np.array([6, 3, np.inf], np.float32)
    )
    leaf = RecordedValues(space, space).actions[()]
    given = leaf.to_environment(np.array([[-1, 1, 9], [0, 0, -9], [3, -3, 0]]))
    assert given.tolist() == [[-2, 3, 9], [2, 1.5, -9], [6, 0, 0]]
    assert given.dtype == np.float32


def test_integers_begin_again_where_those_of_the_space_do():
    observation = spaces.Discrete(3, start=5)
    action = spaces.Box(-3, 4, (1,), np.int16)
    values = RecordedValues(observation, action)
    assert values.observations[()].to_environment(np.array([0, 2])).tolist() == [5, 7]
    given = values.actions[()].to_environment(np.array([[0], [7]]))
    assert (given.tolist(), given.dtype) == ([[-3], [4]], np.int16)


def test_leaves_are_found_by_their_keys():
    space = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3, start=5)])})
    values = RecordedValues(space, space)
    leaf = values.observations["a", "0"]
    assert leaf.to_agent(np.array([5, 7])).tolist() == [0, 2]


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
