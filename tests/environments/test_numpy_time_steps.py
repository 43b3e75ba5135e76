"""Actions in [-1, 1] reach the environment as elements of its space."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.environments.numpy_time_steps import ActionLeaf
from alf_lite.environments.space_specs import RecordedValues, action_leaf_spec
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.environments.torch_time_steps import TorchActionLeaf
from alf_lite.errors import DivergedError

INF = np.inf


def leaf_of(space):
    return SpaceTree(space, "action").leaves[0]


def given_and_chosen(space, action):
    """What the environment is given, and what is kept of the agent's action."""
    leaf = leaf_of(space)
    dtype = action_leaf_spec(leaf).dtype
    chosen = torch.empty((len(action), *leaf.shape), dtype=dtype).numpy()
    given = ActionLeaf(leaf, len(action)).to_environment(action, chosen)
    return given, chosen


@pytest.fixture(params=["numpy", "torch"])
def converted(request):
    """(space, agent's action [B, ...]) -> the environment's, as an array."""

    def with_numpy(space, action):
        return given_and_chosen(space, action)[0]

    def with_torch(space, action):
        leaf = TorchActionLeaf(leaf_of(space), len(action), torch.device("cpu"))
        return leaf.to_environment(leaf.read(action)).numpy()

    return with_numpy if request.param == "numpy" else with_torch


def test_bounded_elements_are_clipped_and_rescaled(converted):
    space = spaces.Box(
        np.array([-2, 0, 5], np.float32), np.array([2, 10, 5], np.float32)
    )
    action = torch.tensor([[0.5, 0.5, 0.5], [-1, -1, -1], [1, 1, 1], [-7, 7, 7]])
    expected = [[1, 7.5, 5], [-2, 0, 5], [2, 10, 5], [-2, 10, 5]]
    result = converted(space, action)
    assert result.tolist() == expected
    assert result.dtype == np.float32


def test_the_result_is_always_an_element_of_the_box(converted):
    rng = np.random.default_rng(0)
    low = rng.normal(size=50).astype(np.float32)
    high = low + rng.random(50).astype(np.float32)
    space = spaces.Box(low, high)
    action = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    result = converted(space, action)
    assert all(space.contains(row) for row in result)
    assert np.array_equal(converted(space, torch.ones(1, 50))[0], high)
    assert np.array_equal(converted(space, -torch.ones(1, 50))[0], low)


def test_elements_without_two_bounds_pass_through_up_to_the_bound(converted):
    space = spaces.Box(
        np.array([-INF, 0, -INF], np.float32), np.array([INF, INF, 3], np.float32)
    )
    action = torch.tensor([[-7.5, -7.5, -7.5], [7.5, 7.5, 7.5]])
    assert converted(space, action).tolist() == [[-7.5, 0, -7.5], [7.5, 7.5, 3]]


def test_double_precision_boxes_get_double_precision(converted):
    result = converted(spaces.Box(-3, 3, (1,), np.float64), torch.tensor([[1.0]]))
    assert result.dtype == np.float64
    assert result.tolist() == [[3]]
    # The float32 next to 0.1 is above it. The third element has one bound only.
    low, high = np.array([-0.1, -0.3, -INF]), np.array([0.1, 0.3, 0.1])
    one_sided = spaces.Box(low[2:], high[2:], dtype=np.float64)
    assert converted(one_sided, torch.ones(1, 1)).tolist() == [[0.1]]
    space = spaces.Box(low, high, dtype=np.float64)
    ends = torch.tensor([[-2.0] * 3, [2.0] * 3])
    expected = [[-0.1, -0.3, -2], [0.1, 0.3, 0.1]]
    assert converted(space, ends).tolist() == expected
    recorded = RecordedValues(spaces.Discrete(2), space).actions[()]
    assert recorded.to_environment(ends.numpy()).tolist() == expected


def test_integers_are_shifted_by_the_start_of_the_space(converted):
    action = torch.tensor([0, 2])
    assert converted(spaces.Discrete(3, start=-1), action).tolist() == [-1, 1]
    assert converted(spaces.Discrete(3), action).tolist() == [0, 2]
    space = spaces.MultiDiscrete([3, 3], start=[5, -5])
    rows = torch.tensor([[0, 0], [2, 1]])
    assert converted(space, rows).tolist() == [[5, -5], [7, -4]]
    box = spaces.Box(10, 20, (2,), np.int32)
    assert converted(box, rows).tolist() == [[10, 10], [12, 11]]
    assert converted(box, rows).dtype == np.int32


def test_the_agents_action_is_copied_and_cast_to_its_spec():
    action = torch.tensor([1, 2], dtype=torch.int32)
    given, chosen = given_and_chosen(spaces.Discrete(3, start=1), action)
    action.zero_()
    assert chosen.dtype == np.int64
    assert chosen.tolist() == [1, 2]
    assert given.tolist() == [2, 3]
    rescaled = spaces.Box(-2, 2, (1,))
    assert given_and_chosen(rescaled, torch.tensor([[3.0]]))[1].tolist() == [[3]]


def test_what_the_environment_is_given_is_its_own():
    for space in (spaces.Discrete(3), spaces.Box(-1, 1, ()), spaces.Box(-2, 2, ())):
        given, chosen = given_and_chosen(space, torch.tensor([1, 1]))
        given[:] = 0
        assert chosen.tolist() == [1, 1]


def test_actions_with_a_gradient_are_accepted():
    action = torch.tensor([[0.5]], requires_grad=True)
    assert given_and_chosen(spaces.Box(-1, 1, (1,)), action)[1].tolist() == [[0.5]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_actions_that_are_not_finite_blame_the_policy(bad):
    space = spaces.Box(-1, 1, (3,))
    action = torch.zeros(2, 3)
    action[1, 2] = bad
    with pytest.raises(DivergedError, match=r"action\[2\] = .* for environment 1"):
        given_and_chosen(space, action)
    huge = torch.full((2, 3), 1e30)  # overflows when squared, and is finite
    assert given_and_chosen(space, huge)[0].tolist() == [[1, 1, 1]] * 2


def test_wrong_actions_are_named_with_path_and_shape():
    space = spaces.Dict({"arm": spaces.Discrete(3)})
    leaf, chosen = ActionLeaf(leaf_of(space), 2), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=r"action\['arm'\]: expected shape \(2,\)"):
        leaf.to_environment(torch.zeros(2, 1, dtype=torch.int64), chosen)
    with pytest.raises(TypeError, match=r"action\['arm'\]: expected integers"):
        leaf.to_environment(torch.zeros(2), chosen)
    with pytest.raises(TypeError, match=r"action\['arm'\]: expected a tensor"):
        leaf.to_environment(np.zeros(2), chosen)
