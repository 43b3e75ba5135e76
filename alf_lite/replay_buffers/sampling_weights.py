"""How probable each stored step is as the start of a window, how often and how long."""

from __future__ import annotations

import numpy as np

from alf_lite.replay_buffers.compiled_sum_tree import make_sum_tree
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.stored_steps import to_env_ids
from alf_lite.replay_buffers.sum_tree import Drawn, locate
from alf_lite.replay_buffers.window_sampler import PositionRanges
from alf_lite.utils.compiled_loops import compiled

# The iteration of steps that never become stale.
NEVER_STALE = -1


class SamplingWeights:
    """A weight for every stored step, and a sum tree of those that can be drawn.

    A step has a weight from its first day, but it enters the tree only once a whole
    window follows it, and it leaves the tree when it is overwritten. Both happen in
    :meth:`sync`, so that writing to the storage costs nothing here.

    Rows are indices into the storage's ``rows``.

    Attributes:
        tree: the weights of the steps that can be drawn.
        num_live: how many steps can be drawn.
    """

    def __init__(self, storage: RingStorage) -> None:
        self._storage = storage
        num_rows = len(storage.rows)
        self.tree = make_sum_tree(num_rows)
        self._waiting = np.zeros(num_rows)  # weights of steps not in the tree
        self._dropped = np.zeros(num_rows, bool)
        self._has_dropped = False
        empty = np.zeros(storage.num_environments, np.int64)
        self._starts = PositionRanges(empty, empty)  # those in the tree
        self._known_end = empty.copy()  # steps before have a weight
        self.num_live = 0

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
        storage, tree = self._storage, self.tree
        before, self._starts = self._starts, starts
        left = _joined(
            storage.rows_between(before.first, np.minimum(before.last, starts.first)),
            storage.rows_between(np.maximum(before.first, starts.last), before.last),
        )
        if len(left):
            self.num_live -= self._count_live(left)
            self._waiting[left] = tree.get(left)
            tree.remove(left)
        # Only now: what is new may be in the place of what left.
        new = storage.rows_between(
            np.maximum(self._known_end, storage.begin), storage.end
        )
        self._known_end = storage.end.copy()
        if len(new):
            if initial_weight is None:
                initial_weight = max(tree.maximum, 1.0)
            self._waiting[new] = initial_weight
            self._dropped[new] = False
        entered = _joined(
            storage.rows_between(starts.first, np.minimum(before.first, starts.last)),
            storage.rows_between(np.maximum(before.last, starts.first), starts.last),
        )
        if len(entered):
            self.num_live += self._count_live(entered)
            tree.set(entered, self._waiting[entered])
        return new

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The environments and positions of stored rows."""
        return locate(rows, self._storage.end, self._storage.max_length)

    def draw(self, batch_size: int) -> Drawn:
        """Steps in proportion to their weights."""
        return self.tree.draw(batch_size, self._storage.end, self._storage.max_length)

    def update(
        self, env_ids: np.ndarray, positions: np.ndarray, weights: np.ndarray
    ) -> None:
        """Sets weights; of two for one step the last one stays.

        Steps that are no longer stored or were dropped are left out.
        """
        to_env_ids(env_ids, self._storage.num_environments)  # raises
        rows = self._storage.row_indices(env_ids, positions)
        drawable = self._starts.have(env_ids, positions)
        if self._has_dropped or np.count_nonzero(drawable) < len(rows):
            kept = ~self._dropped[rows]
            waiting = kept & ~drawable & self._storage.is_stored(env_ids, positions)
            self._waiting[rows[waiting]] = weights[waiting]
            drawable &= kept
            rows, weights = rows[drawable], weights[drawable]
        self.tree.set(rows, weights)

    def rows_of_valid(
        self, env_ids: np.ndarray, positions: np.ndarray, priorities: np.ndarray
    ) -> np.ndarray | None:
        """The rows [N] of these steps; None unless a loop finds that all is valid.

        That is, all of them can be drawn, and priorities are finite and not negative.
        """
        loop = compiled(_find_rows, _FIND_ROWS)
        if loop is None or self._has_dropped:
            return None
        rows = np.empty(len(env_ids), np.int64)
        if not (env_ids.flags.c_contiguous and positions.flags.c_contiguous):
            env_ids, positions = env_ids.copy(), positions.copy()
        ranges = self._starts.first, self._starts.last, self._storage.max_length
        return rows if loop(env_ids, positions, priorities, *ranges, rows) else None

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
        self.tree.remove(drawable)
        self.num_live -= len(drawable)

    def step_arrays(self) -> dict[str, np.ndarray]:
        """Weight and fate of the step in each row; the weights after ``export``."""
        return {"weights": self._waiting, "dropped": self._dropped}

    def export(self) -> None:
        """Copies the weights of what is in the tree to :meth:`step_arrays`."""
        starts = self._starts
        for place in self._storage.places(starts.first, starts.last):
            # There they are of no use as long as they are in the tree.
            self._waiting[place] = self.tree.read(place)

    def restore(self, unit: float) -> None:
        """Begins anew with what was written into :meth:`step_arrays`.

        Nothing can be drawn until ``sync``.

        Args:
            unit: of the weights.
        """
        storage = self._storage
        self.tree.clear(unit)
        begin = storage.begin.copy()
        self._starts = PositionRanges(begin, begin)
        self._known_end = storage.end.copy()
        self.num_live = 0
        self._has_dropped = bool(self._dropped.any())

    def check_valid(self) -> None:
        """Raises AssertionError if the weights contradict each other."""
        self.tree.check_valid()
        drawable = np.zeros(len(self._dropped), bool)
        starts = self._starts
        drawable[self._storage.rows_between(starts.first, starts.last)] = True
        weights = self.tree.get(np.arange(len(drawable)))
        assert (weights[~drawable | self._dropped] == 0).all(), "a weight too many"
        num_live = np.count_nonzero(drawable & ~self._dropped)
        assert self.num_live == num_live, (self.num_live, num_live)
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


_FIND_ROWS = "b1(i8[::1], i8[::1], f8[::1], i8[::1], i8[::1], i8, i8[::1])"


def _find_rows(
    env_ids: np.ndarray,
    positions: np.ndarray,
    priorities: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    max_length: int,
    rows: np.ndarray,
) -> bool:
    """Fills ``rows`` [N]; whether all positions are in [first, last) of theirs.

    And whether all ``priorities`` are finite and not negative.
    """
    for i in range(len(env_ids)):
        env_id, position = env_ids[i], positions[i]
        if not 0 <= env_id < len(first) or not 0.0 <= priorities[i] < np.inf:
            return False
        if position < first[env_id] or position >= last[env_id]:
            return False
        rows[i] = env_id * max_length + position % max_length
    return True


class SampleLimits:
    """How often and since when each row is in use.

    Args:
        num_rows: of the storage.
        max_use: how often a step may be drawn; None for no limit.
        max_staleness: a step is dropped once it was collected more than so many
            iterations ago: 0 leaves the steps of the current iteration. None for no
            limit.
    """

    def __init__(
        self, num_rows: int, max_use: int | None, max_staleness: int | None
    ) -> None:
        self._max_use = max_use
        self._max_staleness = max_staleness
        self._num_uses = np.zeros(num_rows, np.int64)
        self._collected_at = np.zeros(num_rows, np.int64)

    def num_uses(self, rows: np.ndarray) -> np.ndarray:
        """How often each of ``rows`` was drawn."""
        return self._num_uses[rows]

    def num_left(self, rows: np.ndarray) -> np.ndarray:
        """How often each of ``rows`` may still be drawn, with ``max_use``."""
        assert self._max_use is not None, "there is no limit"
        return self._max_use - self._num_uses[rows]

    def register(self, rows: np.ndarray, iteration: int) -> None:
        """Notes new rows that were collected in ``iteration``."""
        self._num_uses[rows] = 0
        self._collected_at[rows] = iteration

    def count_use(self, rows: np.ndarray) -> np.ndarray:
        """Counts each occurrence in ``rows``; returns the rows used up by it."""
        np.add.at(self._num_uses, rows, 1)
        if self._max_use is None:
            return rows[:0]
        rows = np.unique(rows)
        return rows[self._num_uses[rows] >= self._max_use]

    def stale(self, rows: np.ndarray, iteration: int) -> np.ndarray:
        """Those of ``rows`` that are too old in ``iteration``."""
        if self._max_staleness is None:
            return rows[:0]
        collected_at = self._collected_at[rows]
        age = iteration - collected_at
        return rows[(age > self._max_staleness) & (collected_at != NEVER_STALE)]

    def step_arrays(self) -> dict[str, np.ndarray]:
        """Uses and age of the step in each row."""
        return {"num_uses": self._num_uses, "collected_at": self._collected_at}
