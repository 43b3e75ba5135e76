from __future__ import annotations

import math

import pytest

from alf_lite.algorithms.dqfd_algorithm import DqfdAlgorithm
from tests.replayed_steps import CHOICE, OBSERVATION


@pytest.mark.parametrize(
    ("coefficient", "message"),
    [
        ({"margin": 0.0}, "^margin must be positive and finite, got 0.0"),
        ({"margin": math.inf}, "^margin must be positive and finite, got inf"),
        ({"margin_weight": -0.1}, "^margin_weight must not be negative, got -0.1"),
        ({"margin_weight": math.nan}, "^margin_weight must not be negative, got nan"),
    ],
)
def test_coefficients_are_checked(coefficient, message):
    with pytest.raises(ValueError, match=message):
        DqfdAlgorithm(OBSERVATION, CHOICE, **coefficient)
