"""Paths of leaves come apart into the keys, fields and indices they are made of."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from alf_lite import nest
from alf_lite.nest import build_nest, leaf_name, path_parts


class Pair(NamedTuple):
    left: object = ()
    right: object = ()


@pytest.mark.parametrize(
    ("structure", "expected"),
    [
        (1, []),
        ([1], ["0"]),
        ({"arm": 1}, ["arm"]),
        ({"a.b c": [2]}, ["a.b c", "0"]),
        ({"it's": 1}, ["it's"]),
        ({3: Pair(right=1)}, ["3", "right"]),
        (Pair(left={"x": Pair(right=(1,))}), ["left", "x", "right", "0"]),
    ],
)
def test_parts_are_what_leads_to_the_leaf(structure, expected):
    [(path, _)] = nest.flatten_with_path(structure)
    assert path_parts(path) == expected


def test_names_start_at_the_root():
    assert leaf_name("observation", "['arm'][0]") == "observation.arm.0"
    assert (
        leaf_name("AverageEnvInfo", "['last'].speed", "/")
        == "AverageEnvInfo/last/speed"
    )
    assert leaf_name("reward", "<root>") == "reward"


@pytest.mark.parametrize(
    "structure",
    [
        1,
        [1, 2],
        (1, (2, [3])),
        {"arm": 1, "it's": [2], "a.b c": {"x": 3}},
        Pair(left={"x": Pair(left=1, right=(2,))}, right=3),
    ],
)
def test_a_nest_is_built_from_the_paths_of_its_leaves(structure):
    leaves = dict(nest.flatten_with_path(structure))
    built = build_nest(leaves, {"<root>": Pair, "left['x']": Pair})
    assert nest.flatten_with_path(built) == nest.flatten_with_path(structure)


def test_fields_without_a_type_become_a_dict():
    leaves = {"left.left": 1, "left.right": 2, "right.other": 3}
    assert build_nest(leaves, {"<root>": Pair, "right": Pair}) == Pair(
        left={"left": 1, "right": 2}, right={"other": 3}
    )


def test_where_there_is_no_leaf_stands_the_empty_nest():
    assert build_nest({"[2]": 1, "[0][1]": 2}, {}) == (((), 2), (), 1)


def test_the_parameters_of_a_distribution_become_a_tuple():
    assert build_nest({"policy[<flat index 0>]": 1}, {}) == {"policy": (1,)}


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"a": 1, "a.b": 2}, "'a' is a leaf and has leaves below it"),
        ({"a.b": 1, "a[0]": 2}, "'a' has fields and indices"),
        ({"a..b": 1}, "not the path of a leaf"),
        ({"a[x]": 1}, "not the path of a leaf"),
    ],
)
def test_paths_that_contradict_each_other_are_refused(leaves, message):
    with pytest.raises(ValueError, match=message):
        build_nest(leaves, {})
