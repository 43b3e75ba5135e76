"""A real trainer in a process of its own, to be stopped, killed and looked after."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from alf_lite.checkpoints.checkpointer import Checkpointer

REPOSITORY = Path(__file__).parents[2]
# What a machine that is busy with other things may need; nothing waits that long else.
SECONDS = 300.0


def wait_until(condition: Callable[[], object], what: str, seconds: float = SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def living(session: int) -> list[int]:
    """The processes of a session that are not zombies."""
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path("/proc", entry, "stat").read_text()
        except OSError:
            continue
        state, _, _, its_session = text.rpartition(")")[2].split()[:4]
        if int(its_session) == session and state != "Z":
            pids.append(int(entry))
    return pids


def steps_of(root_dir: Path) -> list[int]:
    """The checkpoints that are there, by the names of their directories."""
    names = [path.name for path in (root_dir / "checkpoints").glob("ckpt-*")]
    numbers = [name.removeprefix("ckpt-") for name in names]
    return sorted(int(number) for number in numbers if number.isdecimal())


def newest_step(root_dir: Path) -> int:
    """The step of the newest checkpoint that training can continue from; 0 for none."""
    if not steps_of(root_dir):
        return 0
    checkpointer = Checkpointer(root_dir / "checkpoints", read_only=True)
    return checkpointer.load(resumable=True).step


class Trainer:
    """One start of a program, :mod:`alf_lite.bin.train` unless another is named."""

    def __init__(self, root_dir: Path, directory: Path, pid: int) -> None:
        self.root_dir = root_dir
        self.pid = pid
        self._directory = directory

    @property
    def exit_code(self) -> int | None:
        """None while it runs, negative if a signal killed it."""
        try:
            return int((self._directory / "status").read_text())
        except FileNotFoundError:
            return None

    @property
    def output(self) -> str:
        return (self._directory / "output").read_text(errors="replace")

    @property
    def error(self) -> str:
        return (self._directory / "error").read_text(errors="replace")

    def wait(self, seconds: float = SECONDS) -> int:
        """The exit code, when it and all it started have ended."""
        wait_until(lambda: self.exit_code is not None, "it does not end", seconds)
        wait_until(lambda: not living(self.pid), "a process is left", 60)
        code = self.exit_code
        assert code is not None
        return code

    def finish(self, expected: int = 0, seconds: float = SECONDS) -> None:
        """Waits for an end without any traceback."""
        code = self.wait(seconds)
        assert code == expected, (code, self.output, self.error)
        assert "Traceback" not in self.output + self.error, self.error

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Waits while it runs; fails if it ends before."""
        wait_until(lambda: condition() or self.exit_code is not None, what)
        assert condition(), (what, self.exit_code, self.error)

    def wait_for_checkpoint(self, step: int = 1) -> None:
        """Waits for a checkpoint of ``step`` or a later one."""
        self.wait_for(
            lambda: max(steps_of(self.root_dir), default=0) >= step,
            f"no checkpoint of step {step}",
        )

    def send(self, *numbers: int) -> None:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_all(self) -> None:
        """SIGKILL to it and everything it started, as a batch system does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Leaves nothing behind, whatever the test was doing."""
        for pid in living(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Launcher:
    """Starts trainers for a test; ends those that are left.

    Args:
        directory: for what the trainers print.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Trainer] = []
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
            ).rstrip(os.pathsep),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.prepared_trainer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=environment,
            start_new_session=True,
        )
        assert self._read() == "ready"

    def start(
        self,
        root_dir: Path,
        arguments: Sequence[str] = (),
        *,
        module: str = "alf_lite.bin.train",
        settings: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        limits: Mapping[str, int] | None = None,
        user: int | None = None,
        working_directory: Path | None = None,
        output: Path | None = None,
        error: Path | None = None,
    ) -> Trainer:
        """Starts ``python -m module --root_dir=root_dir arguments``.

        Args:
            root_dir: of the run.
            arguments: further ones.
            module: the program.
            settings: for ``--gin_param``.
            environ: added to the environment variables.
            limits: names in the module ``resource`` -> values.
            user: the number of the user and group who runs it.
            working_directory: of the program.
            output: where its stdout goes; a file that the test can read by default.
            error: the same of stderr.
        """
        directory = self._directory / str(len(self._started))
        directory.mkdir(parents=True)
        request = {
            "module": module,
            "arguments": [
                f"--root_dir={root_dir}",
                *arguments,
                *(f"--gin_param={setting}" for setting in settings),
            ],
            "directory": str(working_directory or directory),
            "output": str(output or directory / "output"),
            "error": str(error or directory / "error"),
            "status": str(directory / "status"),
            "environ": dict(environ or {}),
            "limits": dict(limits or {}),
            "user": user,
        }
        (directory / "output").touch()
        (directory / "error").touch()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        trainer = Trainer(root_dir, directory, int(self._read()))
        self._started.append(trainer)
        return trainer

    @property
    def data_bytes(self) -> int:
        """The memory that a trainer has before it begins, for RLIMIT_DATA."""
        status = Path("/proc", str(self._process.pid), "status").read_text()
        line = next(line for line in status.splitlines() if "VmData" in line)
        return int(line.split()[1]) * 1024

    def end_all(self) -> None:
        """Ends what a test has left running."""
        for trainer in self._started:
            if trainer.exit_code is None:
                trainer.end()

    def close(self) -> None:
        self.end_all()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
