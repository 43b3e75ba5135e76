"""A sum tree whose draws and changes are one compiled loop each."""

from __future__ import annotations

from typing import Any

import numpy as np

from alf_lite.replay_buffers.sum_tree import (
    SHIFT,
    Drawn,
    SumTree,
    last_of_each,
    nothing_to_find,
)
from alf_lite.replay_buffers.window_sampler import draw_random
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
            self._sums,
            self._starts,
            np.ascontiguousarray(rows),
            np.ascontiguousarray(weights),
            self._unit,
            self._max_units,
            maximum.bound,
            maximum.num_holders,
            minimum.bound,
            minimum.num_holders,
        )
        maximum.bound, maximum.num_holders = extremes[:2]
        if minimum.is_followed:
            minimum.bound, minimum.num_holders = extremes[2:]
        return largest

    def remove(self, rows: np.ndarray) -> None:
        self.set(rows, np.zeros(len(rows)))

    def draw(self, batch_size: int, ends: np.ndarray, max_length: int) -> Drawn:
        random, shuffled = draw_random(batch_size)
        return self._find_all(random, shuffled, 1.0, batch_size, ends, max_length)

    def find(self, masses: np.ndarray) -> np.ndarray:
        size, num_rows = len(masses), len(self._units)
        one_ring = np.arange(size), 0.0, size, np.array([num_rows]), num_rows
        return self._find_all(np.append(masses, 0.0), *one_ring).rows

    def _find_all(
        self,
        masses: np.ndarray,
        shuffled: np.ndarray,
        step: float,
        size: int,
        ends: np.ndarray,
        max_length: int,
    ) -> Drawn:
        """See :func:`_find`."""
        total = self._sums.item(-1)
        if not total:
            raise nothing_to_find()
        scale = total * self._unit / max(1, size) if step else 1.0
        tree = self._sums, self._starts, self._unit
        places, weights = np.empty((3, size), np.int64), np.empty(size)
        ring = shuffled, ends, max_length
        self._find(*tree, masses, step, scale, *ring, places, weights)
        return Drawn(places[0], places[1], places[2], weights)


_FIND = (
    "void(f8[::1], i8[::1], f8, f8[::1], f8, f8, i8[::1], i8[::1], i8, i8[:, ::1], "
    "f8[::1])"
)
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
    shuffled: np.ndarray,
    ends: np.ndarray,
    max_length: int,
    places: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Fills ``places`` [3, N] and ``weights`` [N] of what :class:`Drawn` holds.

    Args:
        sums: the entries of all levels, bottom up; the last one is the sum of all.
        starts: where each level begins among them, and where the sum of all is.
        unit: of the entries.
        masses: [N + 1]; (masses_i + step · i) · scale is found, see
            :meth:`SumTree.find`. The last one says where the order begins.
        step: see above.
        scale: likewise.
        shuffled: [N or more], the order of what is found.
        ends: see :meth:`SumTree.draw`.
        max_length: likewise.
        places: environments, positions and rows.
        weights: of these rows.
    """
    size = len(weights)
    found = np.empty(size, np.int64)
    rests = np.empty(size)
    for i in range(size):
        mass = (masses[i] + step * i) * scale
        rests[i] = min(np.floor(mass / unit), sums[-1] - 1.0)
        found[i] = 0
    for start in starts[-2::-1]:
        # Level by level, and without a branch: reading then waits for nothing.
        for i in range(size):
            first = found[i] << SHIFT
            total, before, column = 0.0, 0.0, 0
            for k in range(1 << SHIFT):
                total += sums[start + first + k]
                is_left = total <= rests[i]  # not of all: they sum up to more
                before = total if is_left else before
                column += is_left
            rests[i] -= before
            found[i] = first + column
    turn = int(masses[size] * size)
    for i in range(size):
        row = found[shuffled[turn + i]]
        env_id = row // max_length
        newest = ends[env_id] - 1
        places[0, i] = env_id
        places[1, i] = newest - (newest - row) % max_length
        places[2, i] = row
        weights[i] = sums[row] * unit


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
