"""How fast a run is, and how long it will still take."""

from __future__ import annotations

import math
import time


class SpeedMeter:
    """Environment steps per second of wall time between two calls."""

    def __init__(self, env_steps: int) -> None:
        self._time, self._env_steps = time.monotonic(), env_steps

    def measure(self, env_steps: int) -> float:
        """The speed since the last call."""
        now = time.monotonic()
        steps_per_second = (env_steps - self._env_steps) / max(now - self._time, 1e-9)
        self._time, self._env_steps = now, env_steps
        return steps_per_second


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
