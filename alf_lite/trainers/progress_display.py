"""Shows how a run progresses: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import datetime
import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TextIO

from alf_lite.utils.output_streams import best_effort


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

    def begin_measuring(self, status: Status) -> None:
        """After the first iteration, in which workers start and code is compiled."""

    def is_due(self, fraction: float) -> bool: ...

    def show(self, status: Status) -> None: ...

    def show_evaluation(self, num_steps: int) -> None:
        """Called at every step of an evaluation; shows it if it is time to."""

    def close(self) -> None: ...


def create_progress_display(stream: TextIO | None = None) -> ProgressDisplay:
    """A bar if ``stream`` (stderr by default) is a terminal, else plain lines."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        return ProgressBar(stream)
    return ProgressLines(stream)


def choose_display(wanted: ProgressDisplay | bool | None) -> ProgressDisplay:
    """The display for a run that a program of the user's starts.

    Args:
        wanted: as it is; False for none, True for that of the command line. None: the
            same where somebody is looking, on a terminal or in a notebook.
    """
    if wanted is True:
        return create_progress_display()
    if wanted is None:
        for stream in (sys.stderr, sys.stdout):
            if stream is not None and stream.isatty():
                return create_progress_display(stream)
        if _is_notebook():
            return ProgressLines(sys.stdout)
    return wanted or NoDisplay()


def _is_notebook() -> bool:
    """Whether the output of this process is shown below a cell."""
    if "ipykernel" not in sys.modules:
        return False
    from ipykernel.kernelapp import IPKernelApp

    return bool(IPKernelApp.initialized())


class NoDisplay:
    """Shows nothing."""

    def start(self, status: Status) -> None: ...

    def begin_measuring(self, status: Status) -> None: ...

    def is_due(self, fraction: float) -> bool:
        return False

    def show(self, status: Status) -> None: ...

    def show_evaluation(self, num_steps: int) -> None: ...

    def close(self) -> None: ...


class RunDisplay:
    """The display of a run, which it asks how far it is only when that is shown.

    Args:
        display: shows it.
        status: of the run now.
    """

    def __init__(self, display: ProgressDisplay, status: Callable[[], Status]) -> None:
        self._display = display
        self._status = status
        self._is_measuring = False
        self._shown_iteration = 0
        self.show_evaluation = display.show_evaluation
        self.close = display.close

    def start(self) -> None:
        status = self._status()
        self._shown_iteration = status.iterations
        self._display.start(status)

    def begin_measuring(self) -> bool:
        """Begins with the second iteration; whether it did now."""
        if self._is_measuring:
            return False
        self._is_measuring = True
        self._display.begin_measuring(self._status())
        return True

    def show_if_due(self, fraction: float) -> None:
        """To be called in every iteration."""
        if self._display.is_due(fraction):
            self._show(self._status())

    def show_last(self) -> None:
        """Shows the last iteration, unless that was shown."""
        status = self._status()
        if status.iterations != self._shown_iteration:
            self._show(status)

    def _show(self, status: Status) -> None:
        self._shown_iteration = status.iterations
        self._display.show(status)


class _Measures:
    """The speed of a run between two looks at it, in words."""

    def __init__(self, status: Status) -> None:
        self._last = status
        self._steps = SpeedMeter(status.env_steps)
        self._updates = SpeedMeter(status.num_updates)
        self._time_to_go = TimeToGo(status.fraction)

    def text(self, status: Status) -> str:
        steps_per_second = self._steps.measure(status.env_steps)
        updates_per_second = self._updates.measure(status.num_updates)
        eta = format_seconds(self._time_to_go.estimate(status.fraction))
        # Training on recorded steps takes none of its own.
        has_stepped = status.env_steps > self._last.env_steps
        has_updated = status.num_updates > self._last.num_updates
        self._last = status
        if has_updated and not has_stepped:
            speed = format_speed(updates_per_second)
            return f"{status.num_updates} updates  {speed} updates/s  ETA {eta}"
        if not has_stepped:
            steps_per_second = math.nan
        return (
            f"{status.env_steps} steps  {format_speed(steps_per_second)} steps/s  "
            f"return {format_return(status.average_return)}  ETA {eta}"
        )


class ProgressLines:
    """A line per tenth of the run, and every few seconds: rarer in long runs."""

    _EVALUATION_SECONDS = 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = best_effort(stream)

    def start(self, status: Status) -> None:
        self._measures = _Measures(status)
        self._begin = self._last = time.monotonic()
        self._last_tenth = int(status.fraction * 10)

    def begin_measuring(self, status: Status) -> None:
        self._measures = _Measures(status)

    def is_due(self, fraction: float) -> bool:
        if int(fraction * 10) > self._last_tenth:
            return True
        now = time.monotonic()
        interval = min(max((now - self._begin) / 12, 5.0), 60.0)
        return now - self._last >= interval

    def show(self, status: Status) -> None:
        self._last_tenth = int(status.fraction * 10)
        self._print(
            f"{status.fraction:4.0%}  iteration {status.iterations}  "
            f"{self._measures.text(status)}"
        )

    def show_evaluation(self, num_steps: int) -> None:
        if time.monotonic() - self._last >= self._EVALUATION_SECONDS:
            self._print(f"      evaluating, {num_steps} steps so far")

    def close(self) -> None: ...

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        print(text, file=self._stream, flush=True)


class ProgressBar:
    """A live bar. It is redrawn from the training loop: no thread competes with it."""

    _REDRAW_SECONDS = 0.25

    def __init__(self, stream: TextIO) -> None:
        self._stream = best_effort(stream)
        self._bar: Any = None

    def start(self, status: Status) -> None:
        # Imported here, because most processes never draw a bar.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._measures = _Measures(status)
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

    def begin_measuring(self, status: Status) -> None:
        self._measures = _Measures(status)

    def is_due(self, fraction: float) -> bool:
        return time.monotonic() - self._last >= self._REDRAW_SECONDS

    def show(self, status: Status) -> None:
        self._draw(self._measures.text(status), completed=status.fraction)

    def show_evaluation(self, num_steps: int) -> None:
        if self.is_due(0.0):
            self._draw(f"evaluating, {num_steps} steps so far")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, text: str, **fields: Any) -> None:
        self._last = time.monotonic()
        self._bar.update(self._task, text=text, **fields)
        self._bar.refresh()


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
