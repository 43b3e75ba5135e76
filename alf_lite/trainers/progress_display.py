"""Shows how a run progresses: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from alf_lite.trainers.progress_measures import (
    Measures,
    Status,
    few_losses,
    format_return,
)
from alf_lite.utils.output_streams import best_effort

_UNITS = ("steps", "steps/s", "updates", "updates/s")
_GAP = 3  # between two cells of the table below the bar
_MIN_VALUE_WIDTH = 9


class ProgressDisplay:
    """What a display does; this one shows nothing."""

    def start(self, status: Status) -> None: ...

    def begin_measuring(self, status: Status) -> None:
        """After the first iteration, in which workers start and code is compiled."""

    def is_due(self, fraction: float) -> bool:
        """Whether to call ``show``; asked in every iteration, and cheap."""
        return False

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
    return wanted or ProgressDisplay()


def _is_notebook() -> bool:
    """Whether the output of this process is shown below a cell."""
    if "ipykernel" not in sys.modules:
        return False
    from ipykernel.kernelapp import IPKernelApp

    return bool(IPKernelApp.initialized())


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


class ProgressLines(ProgressDisplay):
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
            if name == "return" and not math.isnan(status.evaluation):
                parts.append(f"evaluation {format_return(status.evaluation)}")
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

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        print(text, file=self._stream, flush=True)


class ProgressBar(ProgressDisplay):
    """A bar and a table, redrawn from the training loop: no thread competes with it."""

    _REDRAW_SECONDS = 0.4

    def __init__(self, stream: TextIO) -> None:
        self._stream = best_effort(stream)
        self._live: Any = None
        self._note = "starting"  # below the bar; "" in the middle of training
        self._time_to_go = "-"
        self._fields: dict[str, str] = {}

    def start(self, status: Status) -> None:
        # Imported here, because most processes never draw a bar.
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar as Bar

        self._measures = Measures(status)
        self._bar = Bar(total=1.0, completed=status.fraction)
        self._live = Live(console=Console(file=self._stream), auto_refresh=False)
        self._live.start()
        self._draw()
        self._last = -math.inf

    def begin_measuring(self, status: Status) -> None:
        self._measures = Measures(status)

    def is_due(self, fraction: float) -> bool:
        return time.monotonic() - self._last >= self._REDRAW_SECONDS

    def show(self, status: Status) -> None:
        fields = self._measures.fields(status)
        first = {"return": fields.pop("return", ""), "evaluation": ""}
        if not math.isnan(status.evaluation):
            first["evaluation"] = format_return(status.evaluation)
        fields |= {
            n: f"{int(fields[n]):,}" for n in ("steps", "updates") if n in fields
        }
        losses = {name: format_return(value) for name, value in status.losses.items()}
        fields = {**first, "iteration": f"{status.iterations:,}", **fields, **losses}
        fields = {name: text for name, text in fields.items() if text}
        self._fields = fields
        self._bar.completed = status.fraction
        self._time_to_go = self._measures.time_to_go(status)
        self._note = ""
        self._draw()

    def show_evaluation(
        self, num_steps: int, num_episodes: int, num_wanted: int
    ) -> None:
        self._measures.pause()
        if self.is_due(0.0):
            self._note = evaluation_text(num_steps, num_episodes, num_wanted)
            self._draw()

    def close(self) -> None:
        if self._live is not None:
            self._note = ""
            self._draw()
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        self._last = time.monotonic()
        top = Table.grid(padding=(0, 1), expand=True)
        top.add_column(width=4)
        top.add_column(ratio=1)
        top.add_column(no_wrap=True)
        percent = f"{self._bar.completed:4.0%}"
        top.add_row(percent, self._bar, f"ETA {self._time_to_go}")
        lines = cells(self._fields, self._live.console.width)
        lines += [f"     {self._note}"] * bool(self._note)
        text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        self._live.update(Group(top, text), refresh=True)


def evaluation_text(num_steps: int, num_episodes: int, num_wanted: int) -> str:
    """How far an evaluation is."""
    return f"evaluating, {num_episodes} of {num_wanted} episodes, {num_steps} steps"


def cells(fields: Mapping[str, str], width: int) -> list[str]:
    """Lines with as many ``name value`` in columns as fit."""
    if not fields:
        return []
    name_width = max(map(len, fields))
    # Not to move whenever a number becomes longer.
    value_width = max(_MIN_VALUE_WIDTH, *map(len, fields.values()))
    cell_width = name_width + 1 + value_width + _GAP
    num_columns = max((width - 5 + _GAP) // cell_width, 1)
    texts = [
        f"{name:<{name_width}} {value:>{value_width}}" for name, value in fields.items()
    ]
    gap = " " * _GAP
    return [
        "     " + gap.join(texts[begin : begin + num_columns])
        for begin in range(0, len(texts), num_columns)
    ]
