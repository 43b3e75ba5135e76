"""Shows how a run progresses: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from alf_lite.trainers.progress_bar import ProgressBar, evaluation_text
from alf_lite.trainers.progress_measures import (
    Measures,
    Status,
    few_losses,
    format_return,
)
from alf_lite.utils.output_streams import best_effort

_UNITS = ("steps", "steps/s", "updates", "updates/s")


class ProgressDisplay(Protocol):
    """Both kinds of display. ``is_due`` is asked every iteration and is cheap."""

    def start(self, status: Status) -> None: ...

    def begin_measuring(self, status: Status) -> None:
        """After the first iteration, in which workers start and code is compiled."""

    def is_due(self, fraction: float) -> bool: ...

    def show(self, status: Status) -> None: ...

    def show_evaluation(
        self, num_steps: int, num_episodes: int, num_wanted: int
    ) -> None:
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

    def show_evaluation(
        self, num_steps: int, num_episodes: int, num_wanted: int
    ) -> None: ...

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


class ProgressLines:
    """A line per tenth of the run, and every few seconds: rarer in long runs."""

    _EVALUATION_SECONDS = 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = best_effort(stream)

    def start(self, status: Status) -> None:
        self._measures = Measures(status)
        self._begin = self._last = time.monotonic()
        self._last_tenth = int(status.fraction * 10)

    def begin_measuring(self, status: Status) -> None:
        self._measures = Measures(status)

    def is_due(self, fraction: float) -> bool:
        if int(fraction * 10) > self._last_tenth:
            return True
        now = time.monotonic()
        interval = min(max((now - self._begin) / 12, 5.0), 60.0)
        return now - self._last >= interval

    def show(self, status: Status) -> None:
        self._last_tenth = int(status.fraction * 10)
        parts = [f"{status.fraction:4.0%}", f"iteration {status.iterations}"]
        for name, text in self._measures.fields(status).items():
            parts.append(f"{text} {name}" if name in _UNITS else f"{name} {text}")
        for name, value in few_losses(status.losses).items():
            parts.append(f"{name} {format_return(value)}")
        self._print("  ".join([*parts, f"ETA {self._measures.time_to_go(status)}"]))

    def show_evaluation(
        self, num_steps: int, num_episodes: int, num_wanted: int
    ) -> None:
        self._measures.pause()
        if time.monotonic() - self._last >= self._EVALUATION_SECONDS:
            text = evaluation_text(num_steps, num_episodes, num_wanted)
            self._print(f"      {text}")

    def close(self) -> None: ...

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        print(text, file=self._stream, flush=True)
