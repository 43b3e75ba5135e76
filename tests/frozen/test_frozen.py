"""Nothing changes what is frozen without saying so; see :mod:`tests.frozen.frozen`."""

from __future__ import annotations

import pytest
import torch

from tests.frozen import frozen

KEPT = frozen.read()
OUTCOMES = KEPT["outcomes"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", frozen.names())
def test_it_is_as_it_was(name):
    machine = OUTCOMES[name].get("machine", KEPT["machine"])
    if frozen.has_bits(name) and machine != frozen.machine():
        pytest.skip(f"frozen on {machine}")
    assert not frozen.differences(OUTCOMES[name], frozen.outcome(name))


def test_everything_is_frozen():
    assert set(frozen.names()) <= set(OUTCOMES)
    assert not [name for name, found in OUTCOMES.items() if "error" in found]


def test_differences_are_named():
    kept, found = {"a": "1", "b": "2", "machine": "x"}, {"a": "3", "c": "4"}
    assert frozen.differences(kept, found) == ["a: 1 -> 3", "b: 2 -> None", "c: new"]


def test_one_bit_changes_a_hash():
    state = {"x": torch.zeros(3), "n": [1, 2.0, "a"]}
    same = {"n": [1, 2.0, "a"], "x": torch.zeros(3)}
    other = {"x": torch.tensor([0.0, 0.0, -0.0]), "n": [1, 2.0, "a"]}
    assert frozen.hashed(state) == frozen.hashed(same) != frozen.hashed(other)
