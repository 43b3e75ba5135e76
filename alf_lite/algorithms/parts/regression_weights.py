"""Weights of the regressions that offline algorithms consist of."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def expectile_weights(error: Tensor, expectile: float) -> Tensor:
    """|τ − 1(u < 0)|: [...] → [...], without gradient.

    The number v that minimises Σ |τ − 1(x − v < 0)| (x − v)² is the τ-expectile of x:
    the mean for τ = 1/2, and near the maximum for τ near 1 (Newey and Powell 1987).

    Args:
        error: u, target − prediction.
        expectile: τ in (0, 1).
    """
    return torch.where(error.detach() < 0, 1 - expectile, expectile)


def exponential_weights(
    advantage: Tensor, inverse_temperature: float, max_weight: float
) -> Tensor:
    """min(exp(β A), w_max): [...] → [...], without gradient.

    Never infinite, however large the advantage.

    Args:
        advantage: A.
        inverse_temperature: β.
        max_weight: w_max.
    """
    exponent = inverse_temperature * advantage.detach()
    return exponent.clamp(max=math.log(max_weight)).exp()


def check_expectile(expectile: float) -> None:
    """Raises ValueError unless τ lies in (0, 1)."""
    if not 0 < expectile < 1:
        raise ValueError(f"expectile must lie in (0, 1), got {expectile}")


def check_positive(**values: float) -> None:
    """Raises ValueError, with its name, for a value that is not positive and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")
