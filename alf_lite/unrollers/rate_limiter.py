"""How collecting and training keep pace with each other, where both go on at once."""

from __future__ import annotations

import math
from typing import Any

from alf_lite.config import TrainerConfig


class TrainingPace:
    """How many steps an iteration takes from unroll workers, and when it may train.

    With ``TrainerConfig.unroll_length`` 0 the workers decide how much there is, and
    ``TrainerConfig.samples_per_insert`` how long they, or the training, wait.

    Args:
        config: of the run.
        num_environments: that it trains in.
        num_samples: windows that an iteration draws.
        least_length: steps of one window.
    """

    def __init__(
        self,
        config: TrainerConfig,
        num_environments: int,
        num_samples: int,
        least_length: int,
    ) -> None:
        self._num_samples = num_samples
        self._steps_per_unroll = num_environments // config.num_unroll_workers
        self._most = config.num_unroll_workers * config.max_unroll_length
        self._limiter: RateLimiter | None = None
        ratio = config.samples_per_insert
        if ratio is not None:
            least_size = max(config.initial_collect_steps, least_length)
            at_once = max(num_samples, ratio * num_environments)
            self._limiter = RateLimiter(
                ratio,
                tolerance=max(2 * at_once, 0.1 * ratio * least_size),
                min_size=least_size,
                samples_at_once=num_samples,
                inserts_at_once=self._steps_per_unroll,
            )

    def num_steps_to_take(self, *, can_train: bool) -> tuple[int, int]:
        """At least and at most how many steps of a worker an iteration takes."""
        at_least, at_most = 0 if can_train else 1, self._most
        if self._limiter is not None:
            size = self._steps_per_unroll
            missing = self._limiter.num_missing(self._num_samples)
            at_least = max(at_least, min(at_most, math.ceil(missing / size)))
            at_most = min(at_most, self._limiter.num_insertable // size)
        return at_least, max(at_least, at_most)

    def take(self, number: int) -> None:
        """Counts steps that were taken, of all environments together."""
        if self._limiter is not None:
            self._limiter.insert(number)

    def begin_training(self) -> bool:
        """Counts the windows of an iteration; False if it must collect more before."""
        if self._limiter is None:
            return True
        if not self._limiter.can_sample(self._num_samples):
            return False
        self._limiter.sample(self._num_samples)
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {} if self._limiter is None else self._limiter.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""
        if self._limiter is not None and state:
            self._limiter.load_state_dict(state)


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
                f"the tolerance must be at least {least:g}, got {tolerance:g}: "
                "inserting and sampling could wait for each other for ever"
            )
        self._ratio = samples_per_insert
        self._tolerance = tolerance
        self._min_size = min_size
        self.inserted = 0
        self.sampled = 0

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
