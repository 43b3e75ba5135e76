"""Checks of coefficients that users give, with messages that name them."""

from __future__ import annotations

import math


def check_unit_interval(**values: float) -> None:
    """Raises ValueError, with its name, for a value that is not in [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {value}")


def check_positive(**values: float | None) -> None:
    """Raises ValueError, with its name, for what is not positive and finite, or None.

    None stands for a coefficient that is not wanted.
    """
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_not_negative(**values: float) -> None:
    """Raises ValueError, with its name, for a value below 0."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, got {value}")
