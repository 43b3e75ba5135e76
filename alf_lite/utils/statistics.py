"""How sure a number is that was computed from a few runs or episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

_NUM_SAMPLES = 2000


def bootstrap_ci95(values: Sequence[float]) -> tuple[float, float] | None:
    """Of the mean, see :func:`bootstrap_interval`; None for a single value."""
    if len(values) < 2:
        return None
    low, high = bootstrap_interval(mean, np.asarray(values))
    return float(low), float(high)


def bootstrap_interval(
    statistic: Callable[..., np.ndarray], *samples: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """95 % confidence interval by the percentile bootstrap, reproducible.

    Args:
        statistic: called with an array for each of the samples, which has their shape
            but for one more dimension before the last; reduces the last one.
        *samples: [..., N_i], N_i values that are drawn from anew; every sample for
            itself, and all entries of the other dimensions alike.

    Returns:
        Its ends, of the shape of the statistic.
    """
    generator = np.random.default_rng(0)
    drawn = []
    for values in samples:
        shape = _NUM_SAMPLES, values.shape[-1]
        drawn.append(values[..., generator.integers(values.shape[-1], size=shape)])
    low, high = np.quantile(statistic(*drawn), [0.025, 0.975], axis=-1)
    return low, high


def mean(values: np.ndarray) -> np.ndarray:
    """Over the last dimension."""
    return values.mean(axis=-1)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last dimension without its lowest and highest quarter."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def probability_of_improvement(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How often one of ``values`` is above one of ``others``; a tie is half of it.

    Args:
        values: [..., N].
        others: [..., M].
    """
    difference = values[..., :, None] - others[..., None, :]
    return (np.sign(difference).mean(axis=(-2, -1)) + 1) / 2
