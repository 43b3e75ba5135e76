"""Tests of alf_lite.checkpoints.data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from alf_lite.checkpoints.data import load_module_state, non_finite_entries
from alf_lite.errors import CheckpointError


def snapshot(module: nn.Module) -> dict:
    return {key: value.clone() for key, value in module.state_dict().items()}


def test_copies_parameters_and_buffers_into_the_same_tensors():
    source, target = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    nn.init.normal_(source.weight)
    source(torch.randn(5, 3))
    weight = target.weight
    load_module_state(target, source.state_dict(), "x")
    assert target.weight is weight
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("0.weight"), r"0\.weight\s+\(3, 2\) float32\s+-"),
        (lambda s: s.update(extra=torch.ones(1)), r"extra\s+-\s+\(1,\) float32"),
        (
            lambda s: s.update({"1.bias": torch.ones(4)}),
            r"1\.bias\s+\(1,\) float32\s+\(4,\) float32",
        ),
        (
            lambda s: s.update({"1.bias": torch.ones(1, dtype=torch.float64)}),
            r"1\.bias\s+\(1,\) float32\s+\(1,\) float64",
        ),
        (lambda s: s.update({"1.bias": 3}), r"1\.bias\s+\(1,\) float32\s+int"),
    ],
)
def test_any_difference_is_named_and_nothing_is_changed(change, message):
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    state = {key: value + 1 for key, value in module.state_dict().items()}
    change(state)
    before = snapshot(module)
    with pytest.raises(CheckpointError, match=message) as error:
        load_module_state(module, state, "checkpoint 'c'")
    assert "checkpoint 'c' does not fit Sequential: 1 of 4 entries" in str(error.value)
    for key, value in before.items():
        assert torch.equal(module.state_dict()[key], value)


def test_long_tables_are_cut():
    module = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(50)])
    with pytest.raises(CheckpointError) as error:
        load_module_state(module, {}, "x")
    assert "50 of 50 entries differ" in str(error.value)
    assert "... and 30 more" in str(error.value)
    assert len(str(error.value).splitlines()) < 26


def test_non_finite_entries_are_named():
    tensors = {
        "good": torch.ones(3),
        "nan": torch.tensor([1.0, float("nan")]),
        "inf": torch.tensor(float("-inf")),
        "integers": torch.tensor([1, 2]),
        "empty": torch.zeros(0),
    }
    assert non_finite_entries(tensors) == ["nan", "inf"]
    assert non_finite_entries({"integers": torch.tensor([1])}) == []
