"""Paths of leaves come apart into the keys, fields and indices they are made of."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from alf_lite import nest
from alf_lite.utils.nest_paths import leaf_name, path_parts


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
