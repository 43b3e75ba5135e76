"""First-order linear recurrences along time, of tensors and of arrays."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from torch import Tensor

_Array = TypeVar("_Array", Tensor, np.ndarray)


def reverse_linear_scan(
    increments: _Array, multipliers: _Array, final: _Array | None = None
) -> _Array:
    """Solves a first-order linear recurrence backwards along the first dimension.

        x_t = increments_t + multipliers_t · x_{t+1},   x_T = final

    Args:
        increments: [T, ...].
        multipliers: [T, ...], broadcasts to ``increments``; 0 where nothing of later
            steps counts, so that episodes are kept apart.
        final: [...]; None means 0.

    Returns:
        [T, ...] of the dtype of ``increments``.
    """
    x = increments.clone() if isinstance(increments, Tensor) else increments.copy()
    _solve(x, multipliers, final)
    return x


def linear_scan(
    increments: np.ndarray, multipliers: np.ndarray, initial: np.ndarray
) -> np.ndarray:
    """As :func:`reverse_linear_scan`, forwards.

    y_t = increments_t + multipliers_t · y_{t-1},   y_{-1} = initial
    """
    y = increments.copy()
    _solve(y[::-1], multipliers[::-1], initial)
    return y


def _solve(x: _Array, weights: _Array, final: _Array | None) -> None:
    """Makes ``x``, which holds the increments, the solution.

    Two consecutive steps of the recurrence are again one such step. Joining neighbours
    at distance 1, 2, 4, … takes log2(T) operations on whole tensors (Hillis and Steele
    1986) where a loop takes T, and unlike quotients of cumulative products it only adds
    and multiplies, so it is as exact as the loop.
    """
    if final is not None:
        x[-1] += weights[-1] * final
    # At distance k, x_t has summed the increments of t … t+k-1, and weights_t is the
    # product of their multipliers. It is kept only where step t+k exists.
    distance = 1
    while distance < len(x):
        reaching = len(x) - distance
        weights = weights[:reaching]
        x[:reaching] += weights * x[distance:]
        weights = weights[:-distance] * weights[distance:]
        distance *= 2
