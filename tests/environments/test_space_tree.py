"""Spaces are taken apart and put together in the order of nests."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from alf_lite import nest
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.errors import ConfigError, EnvError

NESTED = spaces.Dict(
    [
        ("b", spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary((2, 2))))),
        ("a", spaces.Dict({"x": spaces.Box(0, 1, (2,))})),
    ]
)


def test_leaves_have_paths_and_come_in_the_order_of_nest():
    tree = SpaceTree(NESTED, "observation")
    assert [leaf.path for leaf in tree.leaves] == [
        "observation['a']['x']",
        "observation['b'][0]",
        "observation['b'][1]",
    ]
    joined = tree.join([10, 20, 30])
    assert joined == {"a": {"x": 10}, "b": (20, 30)}
    assert nest.flatten(joined) == [10, 20, 30]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {"x": 0}}, r"missing \['b'\], unexpected \[\]"),
        ({"a": {"x": 0}, "b": (1, 2), "c": 0}, r"unexpected \['c'\]"),
        ({"a": {}, "b": (1, 2)}, r"observation\['a'\]: expected the keys \['x'\]"),
        ({"a": {"x": 0}, "b": (1,)}, r"observation\['b'\].*length 2, got length 1"),
        ({"a": {"x": 0}, "b": 7}, r"observation\['b'\]: expected a tuple, got int 7"),
        (np.zeros(3), r"expected a dict, got float64 of shape \(3,\)"),
    ],
)
def test_wrong_structures_are_named_by_path(value, message):
    with pytest.raises(EnvError, match=message):
        SpaceTree(NESTED, "observation").check(value)


def test_a_missing_part_is_named_when_a_value_is_split():
    with pytest.raises(EnvError, match=r"missing \['b'\]"):
        SpaceTree(NESTED, "observation").split({"a": {"x": 0}})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
    ],
)
def test_spaces_without_fixed_shape_are_refused_with_path_and_space(space):
    nested = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), space))})
    with pytest.raises(ConfigError) as error:
        SpaceTree(nested, "observation")
    assert str(error.value).startswith(f"observation['a'][1]: the space {space}")
    assert "Suggestion" in str(error.value)
