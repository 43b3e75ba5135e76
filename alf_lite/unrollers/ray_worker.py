"""An unroll worker in an actor of Ray."""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing import reduction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite.processes.child_main import last_words
from alf_lite.processes.shared_memory import SharedMemory
from alf_lite.unrollers.unroll_worker import UnrollWorker, WorkerSettings
from alf_lite.unrollers.worker_memory import flat_parameters
from alf_lite.utils.threads import set_num_threads

# Groups of calls: what works in the environments, what is heard meanwhile, and a call
# that only ends with the process.
UNROLLS, NEWS, LIFE = "unrolls", "news", "life"
GROUPS = (UNROLLS, NEWS, LIFE)
_NEWS_SECONDS = 600.0  # in which parameters that were sent must arrive

# (b"" or last words, see ``child_main``; what was asked for; number of an unroll; its
# bytes). Ray may deliver answers in another order than they were given in.
Answer = tuple[bytes, bytes, int, np.ndarray | None]


class Place(NamedTuple):
    """Where a worker runs."""

    host: str
    pid: int
    node: str  # Ray's name of the machine, or of a part of it


class Signs(NamedTuple):
    """Whether a worker lives, and what it does."""

    heartbeat: int
    stack: str


class RayWorker:
    """Builds an ``UnrollWorker`` and calls it as it is asked to.

    Everything that is said is bytes and numbers: errors too, as text.
    """

    def __init__(self) -> None:
        self._heartbeat = np.zeros(1, np.int64)
        self._stop = np.zeros(1, np.int64)
        self._parameters = ArrivedParameters()
        self._worker: UnrollWorker | None = None
        self._num_unrolls = 0
        self._thread = 0  # that works in the environments

    def place(self) -> Place:
        import ray

        node = ray.get_runtime_context().get_node_id()
        return Place(socket.gethostname(), os.getpid(), node)

    def live(self) -> None:
        """Never returns: the caller hears when the process is gone."""
        threading.Event().wait()

    # Group UNROLLS

    def build(self, dumped: bytes, places: list[str]) -> Answer:
        """Builds what ``WorkerSettings`` say; answers with a ``WorkerDescription``.

        Args:
            dumped: the settings.
            places: where the trainer finds modules, such as those beside its conf.
        """
        self._thread = threading.get_ident()
        sys.path += [place for place in places if place not in sys.path]
        set_num_threads(1)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        try:
            settings: WorkerSettings = reduction.ForkingPickler.loads(dumped)
            options = settings.options
            self._parameters.describe(settings)
            self._worker = UnrollWorker(
                settings, self._parameters.read, self._heartbeat, self._stop
            )
            description = self._worker.begin_episodes()
            self._slot = options.make_slots(description.rows, 1)
            self._slot.create_here()
        except BaseException as error:  # SystemExit and the like must be said, too
            return last_words(error), b"", 0, None
        return b"", bytes(reduction.ForkingPickler.dumps(description)), 0, None

    def unroll(self, slot: int, version: int) -> Answer:
        """Unrolls with parameters of ``version`` or newer; the unroll as bytes."""
        assert self._worker is not None, "not built"
        try:
            self._parameters.wait_for(version)
            report = self._worker.unroll(slot, self._slot.rows(0))
        except BaseException as error:  # SystemExit and the like must be said, too
            return last_words(error), b"", 0, None
        self._num_unrolls += 1
        return b"", report.pack(), self._num_unrolls, self._slot.bytes_of_all

    def close(self) -> None:
        """Closes the environments; comes after ``stop``."""
        if self._worker is not None:
            self._worker.close()

    # Group NEWS

    def refresh(self, version: int, values: np.ndarray) -> None:
        """Has the next unroll take over newer parameters."""
        self._parameters.arrive(version, values)

    def look(self) -> Signs:
        """Whether the worker goes on, and where it is."""
        frame = sys._current_frames().get(self._thread)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        return Signs(int(self._heartbeat[0]), stack)

    def stop(self) -> None:
        """Ends an unroll that goes on, at its next step."""
        self._stop[0] = 1


class ArrivedParameters:
    """The newest parameters that have arrived. One thread takes in, another one reads.

    A set of parameters is one array, which never changes: none is ever used of which
    some are newer than others.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._newest: tuple[int, np.ndarray | None] = (0, None)
        self._memory: SharedMemory | None = None

    def describe(self, settings: WorkerSettings) -> None:
        """Says how the tensors lie in the array."""
        self._memory = flat_parameters(settings.tensor_specs.values())

    def arrive(self, version: int, values: np.ndarray) -> None:
        """Keeps ``values``, if there are no newer ones."""
        with self._news:
            if version > self._newest[0]:
                self._newest = version, values
                self._news.notify_all()

    def wait_for(self, version: int) -> None:
        """Until ``version`` or a newer one is there.

        Raises:
            TimeoutError: if it does not come.
        """
        with self._news:
            has_come = self._news.wait_for(
                lambda: self._newest[0] >= version, _NEWS_SECONDS
            )
        if not has_come:
            raise TimeoutError(
                f"version {version} of the parameters has not arrived in "
                f"{_NEWS_SECONDS:g} s; the newest is {self._newest[0]}"
            )

    def read(self, into: Sequence[Tensor], known_version: int) -> int:
        """See ``unroll_worker.ReadParameters``."""
        version, values = self._newest
        if values is not None and version != known_version:
            assert self._memory is not None, "not described"
            self._memory.bytes_of_all[:] = values
            with torch.no_grad():
                torch._foreach_copy_(list(into), self._memory.tensors())
        return version
