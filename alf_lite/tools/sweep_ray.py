"""The runs of a sweep on the machines of a cluster of Ray."""

from __future__ import annotations

import functools
import logging
import os
import queue
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from alf_lite.errors import ConfigError, WorkerError
from alf_lite.processes.ray_cluster import (
    ActorLostError,
    RayActor,
    RayCluster,
    answer_of,
)
from alf_lite.runs.lock import RunLock
from alf_lite.tools.run_processes import (
    END_SECONDS,
    PASSED_ON,
    Run,
    RunInProgress,
    start_training,
)

_logger = logging.getLogger(__name__)

_MAX_LOST = 3  # machines, until a run counts as failed
_TRAIN, _NEWS = "train", "news"  # groups of calls


class TrialProcess:
    """Runs ``train`` where the actor is. It ends with the actor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []  # that came before it

    def train(self, root_dir: str, arguments: list[str], directory: str) -> int | str:
        """The exit code; or, as text, why it cannot begin.

        Args:
            root_dir: of the run.
            arguments: of train.
            directory: of the sweep, from which paths among them are.
        """
        path = Path(root_dir)
        if not path.is_dir():
            return (
                f"there is no {root_dir} on {os.uname().nodename}: --root_dir must be "
                "a directory that all machines share"
            )
        # What the program around wants of Ray is not for a run inside of it.
        os.environ.pop("RAY_ADDRESS", None)
        _wait_for_lock(path)
        # Where Ray was started, the same name may be that of another conf.
        is_there = os.path.isdir(directory)
        self._process = start_training(
            path, arguments, Path(directory) if is_there else path
        )
        for number in self._signals:
            self._process.send_signal(number)
        return self._process.wait()

    def signal(self, number: int) -> None:
        if self._process is None:
            self._signals.append(number)
        else:
            self._process.send_signal(number)


def _wait_for_lock(root_dir: Path) -> None:
    """Until an earlier process of the run, whose actor was lost, has ended."""
    deadline = time.monotonic() + 2 * END_SECONDS
    lock = RunLock(root_dir)
    while time.monotonic() < deadline:
        try:
            lock.acquire()
        except ConfigError:  # train says so, if it stays so
            time.sleep(0.5)
        else:
            lock.release()
            return


class RunOnRay(RunInProgress):
    """A run in an actor, which waits until a machine has room for it.

    When its machine is lost it is started on another one, where it goes on from its
    last checkpoint.

    Args:
        run: which.
        start_actor: gives a ``TrialProcess`` in an actor.
    """

    def __init__(self, run: Run, start_actor: Callable[[], RayActor]) -> None:
        super().__init__(run)
        self._start_actor = start_actor
        self._answers: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._num_lost = 0
        self._exit_code: int | None = None
        self._last_signal = 0  # to stop
        self._start()

    def _start(self) -> None:
        self._actor = self._start_actor()
        # absolute: an actor has another working directory
        call = str(self.run.root_dir.resolve()), [*self.run.arguments], os.getcwd()
        self._actor.ask("train", *call, group=_TRAIN, then=self._answers.put)

    def poll(self) -> int | None:
        if self._exit_code is None and not self._answers.empty():
            self._take_in(self._answers.get())
        return self._exit_code

    def _take_in(self, future: Future[Any]) -> None:
        try:
            answer = answer_of(future)
        except ActorLostError as error:
            self._num_lost += 1
            if self._last_signal:
                self._exit_code = 128 + self._last_signal
            elif error.is_start or self._num_lost >= _MAX_LOST:
                self._note(f"its machine was lost {self._num_lost} times: {error}")
                self._exit_code = WorkerError.exit_code
            else:
                _logger.warning(
                    "%s: its machine or its process is lost; it goes on elsewhere.",
                    self.run.name,
                )
                self._start()
            return
        self._actor.kill()
        if isinstance(answer, str):
            self._note(answer)
            answer = ConfigError.exit_code
        self._exit_code = answer

    def _note(self, error: str) -> None:
        """Says so where the run would have said it."""
        with self._output.open("a", encoding="utf-8") as file:
            file.write(f"error: {' '.join(error.split())}\n")

    def signal(self, number: int) -> None:
        if number not in PASSED_ON:
            self._last_signal = number
        self._actor.tell("signal", number, group=_NEWS)

    def wait(self) -> None:
        deadline = time.monotonic() + END_SECONDS
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        self._actor.kill()


class TrialCluster:
    """Where the runs of a sweep are started.

    Args:
        address: see ``RayCluster``.
        num_cpus: of a run.
        num_gpus: of a run.

    Raises:
        ConfigError: if there is no Ray, or no machine that is large enough.
    """

    def __init__(self, address: str | None, num_cpus: float, num_gpus: float) -> None:
        self._cluster = RayCluster(address, num_cpus)
        self._start_actor = functools.partial(
            self._cluster.start_actor,
            TrialProcess,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            groups=(_TRAIN, _NEWS),
        )
        wanted = {"CPU": num_cpus, "GPU": num_gpus}
        self.num_at_once = self._cluster.num_places(wanted)
        if self.num_at_once < 1:
            self.close()
            raise ConfigError(
                f"no machine of Ray has {num_cpus:g} CPUs and {num_gpus:g} GPUs for a "
                f"run; it has {self._cluster.resources_text()}. Lower --cpus_per_trial "
                "or --gpus_per_trial."
            )

    def start(self, run: Run) -> RunInProgress:
        """Starts a run as soon as there is room for it."""
        return RunOnRay(run, self._start_actor)

    def close(self) -> None:
        self._cluster.close()
