"""First-order linear recurrences over time, without a loop over the steps."""

from __future__ import annotations

import numpy as np


def linear_recurrence(
    multipliers: np.ndarray, increments: np.ndarray, initial: np.ndarray
) -> np.ndarray:
    """Solves a first-order linear recurrence along the first axis.

        y_t = multipliers_t · y_{t-1} + increments_t,   y_{-1} = initial

    A multiplier of 0 starts anew at t; so episodes are kept apart.

    Two consecutive steps of the recurrence are again one such step. Composing steps
    over the distances 1, 2, 4, … needs log2(T) operations on whole arrays (Hillis and
    Steele 1986) and, unlike a division of cumulative products, loses no precision.

    Args:
        multipliers: [T, ...], broadcasts to ``increments``.
        increments: [T, ...].
        initial: [...], the value before the first step.

    Returns:
        [T, ...] of the dtype of ``increments``.

    Raises:
        ValueError: if T is 0.
    """
    if len(increments) == 0:
        raise ValueError("linear_recurrence: needs at least one step, got T=0")
    y = increments.copy()
    # After the pass with distance k, y_t counts the increments of the 2k steps up to t
    # and a_t is the product of their multipliers.
    a = multipliers
    y[0] += a[0] * initial
    distance = 1
    while distance < len(y):
        y[distance:] += a[distance:] * y[:-distance]
        a = np.concatenate((a[:distance], a[distance:] * a[:-distance]))
        distance *= 2
    return y
