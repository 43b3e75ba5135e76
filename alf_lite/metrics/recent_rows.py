"""The last rows of an endless table."""

from __future__ import annotations

import numpy as np


class RecentRows:
    """Keeps the last ``capacity`` rows that were appended.

    Args:
        capacity: number of rows.
        num_columns: C.
    """

    def __init__(self, capacity: int, num_columns: int) -> None:
        self.rows = np.zeros((capacity, num_columns))  # float64; a ring
        self.num_appended = 0

    def __len__(self) -> int:
        return min(self.num_appended, len(self.rows))

    def append(self, rows: np.ndarray) -> None:
        """Appends ``rows`` [N, C], the oldest first."""
        capacity = len(self.rows)
        positions = self.num_appended + np.arange(len(rows))
        # Of more than fit, only the newest: no position is written twice.
        self.rows[positions[-capacity:] % capacity] = rows[-capacity:]
        self.num_appended += len(rows)

    def mean(self) -> np.ndarray:
        """[C], NaN without rows."""
        if not len(self):
            return np.full(self.rows.shape[1], np.nan)
        return self.rows[: len(self)].mean(axis=0)

    def clear(self) -> None:
        self.rows[:] = 0.0
        self.num_appended = 0
