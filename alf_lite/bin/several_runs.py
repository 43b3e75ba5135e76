"""Several runs in one call, each a ``train`` of its own in a process of its own.

A run behaves as if its command had been given by hand: it is resumed where it was
stopped, what it prints is in ``output.log`` of its directory, and one that fails leaves
the others alone.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TextIO

from alf_lite.bin import invocation
from alf_lite.errors import ConfigError
from alf_lite.utils.output_streams import best_effort

OUTPUT_FILE = "output.log"
_MAX_RUNS = 1000
_TRAIN = (sys.executable, "-m", "alf_lite.bin.train")
_POLL_SECONDS = 0.1
_QUESTION_SECONDS = 1.0
END_SECONDS = 15.0  # longer than a run takes to save what it can and to end
_REDRAW_SECONDS = 0.5
_LINE_SECONDS = 30.0  # between two lines of a run where there is no terminal
_TAIL_BYTES = 4096
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Run(NamedTuple):
    """What one process trains."""

    name: str  # "seed 3"
    root_dir: Path
    arguments: Sequence[str]  # of the program train, without --root_dir


class RunEnd(NamedTuple):
    """How it ended."""

    run: Run
    exit_code: int | None  # None if it was not started
    record: dict[str, Any]  # run.json, or {}
    message: str  # why, in one line; "" if it finished

    @property
    def is_finished(self) -> bool:
        return self.exit_code == 0

    @property
    def is_refused(self) -> bool:
        """Whether the flags or the conf are wrong."""
        return self.exit_code == ConfigError.exit_code

    @property
    def score(self) -> float | None:
        """The mean return of the final evaluation, else that of the training."""
        evaluation = self.record.get("evaluation")
        return self.record.get("average_return") if evaluation is None else evaluation


class RunInProgress(ABC):
    """A run that goes on, here or elsewhere; what it prints is in its directory.

    Args:
        run: which.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._next_question = 0.0
        run.root_dir.mkdir(parents=True, exist_ok=True)
        self._output = run.root_dir / OUTPUT_FILE
        self._begin = self._output.stat().st_size if self._output.exists() else 0

    @abstractmethod
    def poll(self) -> int | None:
        """The exit code, negative for a signal; None if it goes on."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Sends it a signal."""

    @abstractmethod
    def wait(self) -> None:
        """Until it has ended; not for ever."""

    def last_line(self) -> str:
        """What the run has printed last."""
        lines = self._lines() or ["starting"]
        # What to do with the run comes after how it ended.
        return next((line for line in lines if line.startswith("Trained ")), lines[-1])

    def _lines(self) -> list[str]:
        try:
            with self._output.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._begin, size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return [line.strip() for line in text.splitlines() if line.strip()]

    def stop_unless(self, may_go_on: Callable[[Run], bool]) -> None:
        """Asks once a second, and not again after a no."""
        now = time.monotonic()
        if now >= self._next_question:
            self._next_question = now + _QUESTION_SECONDS
            if not may_go_on(self.run):
                self._next_question = math.inf
                self.signal(signal.SIGTERM)

    def end(self) -> RunEnd | None:
        """How it ended; None if it goes on."""
        exit_code = self.poll()
        if exit_code is None:
            return None
        if exit_code < 0:  # as a shell says it
            exit_code = 128 - exit_code
        message = ""
        if exit_code != 0:
            lines = self._lines() or [f"exit code {exit_code}"]
            errors = [line for line in lines if line.startswith("error: ")]
            message = (errors or lines)[-1].removeprefix("error: ")
            if math.isinf(self._next_question):
                message = "stopped, it may not go on"
        return RunEnd(self.run, exit_code, read_record(self.run.root_dir), message)


class RunInProcess(RunInProgress):
    """As a child of this process."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._process = start_training(run.root_dir, run.arguments)

    def poll(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)


def start_training(root_dir: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts ``train``, which is stopped if this process is killed, on Linux.

    Args:
        root_dir: of the run, where its output goes, too.
        arguments: see ``Run``.
    """
    parent = os.getpid()

    def end_with_parent() -> None:
        if sys.platform.startswith("linux"):
            import ctypes

            set_parent_death_signal = 1
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

    with (root_dir / OUTPUT_FILE).open("ab") as file:
        return subprocess.Popen(
            [*_TRAIN, *arguments, f"--root_dir={root_dir}"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches this process alone, which passes it on once.
            process_group=0,
            preexec_fn=end_with_parent,
            env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ},
        )


