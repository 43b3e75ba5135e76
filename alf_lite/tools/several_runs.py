"""Several runs in one call, each a ``train`` of its own in a process of its own.

A run behaves as if its command had been given by hand: it is resumed where it was
stopped, what it prints is in ``output.log`` of its directory, and one that fails leaves
the others alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType

from alf_lite.tools.run_processes import (
    PASSED_ON,
    Run,
    RunEnd,
    RunInProcess,
    RunInProgress,
)
from alf_lite.tools.runs_display import RunsDisplay

_POLL_SECONDS = 0.1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def train_all(
    runs: Iterable[Run | None],
    jobs: int,
    *,
    on_end: Callable[[RunEnd], None] = lambda end: None,
    may_go_on: Callable[[Run], bool] = lambda run: True,
    result_of: Callable[[RunEnd], str] = lambda end: end.result,
    are_alike: bool = True,
    start: Callable[[Run], RunInProgress] = RunInProcess,
) -> list[RunEnd]:
    """Trains all, ``jobs`` at a time; shows how far each of them is.

    A signal that would stop this process stops the runs, each with a checkpoint; the
    same signal once more makes them hurry. SIGUSR1 and SIGUSR2 are passed on to those
    that train just now.

    Args:
        runs: what is trained. The next one is asked for when it can be started, so that
            it may depend on how others have ended. After a None it is asked for again.
        jobs: processes at a time.
        on_end: called with every run that ends.
        may_go_on: asked about every run once a second; False stops it.
        result_of: what is shown of one that has ended, "" for nothing.
        are_alike: whether what is wrong with the flags or the conf of the first runs is
            wrong for those that have not begun, too: then they are not started.
        start: begins a run.

    Returns:
        How each of ``runs`` ended, in their order.

    Raises:
        StoppedError: if a signal has stopped them; all have ended.
    """
    display = RunsDisplay(sys.stderr)
    waiting = _Waiting(runs, are_alike)
    running: list[RunInProgress] = []
    ends: dict[str, RunEnd] = {}
    with _noted_signals() as signals, display:
        try:
            while True:
                while len(running) < jobs and not signals and (run := waiting.next()):
                    running.append(start(run))
                if not running and (signals or waiting.is_empty):
                    break
                time.sleep(_POLL_SECONDS)
                for process in list(running):
                    end = process.end()
                    if end is None:
                        display.show(process.run, process.last_line)
                        process.stop_unless(may_go_on)
                        continue
                    running.remove(process)
                    ends[end.run.name] = end
                    display.show_end(end, result_of(end))
                    on_end(end)
                    waiting.note(end)
                _pass_on(signals.take_new(), running, display)
        finally:
            # An error in here must not leave them alone.
            _end(running)
    if signals:
        raise StoppedError(signals.last)
    not_started = "not started"
    return [ends.get(r.name, RunEnd(r, None, {}, not_started)) for r in waiting.seen]


def _pass_on(
    numbers: Iterable[int], running: Sequence[RunInProgress], display: RunsDisplay
) -> None:
    for number in numbers:
        if number in _STOP_SIGNALS:
            display.show_stop(len(running))
        for process in running:
            process.signal(number)


def _end(processes: Sequence[RunInProgress]) -> None:
    for process in processes:
        process.signal(signal.SIGTERM)
    for process in processes:
        process.wait()


class _Waiting:
    """Runs that have not begun."""

    def __init__(self, runs: Iterable[Run | None], are_alike: bool) -> None:
        self.seen: list[Run] = []  # in their order
        self.is_empty = False
        self._are_alike = are_alike
        self._runs = iter(runs)
        self._ends: list[RunEnd] = []

    def next(self) -> Run | None:
        for run in self._runs:
            if run is not None:
                self.seen.append(run)
            return run
        self.is_empty = True
        return None

    def note(self, end: RunEnd) -> None:
        """None of them will begin if those like them were refused."""
        self._ends.append(end)
        if self._are_alike and are_refused_alike(self._ends):
            self.seen += filter(None, self._runs)


def are_refused_alike(ends: Sequence[RunEnd]) -> bool:
    """Whether the flags or the conf are wrong for all: two runs say the same.

    What one says alone may be its own matter, as that it is being trained already.
    """
    messages = {end.message if end.is_refused else "" for end in ends}
    return len(ends) > 1 and len(messages) == 1 and "" not in messages


class StoppedError(Exception):
    """A signal has stopped the runs."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class _Signals:
    """Those that came; true once one of them has been a signal to stop."""

    def __init__(self) -> None:
        self.last = 0  # of those to stop
        self._new: dict[int, None] = {}

    def note(self, number: int, frame: FrameType | None) -> None:
        if number in _STOP_SIGNALS:
            self._new.pop(self.last, None)
            self.last = number
        self._new[number] = None

    def take_new(self) -> Iterable[int]:
        new, self._new = self._new, {}
        return new

    def __bool__(self) -> bool:
        return self.last != 0


@contextlib.contextmanager
def _noted_signals() -> Iterator[_Signals]:
    signals = _Signals()
    # One that is ignored, as by nohup, stays so, and handlers of the caller.
    handled = [n for n in _STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    handled += [n for n in PASSED_ON if signal.getsignal(n) is signal.SIG_DFL]
    before = {number: signal.signal(number, signals.note) for number in handled}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def num_cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
