"""A run of ``train`` in a process of its own, and how it ended."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from alf_lite.border import CONFIG, check_regular, reading
from alf_lite.errors import ConfigError, DataError
from alf_lite.processes.child_main import die_with_parent
from alf_lite.processes.child_process import how_it_ended
from alf_lite.runs.directory import read_run_record
from alf_lite.runs.lock import IN_TRAINING

OUTPUT_FILE = "output.log"
END_SECONDS = 15.0  # longer than a run takes to save what it can and to end
# What a run does something for and goes on; they wait until it can.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_TRAIN = (sys.executable, "-m", "alf_lite.bin.train")
_QUESTION_SECONDS = 1.0
_TAIL_BYTES = 4096


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
    def is_busy(self) -> bool:
        """Whether another process trains in its directory."""
        return self.is_refused and self.message.startswith(IN_TRAINING)

    @property
    def score(self) -> float | None:
        """The mean return of the final evaluation, else that of the training."""
        evaluation = self.record.get("evaluation")
        return self.record.get("average_return") if evaluation is None else evaluation

    @property
    def result(self) -> str:
        """The score and what it is, "" if there is none."""
        return "" if self.score is None else f"return {self.score:.2f}"


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
        self._begin = 0
        if self._output.exists():
            check_regular(self._output, CONFIG)  # opening a pipe would wait
            self._begin = self._output.stat().st_size

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
            with reading(self._output) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._begin, size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except DataError:
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
        # The last words of what was killed do not say so.
        death = how_it_ended(exit_code) if exit_code < 0 else ""
        if exit_code < 0:  # as a shell says it
            exit_code = 128 - exit_code
        message = ""
        if exit_code != 0:
            lines = self._lines() or [f"exit code {exit_code}"]
            errors = [line for line in lines if line.startswith("error: ")]
            message = death or (errors or lines)[-1].removeprefix("error: ")
            if math.isinf(self._next_question):
                message = "stopped, it may not go on"
        return RunEnd(self.run, exit_code, read_run_record(self.run.root_dir), message)


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


def start_training(
    root_dir: Path, arguments: Sequence[str], directory: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts ``train``, which is stopped if this process is killed, on Linux.

    Args:
        root_dir: of the run, where its output goes, too.
        arguments: see ``Run``.
        directory: in which it works, if not in that of this process.
    """
    parent = os.getpid()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        die_with_parent(parent, signal.SIGTERM)

    with (root_dir / OUTPUT_FILE).open("ab") as file:
        return subprocess.Popen(
            [*_TRAIN, *arguments, f"--root_dir={root_dir}"],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches this process alone, which passes it on once.
            process_group=0,
            preexec_fn=prepare,
            env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ},
        )
