"""What a display says about a run: speeds, the time to go, numbers in words."""

from __future__ import annotations

import collections
import datetime
import math
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


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

    def leave_out(self, seconds: float) -> None:
        """Does not count so much of the time since the last call."""
        self._time += seconds


class TimeToGo:
    """Estimates the seconds to the end from the speed in the later half of the time.

    What is slow or fast at first only (steps that are collected before the updates
    begin, code that is compiled on its first use) is forgotten by and by.

    Args:
        fraction: how much of the run is done; more than 0 if it was resumed.
    """

    _NUM_MARKS = 100  # at most, in about twice of which the time is cut

    def __init__(self, fraction: float) -> None:
        self._begin = time.monotonic()
        self._marks = collections.deque([(self._begin, fraction)])

    def estimate(self, fraction: float) -> float:
        """Seconds; NaN as long as nothing is known."""
        now = time.monotonic()
        half = (now - self._begin) / 2
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= now - half:
            marks.popleft()
        then, fraction_then = marks[0]
        if now - marks[-1][0] >= half / self._NUM_MARKS:
            marks.append((now, fraction))
        done = fraction - fraction_then
        return (now - then) * (1 - fraction) / done if done > 0 else math.nan


class Status(NamedTuple):
    """How far a run is, and how well it does."""

    fraction: float  # of the run, in [0, 1]
    iterations: int
    env_steps: int
    average_return: float  # of the latest training episodes; NaN if there is none
    num_updates: int = 0  # of gradients
    losses: Mapping[str, float] = MappingProxyType({})  # and entropy, …; latest summary
    evaluation: float = math.nan  # score of the latest one


class Measures:
    """What there is to say about a run, with its speed between two looks at it."""

    def __init__(self, status: Status) -> None:
        self._last = status
        self._steps = SpeedMeter(status.env_steps)
        self._updates = SpeedMeter(status.num_updates)
        self._time_to_go = TimeToGo(status.fraction)
        self._pause_begin = self._pause_end = 0.0

    def pause(self) -> None:
        """Nothing is trained since the first of these calls in a row."""
        self._pause_end = time.monotonic()
        self._pause_begin = self._pause_begin or self._pause_end

    def _end_pause(self) -> None:
        for meter in (self._steps, self._updates):
            meter.leave_out(self._pause_end - self._pause_begin)
        self._pause_begin = self._pause_end = 0.0

    def fields(self, status: Status) -> dict[str, str]:
        """Name -> text, without losses; those of what the run does."""
        self._end_pause()
        steps_per_second = self._steps.measure(status.env_steps)
        updates_per_second = self._updates.measure(status.num_updates)
        # Training on recorded steps takes none of its own.
        has_stepped = status.env_steps > self._last.env_steps
        has_updated = status.num_updates > self._last.num_updates
        self._last = status
        updates: dict[str, str] = {}
        if has_updated:
            updates = {
                "updates": str(status.num_updates),
                "updates/s": format_speed(updates_per_second),
            }
        if has_updated and not has_stepped:
            return updates
        if not has_stepped:
            steps_per_second = math.nan
        return {
            "steps": str(status.env_steps),
            "steps/s": format_speed(steps_per_second),
            "return": format_return(status.average_return),
            **updates,
        }

    def time_to_go(self, status: Status) -> str:
        return format_seconds(self._time_to_go.estimate(status.fraction))


def few_losses(losses: Mapping[str, float]) -> dict[str, float]:
    """The loss, an entropy and a divergence, as far as there are such."""
    few = {"loss": losses["loss"]} if "loss" in losses else {}
    for part in ("entropy", "kl"):
        found = next((name for name in losses if part in name.lower()), None)
        if found is not None:
            few[found] = losses[found]
    return few


def format_speed(value: float) -> str:
    """Without fraction from ten on; ``-`` if it is unknown."""
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def format_return(value: float) -> str:
    """Four digits; ``-`` if there is none yet."""
    return "-" if math.isnan(value) else f"{value:.4g}"


def format_seconds(seconds: float) -> str:
    """``1:02:03``; ``-`` if unknown."""
    if not math.isfinite(seconds):
        return "-"
    return str(datetime.timedelta(seconds=round(seconds)))
