"""A sum tree: a million weights, a few hundred of which change at a time.

A row is drawn in proportion to its weight by looking up a random mass in the running
sum of all weights. The tree answers that without adding up all of them, and knows the
smallest and the largest weight.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from alf_lite.replay_buffers.window_sampler import draw_stratified

# Weights of a block. One cache line: reading blocks at random is what takes time.
_BLOCK_SIZE = 8
SHIFT = 3
# A double holds every integer up to 2**53.
_MANTISSA_BITS = 53

# blocks @ _UP_TO are the sums of the entries up to each entry of a block.
_UP_TO = np.triu(np.ones((_BLOCK_SIZE, _BLOCK_SIZE)))


class Drawn(NamedTuple):
    """Rows that were drawn, and where they are: [B] each."""

    env_ids: np.ndarray
    positions: np.ndarray
    rows: np.ndarray
    weights: np.ndarray


def locate(
    rows: np.ndarray, ends: np.ndarray, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Environments and positions of rows in rings; for the arguments see ``draw``."""
    env_ids = rows // max_length
    newest = ends.take(env_ids) - 1
    return env_ids, newest - (newest - rows) % max_length


class SumTree:
    """``num_rows`` weights, all zero at first, and sums of them on several levels.

    The entries of a level stand in blocks; the level above holds the sum of each block.
    At a million rows there are three levels of which the top one is added up as a
    whole: a binary tree would have twenty, and each level costs a round of small array
    operations, for whichever number of rows.

    A change of a weight is added to the sums above it. That is exact, and nothing
    drifts: weights are rounded up to whole numbers of one unit, and all levels count in
    units. The unit is a power of two, so large that all weights together are no more
    than 2**53 units: that is how far a double counts. At a million rows it is 2**-33 of
    the largest weight that there ever was, at a thousand 2**-43.
    """

    # So many sums are added up and searched at once, without further levels above them.
    _max_top: ClassVar[int] = 16384

    def __init__(self, num_rows: int) -> None:
        self._levels: list[np.ndarray] = []  # bottom up, [num_blocks, _BLOCK_SIZE] each
        num_blocks = num_rows
        while not self._levels or num_blocks > self._max_top:
            num_blocks = -(-num_blocks // _BLOCK_SIZE)
            self._levels.append(np.zeros((num_blocks, _BLOCK_SIZE)))
        # Integers are added up and searched faster.
        self._top = np.zeros(num_blocks, np.int64)
        self._top_sums = np.zeros(num_blocks + 1, np.int64)  # before each, and of all
        self._top_has_changed = False
        self._max_units = 2.0 ** (_MANTISSA_BITS - (num_rows - 1).bit_length())
        self._unit = 1.0 / self._max_units
        self._name_levels(num_rows)

    def _name_levels(self, num_rows: int) -> None:
        self._units = self._levels[0].reshape(-1)[:num_rows]
        self._middle = [level.reshape(-1) for level in self._levels[1:]]
        self._maximum = _Extremum(self._units, np.maximum, operator.gt)
        self._minimum = _Extremum(self._units, np.minimum, operator.lt)
        self._minimum.forget()  # few ask for it: it is not followed until one does

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return self._sums_of_top().item(-1) * self._unit

    @property
    def maximum(self) -> float:
        """The largest weight; 0 if all are zero."""
        return self._maximum.value() * self._unit

    @property
    def minimum(self) -> float:
        """The smallest weight that is not zero; 0 if all are zero."""
        return self._minimum.value() * self._unit

    @property
    def unit(self) -> float:
        """What every weight is a multiple of."""
        return self._unit

    def get(self, rows: np.ndarray) -> np.ndarray:
        """The weights [N] of ``rows`` [N]."""
        return self._units.take(rows) * self._unit

    def read(self, rows: slice) -> np.ndarray:
        """The weights of a slice of all rows."""
        return self._units[rows] * self._unit

    def set(self, rows: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights of ``rows`` [N] to ``weights`` [N], not negative.

        Of two weights for one row the last one stays.

        Raises:
            ValueError: if a weight is infinite or nearly so.
        """
        if not len(rows):
            return
        rows, weights = last_of_each(rows, weights)
        units = np.ceil(weights / self._unit)
        largest = np.maximum.reduce(units)
        if largest > self._max_units:
            self._coarsen_for(largest)
            units = np.ceil(weights / self._unit)
            largest = np.maximum.reduce(units)
        before = self._units.take(rows)
        self._units[rows] = units
        self._add_to_sums(rows, units - before)
        self._maximum.lose(before)
        self._maximum.gain(units, largest)
        if self._minimum.is_followed:
            self._minimum.lose(before)
            self._minimum.gain(units, np.minimum.reduce(units))

    def remove(self, rows: np.ndarray) -> None:
        """Sets the weights of ``rows`` [N], each given once, to zero."""
        before = self._units.take(rows)
        self._units[rows] = 0.0
        self._add_to_sums(rows, -before)
        for extreme in (self._maximum, self._minimum):
            extreme.lose(before)

    def clear(self, unit: float = 0.0) -> None:
        """Makes all weights zero, and the unit as fine as possible, or else ``unit``.

        Args:
            unit: of another tree, to go on as that one would.
        """
        for entries in (*self._levels, self._top):
            entries.fill(0)
        self._unit = max(1.0 / self._max_units, unit)
        self._top_has_changed = True
        for extreme in (self._maximum, self._minimum):
            extreme.forget()

    def draw(self, batch_size: int, ends: np.ndarray, max_length: int) -> Drawn:
        """Draws rows in proportion to their weights, shuffled.

        One from each of as many equal parts of the running sum of weights.

        Args:
            batch_size: B.
            ends: [E], the position after the newest one of each ring.
            max_length: the rows of a ring.

        Raises:
            ValueError: if all weights are zero.
        """
        masses, order = draw_stratified(self.total, batch_size)
        rows = self.find(masses).take(order)
        return Drawn(*locate(rows, ends, max_length), rows, self.get(rows))

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The rows in whose part of the running sum of weights ``masses`` [N] fall.

        Row i is found for w_0 + … + w_{i-1} <= mass < w_0 + … + w_i, so a row of weight
        zero is never found. A mass of the total or more finds the last row that has a
        weight. Sorted masses are found faster.

        Returns:
            The rows [N].

        Raises:
            ValueError: if all weights are zero.
        """
        top_sums = self._sums_of_top()
        total = top_sums.item(-1)
        if not total:
            raise nothing_to_find()
        # Rounding down to whole units changes no answer.
        units = (masses / self._unit).astype(np.int64)
        np.minimum(units, total - 1, out=units)
        entries = top_sums[1:].searchsorted(units, "right")
        # What is left of the mass inside of the entry.
        rest = (units - top_sums.take(entries)).astype(np.float64)
        first = _first_entries(len(masses))
        for level in reversed(self._levels):
            blocks = level.take(entries, 0)  # [N, _BLOCK_SIZE]
            sums = blocks @ _UP_TO
            # The first column that is above the rest; the last one always is.
            columns = (sums <= rest[:, None]).argmin(1)
            entries <<= SHIFT
            entries += columns
            if level is not self._levels[0]:
                columns += first
                rest -= sums.take(columns) - blocks.take(columns)
        return entries

    def check_valid(self) -> None:
        """Raises AssertionError if what is kept is not what the weights say."""
        units = self._units
        assert ((units >= 0) & (units <= self._max_units)).all(), "out of range"
        assert (units == np.floor(units)).all(), "not a whole number of units"
        for level, above in zip(self._levels, [*self._middle, self._top], strict=True):
            sums = level.sum(1)
            assert (above[: len(sums)] == sums).all(), "a sum is out of date"
            assert (above[len(sums) :] == 0).all(), "a sum of nothing"
        positive = units[units > 0]
        largest = positive.max(initial=0.0)
        smallest = positive.min() if len(positive) else 0.0
        assert self._maximum.value() == largest, (self._maximum.value(), largest)
        assert self._minimum.value() == smallest, (self._minimum.value(), smallest)

    def _add_to_sums(self, rows: np.ndarray, changes: np.ndarray) -> None:
        """Adds what the weights of ``rows`` [N] have changed by, in units [N]."""
        entries = rows >> SHIFT
        for sums in self._middle:
            np.add.at(sums, entries, changes)
            entries >>= SHIFT
        np.add.at(self._top, entries, changes.astype(np.int64))
        self._top_has_changed = True

    def _coarsen_for(self, largest: float) -> None:
        """Makes the unit so large that a weight of so many units has fewer."""
        if not largest < np.inf:
            raise ValueError(f"a weight is too large: {largest * self._unit}")
        factor = 2.0 ** math.frexp(largest / self._max_units)[1]
        self._unit *= factor
        np.ceil(self._units / factor, out=self._units)
        for level, above in zip(self._levels, [*self._middle, self._top], strict=True):
            above[: len(level)] = level.sum(1)
        self._top_has_changed = True
        for extreme in (self._maximum, self._minimum):
            extreme.forget()

    def _sums_of_top(self) -> np.ndarray:
        if self._top_has_changed:
            np.add.accumulate(self._top, out=self._top_sums[1:])
            self._top_has_changed = False
        return self._top_sums


@functools.lru_cache(maxsize=32)
def _first_entries(num_blocks: int) -> np.ndarray:
    """Where each of so many blocks begins, if they stand side by side; read-only."""
    return np.arange(0, num_blocks * _BLOCK_SIZE, _BLOCK_SIZE)


def last_of_each(
    rows: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Without those of the rows [N], and their weights, that come once more."""
    in_order = rows.copy()
    in_order.sort()
    if not np.count_nonzero(in_order[1:] == in_order[:-1]):
        return rows, weights
    order = rows.argsort(kind="stable")
    in_order = rows[order]
    last = order[np.append(in_order[1:] != in_order[:-1], True)]
    return rows[last], weights[last]


def nothing_to_find() -> ValueError:
    """What :meth:`SumTree.find` raises."""
    return ValueError("all weights are zero: there is nothing to find")


class _Extremum:
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
        self.bound = 0.0 if pick is np.maximum else np.inf
        # How many rows have it, or fewer. 0: it has to be searched for.
        self.num_holders = 0

    def value(self) -> float:
        if not self.num_holders:
            positive = self._weights[self._weights > 0]
            if not len(positive):
                return 0.0
            self.bound = float(self._pick.reduce(positive))
            self.num_holders = int(np.count_nonzero(positive == self.bound))
        return self.bound

    @property
    def is_followed(self) -> bool:
        """Whether it has to know of changes; not between ``forget`` and ``value``."""
        return bool(self.num_holders) or 0 < self.bound < np.inf

    def forget(self) -> None:
        """Takes note that any weight may have changed."""
        self.bound = np.inf if self._pick is np.maximum else 0.0
        self.num_holders = 0

    def lose(self, before: np.ndarray) -> None:
        """Takes note that N rows do not have these weights [N] any more."""
        if self.num_holders:
            lost = int(np.count_nonzero(before == self.bound))
            self.num_holders = max(0, self.num_holders - lost)

    def gain(self, after: np.ndarray, best: float) -> None:
        """Takes note that N rows have these weights [N] now, of which ``best`` is."""
        if best == 0:
            positive = after[after > 0]
            if not len(positive):
                return
            best = self._pick.reduce(positive)
        if best == self.bound:
            self.num_holders += int(np.count_nonzero(after == best))
        elif self._is_better(best, self.bound):
            self.bound = float(best)
            self.num_holders = 1