def read_record(root_dir: Path) -> dict[str, Any]:
    """``run.json``; {} if there is none that can be read."""
    try:
        record = json.loads((root_dir / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def train_all(
    runs: Iterable[Run],
    jobs: int,
    *,
    on_end: Callable[[RunEnd], None] = lambda end: None,
    may_go_on: Callable[[Run], bool] = lambda run: True,
    are_alike: bool = True,
    start: Callable[[Run], RunInProgress] = RunInProcess,
    stream: TextIO | None = None,
) -> list[RunEnd]:
    """Trains all, ``jobs`` at a time; shows how far each of them is.

    A signal that would stop this process stops the runs, each with a checkpoint; the
    same signal once more makes them hurry.

    Args:
        runs: what is trained. The next one is asked for when it can be started, so that
            it may depend on how others have ended.
        jobs: processes at a time.
        on_end: called with every run that ends.
        may_go_on: asked about every run once a second; False stops it.
        are_alike: whether what is wrong with the flags or the conf of the first runs is
            wrong for those that have not begun, too: then they are not started.
        start: begins a run.
        stream: where the progress is shown; stderr by default.

    Returns:
        How each of ``runs`` ended, in their order.

    Raises:
        StoppedError: if a signal has stopped them; all have ended.
    """
    display = _Display(sys.stderr if stream is None else stream)
    waiting = _Waiting(runs, are_alike)
    running: list[RunInProgress] = []
    ends: dict[str, RunEnd] = {}
    with _noted_signals() as signals, display:
        try:
            while True:
                while len(running) < jobs and not signals and (run := waiting.next()):
                    running.append(start(run))
                if not running:
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
                    display.show_end(end)
                    on_end(end)
                    waiting.note(end)
                if signals.take_new():
                    display.show_stop(len(running))
                    for process in running:
                        process.signal(signals.last)
        finally:
            # An error in here must not leave them alone.
            _end(running)
    if signals:
        raise StoppedError(signals.last)
    not_started = "not started"
    return [ends.get(r.name, RunEnd(r, None, {}, not_started)) for r in waiting.seen]


def _end(processes: Sequence[RunInProgress]) -> None:
    for process in processes:
        process.signal(signal.SIGTERM)
    for process in processes:
        process.wait()


class _Waiting:
    """Runs that have not begun."""

    def __init__(self, runs: Iterable[Run], are_alike: bool) -> None:
        self.seen: list[Run] = []  # in their order
        self._are_alike = are_alike
        self._runs = iter(runs)
        self._ends: list[RunEnd] = []

    def next(self) -> Run | None:
        run = next(self._runs, None)
        if run is not None:
            self.seen.append(run)
        return run

    def note(self, end: RunEnd) -> None:
        """None of them will begin if those like them were refused."""
        self._ends.append(end)
        if self._are_alike and are_refused_alike(self._ends):
            self.seen += self._runs


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
    """Those that came."""

    def __init__(self) -> None:
        self.last = 0
        self._is_new = False

    def note(self, number: int, frame: FrameType | None) -> None:
        self.last, self._is_new = number, True

    def take_new(self) -> bool:
        is_new, self._is_new = self._is_new, False
        return is_new

    def __bool__(self) -> bool:
        return self.last != 0


@contextlib.contextmanager
def _noted_signals() -> Iterator[_Signals]:
    signals = _Signals()
    # One that is ignored, as by nohup, stays so.
    handled = [n for n in _STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signals.note) for number in handled}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Display:
    """A line for each run that goes on: live on a terminal, now and then elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = best_effort(stream)
        self._is_terminal = stream.isatty()
        self._width = 0  # of the longest name so far
        self._lines: dict[str, str] = {}
        self._times: dict[str, float] = {}
        self._live: Any = None
        self._drawn = -1.0

    def __enter__(self) -> _Display:
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

    def show_end(self, end: RunEnd) -> None:
        self._lines.pop(end.run.name, None)
        if end.is_finished:
            score = end.score
            text = "finished" if score is None else f"finished: return {score:.2f}"
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


# Seeds


def parse_seeds(text: str) -> list[int]:
    """``0-4``, ``0,3,7`` or ``0-2,9`` as numbers.

    Raises:
        ConfigError: for anything else, and for a seed that is named twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?", part)
        if found is None:
            raise ConfigError(
                f"--seeds={text}: expected numbers and ranges, such as 0-4 or 0,3,7"
            )
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first >= _MAX_RUNS:
            raise ConfigError(
                f"--seeds={text}: {part.strip()} is not a range of up to {_MAX_RUNS}"
            )
        seeds += range(first, last + 1)
    twice = {seed for seed in seeds if seeds.count(seed) > 1}
    if twice:
        raise ConfigError(f"--seeds={text}: {min(twice)} is named twice")
    return seeds


def train_seeds(
    seeds: Sequence[int], root_dir: str, arguments: Sequence[str], jobs: int | None
) -> int:
    """Trains one run for each seed in ``root_dir/seed_N``; prints a table.

    Args:
        seeds: see :func:`parse_seeds`.
        root_dir: of all.
        arguments: of the program train, without seed and root_dir.
        jobs: runs at a time; None for as many as there are cores.

    Returns:
        The exit code: that of the first run that failed, if one did.

    Raises:
        ConfigError: if ``root_dir`` is that of a single run, or a run says that the
            flags or the conf are wrong.
    """
    folder = Path(root_dir)
    if (folder / "run.json").exists():
        raise ConfigError(
            f"{folder} holds a run of its own. --seeds makes one in seed_N below "
            "root_dir for each seed: give another directory."
        )
    runs = [
        Run(f"seed {seed}", folder / f"seed_{seed}", [*arguments, f"--seed={seed}"])
        for seed in seeds
    ]
    jobs = jobs or min(len(runs), num_cores())
    print(f"{len(runs)} runs in {folder}, {jobs} at a time.", file=sys.stderr)
    try:
        ends = train_all(runs, jobs)
    except StoppedError as error:
        print(f"Stopped by {error}. The same command continues.")
        return error.exit_code
    started = [end for end in ends if end.exit_code is not None]
    if are_refused_alike(started) or (len(ends) == 1 and ends[0].is_refused):
        raise ConfigError(started[0].message)
    print("\n".join(table(ends)))
    typed = shlex.quote(str(folder))
    print(f"TensorBoard:  tensorboard --logdir={typed}")
    print(f"Curves:       {invocation('plot')} {typed}")
    failed = [end.exit_code for end in ends if not end.is_finished]
    return next((code for code in failed if code is not None), 0)


def num_cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def table(ends: Sequence[RunEnd]) -> list[str]:
    """A line for each run, and the mean over those that finished."""
    from alf_lite.trainers.progress_measures import format_seconds
    from alf_lite.utils.statistics import bootstrap_ci95

    width = max(len(end.run.name) for end in ends)
    lines = [f"{'':<{width}}  {'RETURN':>10}  {'STEPS':>10}  {'TIME':>9}  END"]
    for end in ends:
        record = end.record
        score = "-" if end.score is None else f"{end.score:.2f}"
        seconds = format_seconds(record["seconds"]) if "seconds" in record else "-"
        how = record.get("stop_reason", "") if end.is_finished else end.message
        if not end.is_finished and end.exit_code is not None:
            how = f"exit code {end.exit_code}: {how} ({end.run.root_dir / OUTPUT_FILE})"
        lines.append(
            f"{end.run.name:<{width}}  {score:>10}  {record.get('env_steps', '-'):>10}"
            f"  {seconds:>9}  {how}"
        )
    scores = [e.score for e in ends if e.is_finished and e.score is not None]
    if scores:
        interval = bootstrap_ci95(scores)
        shown = (
            ""
            if interval is None
            else f", 95 % interval over seeds [{interval[0]:.2f}, {interval[1]:.2f}]"
        )
        of = "1 run" if len(scores) == 1 else f"{len(scores)} runs"
        lines.append(f"Mean return of {of}: {sum(scores) / len(scores):.2f}{shown}")
    return lines
