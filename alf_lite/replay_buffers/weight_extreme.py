"""The largest or the smallest of a million weights, a few hundred of which change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Extreme:
    """The largest or the smallest positive weight.

    All weights are searched for it only after every row known to have it has changed.
    That is rare: the rows that have the maximum are many, namely all that were never
    drawn, and a row that has the minimum is hardly ever drawn.

    Args:
        weights: [N], which change.
        pick: np.maximum or np.minimum.
        is_better: whether the first of two weights is the one to pick.
    """

    def __init__(
        self,
        weights: np.ndarray,
        pick: np.ufunc,
        is_better: Callable[[float, float], bool],
    ) -> None:
        self._weights = weights
        self._pick = pick
        self._is_better = is_better
        # No weight is better. So far all of them are zero.
        self._bound = 0.0 if pick is np.maximum else np.inf
        # How many rows have it, or fewer. 0: it has to be searched for.
        self._num_holders = 0

    def value(self) -> float:
        if not self._num_holders:
            positive = self._weights[self._weights > 0]
            if not len(positive):
                return 0.0
            self._bound = float(self._pick.reduce(positive))
            self._num_holders = int(np.count_nonzero(positive == self._bound))
        return self._bound

    def forget(self) -> None:
        """Takes note that any weight may have changed."""
        self._bound = np.inf if self._pick is np.maximum else 0.0
        self._num_holders = 0

    def lose(self, before: np.ndarray) -> None:
        """Takes note that N rows do not have these weights [N] any more."""
        if self._num_holders:
            lost = int(np.count_nonzero(before == self._bound))
            self._num_holders = max(0, self._num_holders - lost)

    def gain(self, after: np.ndarray, best: float) -> None:
        """Takes note that N rows have these weights [N] now, of which ``best`` is."""
        if best == 0:
            positive = after[after > 0]
            if not len(positive):
                return
            best = self._pick.reduce(positive)
        if best == self._bound:
            self._num_holders += int(np.count_nonzero(after == best))
        elif self._is_better(best, self._bound):
            self._bound = float(best)
            self._num_holders = 1
