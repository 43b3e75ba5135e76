"""Every fixed-shape space becomes the right spec."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.environments.space_specs import action_spec, observation_spec
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

INF = np.inf


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (
            spaces.Box(-2, 3, (2,), np.float64),
            BoundedTensorSpec((2,), torch.float32, -2, 3),
        ),
        (spaces.Box(-INF, INF, (2, 3), np.float64), TensorSpec((2, 3))),
        (spaces.Box(-INF, INF, (), np.float16), TensorSpec(())),
        (
            spaces.Box(np.array([0, -INF], np.float32), np.array([1, 5], np.float32)),
            BoundedTensorSpec((2,), torch.float32, [0, -INF], [1, 5]),
        ),
        # "No bound", written as the largest number.
        (spaces.Box(-3.4e38, 3.4e38, (1,), np.float32), TensorSpec((1,))),
        (spaces.Box(-1e308, 1e308, (1,), np.float64), TensorSpec((1,))),
        (
            spaces.Box(0, 255, (4, 4, 3), np.uint8),
            BoundedTensorSpec((4, 4, 3), torch.uint8, 0, 255),
        ),
        (
            spaces.Box(0, 60000, (2,), np.uint16),
            BoundedTensorSpec((2,), torch.int32, 0, 60000),
        ),
        (spaces.Discrete(4), BoundedTensorSpec((), torch.int64, 0, 3)),
        (spaces.Discrete(4, start=-7), BoundedTensorSpec((), torch.int64, 0, 3)),
        (
            spaces.MultiDiscrete([2, 5], start=[1, -1]),
            BoundedTensorSpec((2,), torch.int64, 0, [1, 4]),
        ),
        (
            spaces.MultiDiscrete([[2, 5], [3, 4]]),
            BoundedTensorSpec((2, 2), torch.int64, 0, [[1, 4], [2, 3]]),
        ),
        (spaces.MultiBinary(3), BoundedTensorSpec((3,), torch.int8, 0, 1)),
        (spaces.MultiBinary((2, 3)), BoundedTensorSpec((2, 3), torch.int8, 0, 1)),
        (
            spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2),))}),
            {"a": (BoundedTensorSpec((), torch.int64, 0, 1),)},
        ),
    ],
)
def test_observations(space, expected):
    assert observation_spec(space) == expected


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-2, 3, (2,)), BoundedTensorSpec((2,), torch.float32, -1, 1)),
        (spaces.Box(-INF, INF, (2,)), TensorSpec((2,))),
        (
            spaces.Box(
                np.array([0, -INF, 0], np.float32), np.array([9, 5, INF], np.float32)
            ),
            BoundedTensorSpec((3,), torch.float32, [-1, -INF, 0], [1, 5, INF]),
        ),
        (
            spaces.Box(3, 7, (2,), np.int32),
            BoundedTensorSpec((2,), torch.int64, 0, 4),
        ),
        (spaces.Discrete(4, start=2), BoundedTensorSpec((), torch.int64, 0, 3)),
        (
            spaces.MultiDiscrete([2, 5]),
            BoundedTensorSpec((2,), torch.int64, 0, [1, 4]),
        ),
        (spaces.MultiBinary((2, 3)), BoundedTensorSpec((2, 3), torch.int8, 0, 1)),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, ()))),
            (
                BoundedTensorSpec((), torch.int64, 0, 1),
                BoundedTensorSpec((), torch.float32, -1, 1),
            ),
        ),
    ],
)
def test_actions(space, expected):
    assert action_spec(space) == expected


def test_integer_actions_without_useful_bounds_are_refused():
    space = spaces.Dict({"a": spaces.Box(-(2**40), 2**40, (1,), np.int64)})
    with pytest.raises(ConfigError, match=r"action\['a'\].*too many values"):
        action_spec(space)
