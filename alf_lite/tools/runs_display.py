"""How far each of several runs is, on a terminal or in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TextIO

from alf_lite.tools.run_processes import Run, RunEnd
from alf_lite.utils.output_streams import best_effort

_REDRAW_SECONDS = 0.5
_LINE_SECONDS = 30.0  # between two lines of a run where there is no terminal


class RunsDisplay:
    """A line for each run that goes on: live on a terminal, now and then elsewhere.

    Args:
        stream: where the lines go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = best_effort(stream)
        self._is_terminal = stream.isatty()
        self._width = 0  # of the longest name so far
        self._lines: dict[str, str] = {}
        self._times: dict[str, float] = {}
        self._live: Any = None

    def __enter__(self) -> RunsDisplay:
        if self._is_terminal:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(file=self._stream), auto_refresh=False, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, run: Run, read_line: Callable[[], str]) -> None:
        self._width = max(self._width, len(run.name))
        now = time.monotonic()
        interval = _REDRAW_SECONDS if self._is_terminal else _LINE_SECONDS
        if run.name not in self._times:
            self._times[run.name] = now if not self._is_terminal else -1.0
        if now - self._times[run.name] < interval:
            return
        self._times[run.name] = now
        line = read_line()
        if self._live is None and self._lines.get(run.name) != line:
            self._print(run, line)
        self._lines[run.name] = line
        self._draw()

    def show_end(self, end: RunEnd, result: str) -> None:
        self._lines.pop(end.run.name, None)
        if end.is_finished:
            text = f"finished: {result}" if result else "finished"
        elif end.is_refused:
            return  # which is said at the end
        else:
            text = f"exit code {end.exit_code}: {end.message}"
        self._print(end.run, text)
        self._draw()

    def show_stop(self, num_running: int) -> None:
        if num_running:
            self._write(f"Stopping, {num_running} to be saved. Once more: at once.")

    def _print(self, run: Run, text: str) -> None:
        self._write(f"{run.name:<{self._width}}  {text}")

    def _write(self, text: str) -> None:
        if self._live is None:
            print(text, file=self._stream, flush=True)
        else:
            self._live.console.print(
                text, markup=False, highlight=False, soft_wrap=True
            )

    def _draw(self) -> None:
        if self._live is None:
            return
        from rich.text import Text

        lines = [f"{n:<{self._width}}  {line}" for n, line in self._lines.items()]
        self._live.update(
            Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True
        )
