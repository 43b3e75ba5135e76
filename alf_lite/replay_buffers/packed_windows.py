"""Windows of steps that are read where somebody looks at them."""

from __future__ import annotations

import functools

import numpy as np

from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.row_layout import PackedSteps


class PackedWindows:
    """Windows [B, T] of a storage on the CPU, until something is written there.

    Of all steps only few fields are needed where most are passed over, as with the
    returns of several steps.

    Args:
        storage: that holds them.
        env_ids: [B].
        first_rows: [B], where they begin.
        length: T.

    Attributes:
        storage: likewise.
        first_rows: likewise.
    """

    def __init__(
        self,
        storage: RingStorage,
        env_ids: np.ndarray,
        first_rows: np.ndarray,
        length: int,
    ) -> None:
        self.storage = storage
        self._env_ids = env_ids
        self.first_rows = first_rows
        self._length = length

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """Where the steps are stored, [B, T]."""
        return self.storage.window_rows(self._env_ids, self.first_rows, self._length)

    @functools.cached_property
    def step_types(self) -> np.ndarray:
        """[T, B]; may be set by who has read them."""
        return self.storage.steps.array("time_step.step_type")[self.rows].T

    def steps(self) -> PackedSteps:
        """Copies of all steps, [B, T]."""
        return self.storage.packed(self.rows)

    def pairs(self, end_rows: np.ndarray) -> PackedSteps:
        """Copies of the first steps and of others, in the rows ``end_rows``: [B, 2]."""
        places = np.empty((len(end_rows), 2), np.int64)
        places[:, 0], places[:, 1] = self.first_rows, end_rows
        return self.storage.packed(places)
