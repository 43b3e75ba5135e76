"""A sum tree whose draws and changes are one compiled loop each."""

from __future__ import annotations

from typing import Any

import numpy as np

from alf_lite.replay_buffers.sum_tree import (
    SHIFT,
    SumTree,
    last_of_each,
    nothing_to_find,
)
from alf_lite.replay_buffers.window_sampler import draw_in_strata
from alf_lite.utils.compiled_loops import compiled, has_compiler


def make_sum_tree(num_rows: int) -> SumTree:
    """The fastest one that there is."""
    return CompiledSumTree(num_rows) if has_compiler() else SumTree(num_rows)


class CompiledSumTree(SumTree):
    """As :class:`SumTree`, and finds the same rows: sums are exact on any levels.

    Here the levels go up to the sum of all: a loop steps down a level in no time.
    """

    _max_top = 1

    def __init__(self, num_rows: int) -> None:
        super().__init__(num_rows)
        # All levels in one array, with the sum of all at its end.
        self._starts = np.cumsum([0, *map(np.size, self._levels)])
        self._sums = np.zeros(self._starts[-1] + 1)
        parts = np.split(self._sums, self._starts[1:])
        shapes = [level.shape for level in self._levels]
        self._levels = [p.reshape(s) for p, s in zip(parts, shapes, strict=False)]
        self._top = parts[-1]
        self._name_levels(num_rows)
        self._find: Any = compiled(_find, _FIND)
        self._set: Any = compiled(_set, _SET)

    @property
    def total(self) -> float:
        return self._sums.item(-1) * self._unit

    def set(self, rows: np.ndarray, weights: np.ndarray) -> None:
        if self._set_units(rows, weights) > self._max_units:
            # The largest one counts only if it stays.
            rows, weights = last_of_each(rows, weights)
            while (largest := self._set_units(rows, weights)) > self._max_units:
                self._coarsen_for(largest)

    def _set_units(self, rows: np.ndarray, weights: np.ndarray) -> float:
        """The largest of ``weights`` in units; sets none if that is too large."""
        maximum, minimum = self._maximum, self._minimum
        largest, *extremes = self._set(
            *(self._sums, self._starts),
            *(np.ascontiguousarray(rows), np.ascontiguousarray(weights)),
            *(self._unit, self._max_units),
            *(maximum.bound, maximum.num_holders),
            *(minimum.bound, minimum.num_holders),
        )
        maximum.bound, maximum.num_holders = extremes[:2]
        if minimum.is_followed:
            minimum.bound, minimum.num_holders = extremes[2:]
        return largest

    def remove(self, rows: np.ndarray) -> None:
        self.set(rows, np.zeros(len(rows)))

    def draw(self, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        inside, order = draw_in_strata(batch_size)
        return self._find_all(inside, order, 1.0, self.total / max(1, batch_size))

    def find(self, masses: np.ndarray) -> np.ndarray:
        return self._find_all(masses, np.arange(len(masses)))[0]

    def _find_all(
        self,
        masses: np.ndarray,
        order: np.ndarray,
        step: float = 0.0,
        scale: float = 1.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows and weights [N]; for the arguments, see :func:`_find`."""
        if not self._sums.item(-1):
            raise nothing_to_find()
        rows, weights = np.empty(len(masses), np.int64), np.empty(len(masses))
        tree = self._sums, self._starts, self._unit
        self._find(*tree, masses, step, scale, order, rows, weights)
        return rows, weights


_FIND = "void(f8[::1], i8[::1], f8, f8[::1], f8, f8, i8[::1], i8[::1], f8[::1])"
_SET = (
    "Tuple((f8, f8, i8, f8, i8))"
    "(f8[::1], i8[::1], i8[::1], f8[::1], f8, f8, f8, i8, f8, i8)"
)


def _find(
    sums: np.ndarray,
    starts: np.ndarray,
    unit: float,
    masses: np.ndarray,
    step: float,
    scale: float,
    order: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Fills ``rows`` and ``weights`` [N].

    Args:
        sums: the entries of all levels, bottom up; the last one is the sum of all.
        starts: where each level begins among them, and where the sum of all is.
        unit: of the entries.
        masses: [N]; (masses_i + step · i) · scale is found, see :meth:`SumTree.find`.
        step: see above.
        scale: likewise.
        order: [N], that of what they find.
        rows: what they find.
        weights: of these rows.
    """
    found = np.empty(len(masses), np.int64)  # sorted, as masses are: read in order
    for i in range(len(masses)):
        mass = (masses[i] + step * i) * scale
        rest = min(np.floor(mass / unit), sums[-1] - 1.0)
        entry = 0
        for start in starts[-2::-1]:
            entry = start + (entry << SHIFT)
            while rest >= sums[entry]:  # not of all in the block: they sum up to more
                rest -= sums[entry]
                entry += 1
            entry -= start
        found[i] = entry
    for i in range(len(order)):
        rows[i] = found[order[i]]
        weights[i] = sums[rows[i]] * unit


def _set(
    sums: np.ndarray,
    starts: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    unit: float,
    max_units: float,
    largest: float,
    num_largest: int,
    smallest: float,
    num_smallest: int,
) -> tuple[float, float, int, float, int]:
    """Sets the weights of ``rows`` [N], one after the other.

    Args:
        sums: see :func:`_find`.
        starts: likewise.
        rows: see :meth:`SumTree.set`.
        weights: likewise.
        unit: of the entries.
        max_units: that a weight may be.
        largest: no weight is larger, in units.
        num_largest: so many, or more, are as large.
        smallest: of those above zero, likewise.
        num_smallest: likewise.

    Returns:
        The largest new weight, in units; nothing has changed if it is too large. And
        the last four arguments as they are now.
    """
    most = 0.0
    for weight in weights:
        most = max(most, np.ceil(weight / unit))
    if not most <= max_units:
        return most, largest, num_largest, smallest, num_smallest
    for i in range(len(rows)):
        entry, after = rows[i], np.ceil(weights[i] / unit)
        before = sums[entry]
        for start in starts:
            sums[start + entry] += after - before
            entry >>= SHIFT
        num_largest -= before == largest and num_largest > 0
        num_smallest -= before == smallest and num_smallest > 0
        if after > largest:
            largest, num_largest = after, 0
        if 0.0 < after < smallest:
            smallest, num_smallest = after, 0
        num_largest += after == largest
        num_smallest += after == smallest
    return most, largest, num_largest, smallest, num_smallest
