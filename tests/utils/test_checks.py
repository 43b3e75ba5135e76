"""What is wrong is named."""

from __future__ import annotations

import math

import pytest

from alf_lite.errors import ConfigError
from alf_lite.utils.checks import (
    check_count,
    check_left_out,
    check_not_negative,
    check_positive,
    check_unit_interval,
    check_unused,
)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_must_be_positive_is_named(value):
    with pytest.raises(ValueError, match="beta must be positive and finite"):
        check_positive(beta=value, other=1.0, unwanted=None)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_what_must_lie_in_the_unit_interval_is_named(value):
    check_unit_interval(low=0.0, high=1.0)
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\]"):
        check_unit_interval(gamma=value, other=1.0)


@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_what_must_not_be_negative_is_named(value):
    check_not_negative(low=0.0, high=math.inf)
    with pytest.raises(ValueError, match="clip must not be negative"):
        check_not_negative(clip=value, other=1.0)


def test_what_would_be_ignored_is_named():
    check_left_out("nothing learns", tau=None)
    with pytest.raises(ConfigError, match="tau has no effect: nothing learns"):
        check_left_out("nothing learns", beta=None, tau=0.0)


def test_what_would_be_ignored_is_named_unless_it_is_the_default_of_the_class():
    class Layer:
        def __init__(self, size, rate=0.5):
            pass

    class Wide(Layer):
        def __init__(self, size, rate=0.7):
            pass

    check_unused(Layer, "it is small", rate=0.5, other=3)
    check_unused(Wide, "it is small", rate=0.7)
    with pytest.raises(ConfigError, match="rate has no effect: it is small"):
        check_unused(Wide, "it is small", rate=0.5)


@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_what_must_be_a_count_is_named(value):
    check_count(horizon=1, max_depth=None)
    with pytest.raises(ValueError, match="horizon must be a positive integer, got"):
        check_count(horizon=value, other=1)
