"""Tests of alf_lite.utils.plain_data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from alf_lite.errors import CheckpointError
from alf_lite.utils.plain_data import (
    check_like,
    check_numbers,
    check_plain,
    to_plain,
)

EXAMPLE = {
    "count": 3,
    "ratio": 0.5,
    "score": None,
    "name": "adam",
    "is_open": False,
    "returns": torch.zeros(2, 3),
    "positions": (1, 2),
    "limiter": {},
}


def test_what_is_alike_passes():
    check_like(EXAMPLE, EXAMPLE, "state")
    other = {
        "count": 0,
        "ratio": 7,
        "score": -2.5,
        "name": "",
        "is_open": True,
        "returns": torch.full((5, 3), float("nan")),
        "positions": [2**62, 0],
        "limiter": {"inserted": 4},
    }
    check_like(other, EXAMPLE, "state")
    # Scores of older runs are what a hook returned.
    for score in (-3, True):
        check_like({**EXAMPLE, "score": score}, EXAMPLE, "state")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": -1}, r"state\['count'\]: expected a count, got -1"),
        ({"count": 2.0}, r"state\['count'\]: expected a whole number, got 2\.0"),
        ({"count": True}, "expected a whole number, got True"),
        ({"count": 10**6000}, "expected a count, got a number of 19932 bits"),
        ({"ratio": float("nan")}, r"\['ratio'\]: expected a finite number, got nan"),
        ({"ratio": "1"}, "expected a number, got '1'"),
        ({"score": "good"}, "expected a number or nothing, got 'good'"),
        ({"score": float("inf")}, "expected a finite number"),
        ({"name": b"adam"}, "expected a string"),
        ({"is_open": 1}, "expected a bool"),
        ({"returns": [0.0]}, r"a tensor \[2, 3\] of float32, got a list of 1 entries"),
        ({"returns": torch.zeros(3)}, r"got a tensor \[3\] of float32"),
        ({"returns": torch.zeros(2, 3, dtype=torch.int32)}, "of int32"),
        ({"positions": (1, 2, 3)}, "expected 2 entries, got a tuple of 3"),
        ({"positions": {"a": 1}}, "expected a list"),
        ({"positions": (1, "x" * 99)}, r"positions'\]\[1\].*a whole number, got 'xxx"),
        ({"limiter": [1]}, "expected a dict"),
    ],
)
def test_what_differs_is_named_with_what_was_expected(change, message):
    with pytest.raises(CheckpointError, match=message):
        check_like({**EXAMPLE, **change}, EXAMPLE, "state")


def test_missing_and_unknown_entries_are_listed():
    with pytest.raises(CheckpointError, match=r"missing: \['b'\], unknown: \['1'\]"):
        check_like({"a": 1, 1: 2}, {"a": 1, "b": 2}, "state")


@pytest.mark.parametrize("wrong", [-1, float("nan"), 2**63, float("-inf")])
def test_a_wrong_number_is_found_wherever_it_is(wrong):
    check_numbers({"a": [(1, 0.5), {"b": True, "c": "-1"}]}, "state")
    with pytest.raises(CheckpointError, match=r"state\['a'\]\[1\]\['b'\]"):
        check_numbers({"a": [(1, 0.5), {"b": wrong}]}, "state")


def doubled(depth: int) -> list:
    """2 ** depth numbers, in a few lists."""
    value: list = [1]
    for _ in range(depth):
        value = [value, value]
    return value


def test_lists_that_repeat_themselves_are_looked_at_once():
    check_plain(doubled(100), "state")
    check_numbers(doubled(100), "state")
    with pytest.raises(CheckpointError, match="a set is no plain data"):
        check_plain([doubled(100), {1}], "state")


def test_numbers_of_numpy_are_kept_as_numbers():
    given = {"best": np.float64(0.5), "count": np.int32(3), "flags": [np.bool_(True)]}
    kept = to_plain(given, "state")
    assert kept == {"best": 0.5, "count": 3, "flags": [True]}
    assert [type(x) for x in (kept["best"], kept["count"], kept["flags"][0])] == [
        *(float, int, bool)
    ]
    with pytest.raises(TypeError, match=r"state\['x'\]: a checkpoint cannot hold"):
        to_plain({"x": np.zeros(2)}, "state")
