"""How many steps each iteration of off-policy training collects before it trains."""

from __future__ import annotations

import math
from typing import Any

from alf_lite.algorithms.learning.replay_training import ReplayTraining
from alf_lite.algorithms.learning.root_algorithm import RootAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import Experience
from alf_lite.utils.rate_limiter import RateLimiter


class Collection:
    """Has an algorithm unroll as ``TrainerConfig.unroll_length`` says.

    A fraction of a step is left for a later iteration. With 0, unroll workers decide
    how much there is, and ``TrainerConfig.samples_per_insert`` how long they, or the
    training, wait for each other.

    Args:
        config: of the run.
        num_environments: that the algorithm trains in.
        replay: where the steps go.
    """

    def __init__(
        self, config: TrainerConfig, num_environments: int, replay: ReplayTraining
    ) -> None:
        self._config = config
        self._replay = replay
        self._num_workers = config.num_unroll_workers
        self._steps_per_unroll = num_environments // self._num_workers
        self._num_samples = replay.mini_batch_size * config.num_updates
        self._limiter = self._make_limiter(num_environments)
        self._remainder = 0.0  # of a fractional unroll_length

    def _make_limiter(self, num_environments: int) -> RateLimiter | None:
        config = self._config
        ratio = config.samples_per_insert
        if ratio is None:
            return None
        least_size = max(config.initial_collect_steps, self._replay.least_length)
        at_once = max(self._num_samples, ratio * num_environments)
        return RateLimiter(
            ratio,
            tolerance=max(2 * at_once, 0.1 * ratio * least_size),
            min_size=least_size,
            samples_at_once=self._num_samples,
            inserts_at_once=self._steps_per_unroll,
        )

    def collect(self, algorithm: RootAlgorithm) -> Experience | None:
        """Unrolls; None if there is nothing to unroll in this iteration."""
        if self._config.unroll_length == 0:
            return self._take_what_is_there(algorithm)
        length = self._remainder + self._config.unroll_length
        self._remainder = length % 1
        return algorithm.unroll(int(length)) if length >= 1 else None

    def _take_what_is_there(self, algorithm: RootAlgorithm) -> Experience | None:
        """Takes what unroll workers have finished, perhaps nothing."""
        at_least = 0 if self._replay.can_train else 1
        at_most = self._num_workers * self._config.max_unroll_length
        if self._limiter is not None:
            size = self._steps_per_unroll
            missing = self._limiter.num_missing(self._num_samples)
            at_least = max(at_least, min(at_most, math.ceil(missing / size)))
            at_most = min(at_most, self._limiter.num_insertable // size)
        experience = algorithm.unroll_what_is_there(at_least, max(at_least, at_most))
        if self._limiter is not None and experience is not None:
            self._limiter.insert(experience.time_step.step_type.numel())
        return experience

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
        return {
            "remainder": self._remainder,
            "limiter": {} if self._limiter is None else self._limiter.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""
        self._remainder = state["remainder"]
        if self._limiter is not None and state["limiter"]:
            self._limiter.load_state_dict(state["limiter"])
