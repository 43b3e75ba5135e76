"""The live view of a run on a terminal: a bar, and a table of what there is to say."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, TextIO

from alf_lite.trainers.progress_measures import (
    Measures,
    Status,
    format_return,
)
from alf_lite.utils.output_streams import best_effort

_GAP = 3  # between two cells
_MIN_VALUE_WIDTH = 9


class ProgressBar:
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
