"""Shows how a run progresses: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import datetime
import math
import sys
import time
from typing import Any, NamedTuple, Protocol, TextIO

from alf_lite.trainers.speed_meter import SpeedMeter, TimeToGo


class Status(NamedTuple):
    """What is shown."""

    fraction: float  # of the run, in [0, 1]
    iterations: int
    env_steps: int
    average_return: float  # of the latest training episodes; NaN if there is none
    num_updates: int = 0  # of gradients


class ProgressDisplay(Protocol):
    """Both kinds of display. ``is_due`` is asked every iteration and is cheap."""

    def start(self, status: Status) -> None: ...

    def is_due(self, fraction: float) -> bool: ...

    def show(self, status: Status) -> None: ...

    def close(self) -> None: ...


def create_progress_display(stream: TextIO | None = None) -> ProgressDisplay:
    """A bar if ``stream`` (stderr by default) is a terminal, else plain lines."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        return ProgressBar(stream)
    return ProgressLines(stream)


class NoDisplay:
    """Shows nothing."""

    def start(self, status: Status) -> None: ...

    def is_due(self, fraction: float) -> bool:
        return False

    def show(self, status: Status) -> None: ...

    def close(self) -> None: ...


class ProgressLines:
    """A line per tenth of the run, and every few seconds: rarer in long runs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def start(self, status: Status) -> None:
        self._speed = SpeedMeter(status.env_steps)
        self._time_to_go = TimeToGo(status.fraction)
        self._begin = self._last = time.monotonic()
        self._last_tenth = int(status.fraction * 10)

    def is_due(self, fraction: float) -> bool:
        if int(fraction * 10) > self._last_tenth:
            return True
        now = time.monotonic()
        interval = min(max((now - self._begin) / 12, 5.0), 60.0)
        return now - self._last >= interval

    def show(self, status: Status) -> None:
        self._last = time.monotonic()
        self._last_tenth = int(status.fraction * 10)
        speed = self._speed.measure(status.env_steps)
        to_go = self._time_to_go.estimate(status.fraction)
        print(
            f"{status.fraction:4.0%}  iteration {status.iterations}  "
            f"{status.env_steps} steps  {speed:.0f} steps/s  "
            f"return {format_return(status.average_return)}  "
            f"ETA {format_seconds(to_go)}",
            file=self._stream,
            flush=True,
        )

    def close(self) -> None: ...


class ProgressBar:
    """A live bar. It is redrawn from the training loop: no thread competes with it."""

    _REDRAW_SECONDS = 0.25

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None

    def start(self, status: Status) -> None:
        # Imported here, because most processes never draw a bar.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._speed = SpeedMeter(status.env_steps)
        self._time_to_go = TimeToGo(status.fraction)
        self._bar = Progress(
            TextColumn("{task.percentage:3.0f}%"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}"),
            console=Console(file=self._stream),
            auto_refresh=False,
            expand=True,
        )
        self._task = self._bar.add_task("", total=1.0, text="starting")
        self._bar.start()
        self._last = -math.inf

    def is_due(self, fraction: float) -> bool:
        return time.monotonic() - self._last >= self._REDRAW_SECONDS

    def show(self, status: Status) -> None:
        self._last = time.monotonic()
        speed = self._speed.measure(status.env_steps)
        to_go = self._time_to_go.estimate(status.fraction)
        text = (
            f"{status.env_steps} steps  {speed:.0f} steps/s  "
            f"return {format_return(status.average_return)}  "
            f"ETA {format_seconds(to_go)}"
        )
        self._bar.update(self._task, completed=status.fraction, text=text)
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def format_return(value: float) -> str:
    """Four digits; ``-`` if there is none yet."""
    return "-" if math.isnan(value) else f"{value:.4g}"


def format_seconds(seconds: float) -> str:
    """``1:02:03``; ``-`` if unknown."""
    if not math.isfinite(seconds):
        return "-"
    return str(datetime.timedelta(seconds=round(seconds)))
