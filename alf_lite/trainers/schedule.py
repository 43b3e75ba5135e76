"""When a run ends and is evaluated, how fast it is and how long it still takes."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from alf_lite.config import TrainerConfig
from alf_lite.errors import ConfigError


class Limits(NamedTuple):
    """The length of a run; it ends when the first of the two is reached."""

    num_iterations: int  # 0: no limit
    num_env_steps: int  # 0: no limit

    @classmethod
    def from_config(cls, config: TrainerConfig) -> Limits:
        """The limits of a run.

        Raises:
            ConfigError: if there is none.
        """
        limits = cls(config.num_iterations, config.num_env_steps)
        if limits == (0, 0):
            raise ConfigError(
                "TrainerConfig.num_iterations and num_env_steps are both 0, the run "
                "would never end: set at least one of them."
            )
        return limits

    def are_reached(self, iterations: int, env_steps: int) -> bool:
        return (0 < self.num_iterations <= iterations) or (
            0 < self.num_env_steps <= env_steps
        )

    def fraction(self, iterations: int, env_steps: int) -> float:
        """How much of the run is done, in [0, 1]."""
        fractions = [0.0]
        if self.num_iterations:
            fractions.append(iterations / self.num_iterations)
        if self.num_env_steps:
            fractions.append(env_steps / self.num_env_steps)
        return min(1.0, max(fractions))

    def slot(self, iterations: int, env_steps: int, num_slots: int) -> int:
        """Which of ``num_slots`` equal parts of the run has been completed."""
        slots = [0]
        if self.num_iterations:
            slots.append(iterations * num_slots // self.num_iterations)
        if self.num_env_steps:
            slots.append(env_steps * num_slots // self.num_env_steps)
        return min(num_slots, max(slots))


def is_evaluation_due(iteration: int, last: int | None, interval: int) -> bool:
    """Whether to evaluate after ``iteration``: at every multiple, 0 included, once.

    Args:
        iteration: iterations completed.
        last: when the last evaluation was; None if there was none.
        interval: iterations between two evaluations; 0 means never.
    """
    return interval > 0 and iteration % interval == 0 and iteration != last


class SpeedMeter:
    """Environment steps, or updates, per second of wall time between two calls.

    Args:
        count: of them so far.
    """

    def __init__(self, count: int) -> None:
        self._time, self._count = time.monotonic(), count

    def measure(self, count: int) -> float:
        """The speed since the last call; NaN if no time has passed."""
        now = time.monotonic()
        seconds = now - self._time
        speed = (count - self._count) / seconds if seconds > 0 else math.nan
        self._time, self._count = now, count
        return speed


class TimeToGo:
    """Estimates the seconds to the end from the mean speed since the begin.

    Args:
        fraction: how much of the run is done; more than 0 if it was resumed.
    """

    def __init__(self, fraction: float) -> None:
        self._begin_time, self._begin_fraction = time.monotonic(), fraction

    def estimate(self, fraction: float) -> float:
        """Seconds; NaN as long as nothing is known."""
        done = fraction - self._begin_fraction
        if done <= 0:
            return math.nan
        return (time.monotonic() - self._begin_time) * (1 - fraction) / done
