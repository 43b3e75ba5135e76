"""When a run is evaluated, how fast it is and how long it still takes."""

from __future__ import annotations

import math
import time


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
