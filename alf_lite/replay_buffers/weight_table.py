"""A million weights, a few hundred of which change at a time.

A row is drawn in proportion to its weight by looking up a random mass in the running
sum of all weights. The table answers that without adding up all of them.
"""

from __future__ import annotations

import numpy as np
import torch

# Weights of a block. Two cache lines: reading blocks at random is what takes time.
_BLOCK_SIZE = 16
_SHIFT = 4
# So many sums are added up and searched at once, without further levels above them.
_MAX_TOP = 4096
# r < sum must hold after rounding.
_ALMOST_ONE = 1.0 - 2.0**-52
# From here on it pays to find out which blocks changed before adding them up.
_MANY_ROWS = 4096


class WeightTable:
    """``num_rows`` weights, all zero at first, and sums of them on several levels.

    The entries of a level stand in blocks; the level above holds the sum of each block.
    At a million rows there are three levels of which the top one is added up as a
    whole: a binary tree would have twenty, and each level costs a round of small array
    operations, for whichever number of rows.

    The sum of a block is added up anew when something in it changes, never adjusted by
    a difference: nothing drifts, and equal weights always give equal bits.
    """

    def __init__(self, num_rows: int) -> None:
        self._levels: list[np.ndarray] = []  # bottom up, [num_blocks, _BLOCK_SIZE] each
        num_blocks = num_rows
        while not self._levels or num_blocks > _MAX_TOP:
            num_blocks = -(-num_blocks // _BLOCK_SIZE)
            self._levels.append(np.zeros((num_blocks, _BLOCK_SIZE)))
        self._top = np.zeros(num_blocks)
        self._top_sums: np.ndarray | None = None  # running sums; None: outdated
        # For every level the one above, as a flat array.
        self._parents = [level.reshape(-1) for level in self._levels[1:]] + [self._top]
        self._weights = self._levels[0].reshape(-1)[:num_rows]
        self._maximum = _Extreme(self._weights, np.maximum)
        self._minimum = _Extreme(self._weights, np.minimum)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._running_top_sums()[-1])

    @property
    def maximum(self) -> float:
        """The largest weight; 0 if all are zero."""
        return self._maximum.value()

    @property
    def minimum(self) -> float:
        """The smallest weight that is not zero; 0 if all are zero."""
        return self._minimum.value()

    def get(self, rows: np.ndarray) -> np.ndarray:
        """The weights [N] of ``rows`` [N]."""
        return self._weights.take(rows)

    def set(self, rows: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights of ``rows`` [N] to ``weights`` [N], finite and not negative.

        Of two weights for one row the last one stays.
        """
        if not len(rows):
            return
        before = self._weights.take(rows)
        self._weights[rows] = weights
        after = self._weights.take(rows)
        self._maximum.replace(rows, before, after)
        self._minimum.replace(rows, before, after)
        self._top_sums = None
        entries = rows
        for level, parents in zip(self._levels, self._parents, strict=True):
            entries = entries >> _SHIFT
            if len(entries) > _MANY_ROWS:
                entries = np.unique(entries)
            parents[entries] = _block_sums(level.take(entries, 0))

    def find(self, masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows in whose part of the running sum of weights ``masses`` [N] fall.

        Row i is found for w_0 + … + w_{i-1} <= mass < w_0 + … + w_i, so a row of weight
        zero is never found. A mass of the total or more finds the last row that has a
        weight. Sorted masses are found faster.

        Returns:
            The rows and their weights, [N] each.

        Raises:
            ValueError: if all weights are zero.
        """
        sums = self._running_top_sums()
        if not sums[-1] > 0:
            raise ValueError("all weights are zero: there is nothing to find")
        masses = np.minimum(masses, sums[-1] * _ALMOST_ONE)
        entries = sums.searchsorted(masses, "right")
        # What of the mass is left inside of the entry.
        rest = masses - (sums.take(entries) - self._top.take(entries))
        first = np.arange(0, len(masses) * _BLOCK_SIZE, _BLOCK_SIZE)
        weights = rest
        for level in reversed(self._levels):
            blocks = level.take(entries, 0)  # [N, _BLOCK_SIZE]
            sums = _running_sums(blocks)
            # The sums above were rounded: stay inside of the block, left of its end.
            rest = np.minimum(np.maximum(rest, 0.0), sums[:, -1] * _ALMOST_ONE)
            # The first column where the sum exceeds the rest.
            columns = (sums <= rest[:, None]).argmin(1)
            chosen = first + columns
            weights = blocks.take(chosen)
            rest -= sums.take(chosen) - weights
            entries = (entries << _SHIFT) + columns
        return entries, weights

    def check_valid(self) -> None:
        """Raises AssertionError if what is kept is not what the weights say."""
        assert (self._weights >= 0).all(), "a weight is negative"
        for level, parents in zip(self._levels, self._parents, strict=True):
            sums = _block_sums(level)
            assert (parents[: len(sums)] == sums).all(), "a sum is out of date"
            assert (parents[len(sums) :] == 0).all(), "a sum of nothing"
        positive = self._weights[self._weights > 0]
        largest = positive.max(initial=0.0)
        smallest = positive.min() if len(positive) else 0.0
        assert self.maximum == largest, (self.maximum, largest)
        assert self.minimum == smallest, (self.minimum, smallest)

    def _running_top_sums(self) -> np.ndarray:
        if self._top_sums is None:
            self._top_sums = _running_sums(self._top)
        return self._top_sums


class _Extreme:
    """The largest or the smallest positive weight.

    All weights are searched for it only after every row known to have it has changed.
    That is rare: the rows that have the maximum are many, namely all that were never
    drawn, and a row that has the minimum is hardly ever drawn.

    Args:
        weights: the table's, which change.
        pick: np.maximum or np.minimum.
    """

    def __init__(self, weights: np.ndarray, pick: np.ufunc) -> None:
        self._weights = weights
        self._pick = pick
        self._value = 0.0
        # How many rows have it, or fewer. 0: it has to be searched for.
        self._num_holders = 0

    def value(self) -> float:
        if not self._num_holders:
            positive = self._weights[self._weights > 0]
            if not len(positive):
                return 0.0
            self._value = float(self._pick.reduce(positive))
            self._num_holders = int(np.count_nonzero(positive == self._value))
        return self._value

    def replace(self, rows: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        """Takes note of the weights of ``rows`` [N] before and after a change.

        A row given twice is counted off twice but counted once: the number of holders
        may come out too small, never too large.
        """
        if not self._num_holders:
            return
        lost = np.count_nonzero(before == self._value)
        self._num_holders = max(0, self._num_holders - int(lost))
        best = self._pick.reduce(after)
        if best == 0:
            positive = after[after > 0]
            if not len(positive):
                return
            best = self._pick.reduce(positive)
        if best == self._value:
            self._num_holders += len(np.unique(rows[after == best]))
        elif self._pick(best, self._value) == best:
            self._value = float(best)
            self._num_holders = 1


def _running_sums(weights: np.ndarray) -> np.ndarray:
    """The cumulative sums along the last dimension."""
    # torch adds them up three times faster than numpy.
    return torch.from_numpy(weights).cumsum(-1).numpy()


def _block_sums(blocks: np.ndarray) -> np.ndarray:
    """The sums [N] of ``blocks`` [N, _BLOCK_SIZE], each added up in the same order."""
    # Twice as fast as ``sum`` for rows as short as these.
    return np.einsum("ij->i", blocks)
