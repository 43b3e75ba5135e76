from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.parts.regression_weights import (
    check_expectile,
    check_positive,
    expectile_weights,
    exponential_weights,
)


def test_errors_below_and_above_weigh_differently():
    error = torch.tensor([-2.0, -1e-9, 0.0, 3.0], requires_grad=True)
    weights = expectile_weights(error, 0.8)
    assert weights.tolist() == pytest.approx([0.2, 0.2, 0.8, 0.8])
    assert not weights.requires_grad


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.7, 0.9])
def test_the_minimum_is_the_expectile(expectile):
    # Of 0 and 1, equally often: τ (1 − v) = (1 − τ) v, hence v = τ.
    x, v = torch.tensor([0.0, 1.0]), torch.tensor(0.3)
    for _ in range(50):  # the fixed point of the weighted mean
        w = expectile_weights(x - v, expectile)
        v = (w * x).sum() / w.sum()
    assert v.item() == pytest.approx(expectile, abs=1e-5)


def test_weights_grow_with_the_advantage_up_to_the_largest():
    advantage = torch.tensor([-1.0, 0.0, 0.5, 1.0, 1e6], requires_grad=True)
    weights = exponential_weights(advantage, 3.0, 10.0)
    expected = [math.exp(-3), 1.0, math.exp(1.5), 10.0, 10.0]
    assert weights.tolist() == pytest.approx(expected, rel=1e-5)
    assert not weights.requires_grad
    assert exponential_weights(torch.tensor([-1e6]), 3.0, 10.0).item() == 0


@pytest.mark.parametrize("expectile", [0.0, 1.0, -0.5, math.nan])
def test_an_expectile_is_a_proper_fraction(expectile):
    with pytest.raises(ValueError, match=r"expectile must lie in \(0, 1\)"):
        check_expectile(expectile)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_must_be_positive_is_named(value):
    with pytest.raises(ValueError, match="beta must be positive and finite"):
        check_positive(beta=value, other=1.0)
