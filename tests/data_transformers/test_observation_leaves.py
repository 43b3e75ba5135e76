"""Fields name leaves or nests of leaves, and mistakes in them are explained."""

from __future__ import annotations

import pytest
import torch

from alf_lite.data_transformers.data_transformer import replace_specs, select_leaves
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec

SPEC = {
    "arm": {"joints": (TensorSpec((7,)), TensorSpec((2,)))},
    "armor": TensorSpec(()),
    "camera": TensorSpec((3, 8, 8), torch.uint8),
}


def select(spec, fields):
    return select_leaves(spec, fields, lambda s: s.is_continuous, "floating point")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (None, {"arm.joints.0": 0, "arm.joints.1": 1, "armor": 2}),
        (["arm"], {"arm.joints.0": 0, "arm.joints.1": 1}),
        (["armor", "arm.joints.1"], {"arm.joints.1": 1, "armor": 2}),
        (["arm", "arm.joints.0"], {"arm.joints.0": 0, "arm.joints.1": 1}),
    ],
)
def test_selected_leaves(fields, expected):
    selected = select(SPEC, fields)
    assert selected == expected
    assert list(selected) == sorted(expected)


@pytest.mark.parametrize("fields", [None, ["observation"]])
def test_a_single_leaf_is_the_observation(fields):
    assert select(TensorSpec((3,)), fields) == {"observation": 0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["arm.joint.0"], "no field 'arm.joint.0'.*Did you mean 'arm.joints.0'?"),
        (["ar"], "no field 'ar'"),
        (["camera"], "'camera' must be floating point, it is a TensorSpec"),
        ([], "no part of the observation is floating point"),
        ("camera", r"fields must be a list of names, write \['camera'\]"),
    ],
)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        select(SPEC, fields)


def test_an_observation_without_suitable_leaves_is_refused():
    with pytest.raises(ConfigError, match="no part of the observation is floating"):
        select(SPEC["camera"], None)


def test_only_the_chosen_specs_are_replaced():
    replaced = replace_specs(SPEC, [1, 2], lambda s: TensorSpec((9, *s.shape)))
    assert replaced == {
        "arm": {"joints": (TensorSpec((7,)), TensorSpec((9, 2)))},
        "armor": TensorSpec((9,)),
        "camera": SPEC["camera"],
    }
