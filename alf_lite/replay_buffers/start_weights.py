"""Sampling weights of the steps that a window can start at."""

from __future__ import annotations

import numpy as np

from alf_lite.replay_buffers.position_ranges import PositionRanges
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.weight_table import WeightTable


class StartWeights:
    """A weight for every stored step, and a table of those that can be drawn.

    A step has a weight from its first day, but it enters the table only once a whole
    window follows it, and it leaves the table when it is overwritten. Both happen in
    :meth:`sync`, so that writing to the storage costs nothing here.

    Rows are indices into the storage's ``rows``.
    """

    def __init__(self, storage: RingStorage) -> None:
        self._storage = storage
        num_rows = len(storage.rows)
        self._table = WeightTable(num_rows)
        self._waiting = np.zeros(num_rows)  # weights of steps not in the table
        self._dropped = np.zeros(num_rows, bool)
        self._has_dropped = False
        empty = np.zeros(storage.num_environments, np.int64)
        self._starts = PositionRanges(empty, empty)  # those in the table
        self._known_end = empty.copy()  # steps before have a weight
        self._num_live = 0

    @property
    def num_live(self) -> int:
        """How many steps can be drawn."""
        return self._num_live

    @property
    def total(self) -> float:
        """The sum of the weights that can be drawn."""
        return self._table.total

    @property
    def unit(self) -> float:
        """What every weight that can be drawn is a multiple of."""
        return self._table.unit

    @property
    def minimum(self) -> float:
        """The smallest weight that can be drawn."""
        return self._table.minimum

    def sync(
        self, starts: PositionRanges, initial_weight: float | None = None
    ) -> np.ndarray:
        """Makes ``starts`` the steps that can be drawn.

        Args:
            starts: the steps that a whole window follows.
            initial_weight: of the steps written since the last call. None means the
                largest one that can be drawn now, and at least 1.

        Returns:
            The rows written since the last call.
        """
        storage, table = self._storage, self._table
        before, self._starts = self._starts, starts
        left = _joined(
            storage.rows_between(before.first, np.minimum(before.last, starts.first)),
            storage.rows_between(np.maximum(before.first, starts.last), before.last),
        )
        if len(left):
            self._num_live -= self._count_live(left)
            self._waiting[left] = table.get(left)
            table.remove(left)
        # Only now: what is new may be in the place of what left.
        new = storage.rows_between(
            np.maximum(self._known_end, storage.begin), storage.end
        )
        self._known_end = storage.end.copy()
        if len(new):
            if initial_weight is None:
                initial_weight = max(table.maximum, 1.0)
            self._waiting[new] = initial_weight
            self._dropped[new] = False
        entered = _joined(
            storage.rows_between(starts.first, np.minimum(before.first, starts.last)),
            storage.rows_between(np.maximum(before.last, starts.first), starts.last),
        )
        if len(entered):
            self._num_live += self._count_live(entered)
            table.set(entered, self._waiting[entered])
        return new

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The rows [N] of the steps at ``masses`` [N] of the running sum of weights."""
        return self._table.find(masses)

    def get(self, rows: np.ndarray) -> np.ndarray:
        """The weights of steps that can be drawn."""
        return self._table.get(rows)

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The environments and positions of stored rows."""
        max_length = self._storage.max_length
        env_ids = rows // max_length
        newest = self._storage.end.take(env_ids) - 1
        return env_ids, newest - (newest - rows) % max_length

    def update(
        self, env_ids: np.ndarray, positions: np.ndarray, weights: np.ndarray
    ) -> None:
        """Sets weights; of two for one step the last one stays.

        Steps that are no longer stored or were dropped are left out.
        """
        rows = self._storage.row_indices(env_ids, positions)
        drawable = self._starts.have(env_ids, positions)
        if self._has_dropped or np.count_nonzero(drawable) < len(rows):
            kept = ~self._dropped[rows]
            waiting = kept & ~drawable & self._storage.is_stored(env_ids, positions)
            self._waiting[rows[waiting]] = weights[waiting]
            drawable &= kept
            rows, weights = rows[drawable], weights[drawable]
        self._table.set(rows, weights)

    def live_rows(self) -> np.ndarray:
        """The rows of all steps that can be drawn."""
        starts = self._starts
        rows = self._storage.rows_between(starts.first, starts.last)
        return rows[~self._dropped[rows]]

    def drop(self, rows: np.ndarray) -> None:
        """Makes sure that these rows, each given once, are never drawn again."""
        rows = rows[~self._dropped[rows]]
        if not len(rows):
            return
        self._has_dropped = True
        self._dropped[rows] = True
        self._waiting[rows] = 0.0
        drawable = rows[self._starts.have(*self.locate(rows))]
        self._table.remove(drawable)
        self._num_live -= len(drawable)

    def step_arrays(self) -> dict[str, np.ndarray]:
        """Weight and fate of the step in each row; the weights after ``export``."""
        return {"weights": self._waiting, "dropped": self._dropped}

    def export(self) -> None:
        """Copies the weights of what is in the table to :meth:`step_arrays`."""
        starts = self._starts
        for place in self._storage.places(starts.first, starts.last):
            # There they are of no use as long as they are in the table.
            self._waiting[place] = self._table.read(place)

    def restore(self, unit: float) -> None:
        """Begins anew with what was written into :meth:`step_arrays`.

        Nothing can be drawn until ``sync``.

        Args:
            unit: of the weights.
        """
        storage = self._storage
        self._table.clear(unit)
        begin = storage.begin.copy()
        self._starts = PositionRanges(begin, begin)
        self._known_end = storage.end.copy()
        self._num_live = 0
        self._has_dropped = bool(self._dropped.any())

    def check_valid(self) -> None:
        """Raises AssertionError if the weights contradict each other."""
        self._table.check_valid()
        drawable = np.zeros(len(self._dropped), bool)
        starts = self._starts
        drawable[self._storage.rows_between(starts.first, starts.last)] = True
        weights = self._table.get(np.arange(len(drawable)))
        assert (weights[~drawable | self._dropped] == 0).all(), "a weight too many"
        num_live = np.count_nonzero(drawable & ~self._dropped)
        assert self._num_live == num_live, (self._num_live, num_live)
        assert self._has_dropped or not self._dropped.any(), "a dropped step"

    def _count_live(self, rows: np.ndarray) -> int:
        if not self._has_dropped:
            return len(rows)
        return len(rows) - int(np.count_nonzero(self._dropped[rows]))


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Both; one of them is usually empty."""
    if not len(second):
        return first
    return np.concatenate((first, second)) if len(first) else second
