"""Steps that may be drawn only so often or only for so long."""

from __future__ import annotations

import numpy as np

# The iteration of steps that never become stale.
NEVER_STALE = -1


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
        if max_use is not None and max_use < 1:
            raise ValueError(f"max_use must be at least 1, got {max_use}")
        if max_staleness is not None and max_staleness < 0:
            raise ValueError(f"max_staleness must not be negative, got {max_staleness}")
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
