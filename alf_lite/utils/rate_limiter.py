"""Keeps a replay buffer's readers and writers in step with each other."""

from __future__ import annotations

import math


class RateLimiter:
    """Says when steps may be inserted and when windows may be sampled.

    With s samples per insert, a tolerance of t samples and a least size of m inserts:

        insert n:  (inserted + n)·s − sampled ≤ s·m + t,  or inserted + n ≤ m
        sample n:  inserted·s − sampled − n ≥ s·m − t  and  inserted ≥ m

    so that from m inserts on, sampled / (inserted − m) stays within t samples of s. It
    only counts: who may not go on waits, and nothing is dropped.

    Args:
        samples_per_insert: s.
        tolerance: t, in samples.
        min_size: m, in inserts.
        samples_at_once: the largest number sampled in one go.
        inserts_at_once: the largest number inserted in one go.

    Raises:
        ValueError: if reader and writer could wait for each other for ever, which they
            cannot if t ≥ samples_at_once and t ≥ inserts_at_once·s.
    """

    def __init__(
        self,
        samples_per_insert: float,
        tolerance: float,
        min_size: int,
        *,
        samples_at_once: int = 1,
        inserts_at_once: int = 1,
    ) -> None:
        least = max(samples_at_once, inserts_at_once * samples_per_insert)
        if tolerance < least:
            raise ValueError(
                f"the tolerance must be at least {least:g}, the larger of "
                f"{samples_at_once} samples at once and {inserts_at_once} inserts of "
                f"{samples_per_insert:g} samples, got {tolerance:g}: inserting and "
                "sampling could wait for each other for ever"
            )
        self._ratio = samples_per_insert
        self._tolerance = tolerance
        self._min_size = min_size
        self.inserted = 0
        self.sampled = 0

    def can_insert(self, number: int) -> bool:
        """Whether ``number`` more steps may be inserted."""
        return number <= self.num_insertable

    def can_sample(self, number: int) -> bool:
        """Whether ``number`` more windows may be sampled."""
        return self.num_missing(number) == 0

    @property
    def num_insertable(self) -> int:
        """How many steps may be inserted before more is sampled."""
        most = (self._offset + self._tolerance + self.sampled) / self._ratio
        return max(0, math.floor(max(most, self._min_size)) - self.inserted)

    def num_missing(self, number: int) -> int:
        """How many steps must be inserted before ``number`` windows may be sampled."""
        least = (self._offset - self._tolerance + self.sampled + number) / self._ratio
        return max(0, math.ceil(max(least, self._min_size)) - self.inserted)

    def insert(self, number: int) -> None:
        """Counts steps that were inserted."""
        self.inserted += number

    def sample(self, number: int) -> None:
        """Counts windows that were sampled."""
        self.sampled += number

    @property
    def _offset(self) -> float:
        return self._ratio * self._min_size

    def state_dict(self) -> dict[str, int]:
        """The two counts."""
        return {"inserted": self.inserted, "sampled": self.sampled}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues where ``state_dict`` was taken."""
        self.inserted, self.sampled = state["inserted"], state["sampled"]
