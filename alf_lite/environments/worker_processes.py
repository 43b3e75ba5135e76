"""The processes of environments, seen from the parent: start, talk, time out, end.

Every wait has a deadline and watches whether the processes still live. After an error
none of them is left.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import selectors
import threading
import time
from collections.abc import Iterable, Sequence
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NoReturn

from alf_lite.config import shipping as config_shipping
from alf_lite.environments import process_worker, worker_loop
from alf_lite.environments.worker_settings import WorkerSettings
from alf_lite.errors import ConfigError, DataError, EnvError
from alf_lite.processes import child_process

_CLOSE_SECONDS = (
    2.0  # for the environments' own close(), then their processes are killed
)
_DEATH_SECONDS = 1.0  # for the system to say how a process ended
_GRACE_SECONDS = 0.5
_start_lock = threading.Lock()


class WorkerProcesses:
    """One process per environment.

    Args:
        settings: one per process.
        timeout_seconds: for every reply, the first one included.

    Raises:
        EnvError: if a process cannot be started.
    """

    def __init__(
        self, settings: Sequence[WorkerSettings], timeout_seconds: float
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._processes: list[BaseProcess] = []
        self._requests: list[Connection] = []  # one pipe per process, both directions
        self._stacks: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self.name = ""
        # Runs before multiprocessing waits for its children at the end of the program.
        self._finalizer = util.Finalize(
            self,
            _kill,
            (self._processes, self._requests, self._stacks, self._selector),
            exitpriority=100,
        )
        try:
            for one in settings:
                self._start(one)
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        """Of the processes that were started."""
        pids = [process.pid for process in self._processes]
        return [pid for pid in pids if pid is not None]

    def request(self, message: bytes, indices: Iterable[int] | None = None) -> None:
        """Sends ``message`` to all processes, or to some."""
        for index in range(len(self._requests)) if indices is None else indices:
            self._send(index, message)

    def request_each(self, messages: Sequence[bytes]) -> None:
        """Sends each process its own message."""
        for index, message in enumerate(messages):
            self._send(index, message)

    def connection(self, index: int) -> Connection:
        """The pipe to a process, to pass file descriptors."""
        return self._requests[index]

    def replies(self, call: str, indices: Iterable[int] | None = None) -> list[bytes]:
        """Waits for one reply of each process, or of some.

        Args:
            call: what they do meanwhile, for messages.
            indices: who was sent a request; None for all.

        Returns:
            The contents of the replies, empty for the others.

        Raises:
            EnvError: naming the environment that raised, died or did not answer in
                time. All processes are gone then.
            ConfigError: if an environment cannot be built from what was given.
        """
        replies = [b""] * len(self._processes)
        waiting = set(range(len(replies)) if indices is None else indices)
        deadline = time.monotonic() + self._timeout_seconds
        while waiting:
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                # The clock also runs while the whole program is stopped (Ctrl-Z).
                ready = self._selector.select(_GRACE_SECONDS)
                if not ready:
                    self._raise_timeout(min(waiting), call)
            for key, _ in ready:
                index, is_reply = key.data
                if is_reply:
                    replies[index] = self._receive(index, call)
                    waiting.discard(index)
                elif not self._requests[index].poll(0):  # no last words
                    self._raise_death(index, call)
        return replies

    def close(self) -> None:
        """Lets the environments close themselves, then ends the processes."""
        self.request(worker_loop.CLOSE)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Ends all processes now and releases what belongs to them."""
        self._finalizer()

    # Starting

    def _start(self, settings: WorkerSettings) -> None:
        context = multiprocessing.get_context("spawn")
        requests, child_requests = context.Pipe()
        stacks, child_stacks = context.Pipe(duplex=False)
        self._requests.append(requests)
        self._stacks.append(stacks)
        process = context.Process(
            target=process_worker.main,
            args=(settings, child_requests, child_stacks),
            name=f"environment-{settings.env_index}",
            daemon=True,
        )
        needs_main = config_shipping.needs_main_module(settings.factory)
        with (
            _start_lock,
            child_process.blocked_signals(),
            child_process.hidden_main_module(needs_main),
        ):
            process.start()
        self._processes.append(process)
        # Ours must be the only other end, so that the death of either side is noticed.
        child_requests.close()
        child_stacks.close()
        index = settings.env_index
        self._selector.register(requests, selectors.EVENT_READ, (index, True))
        self._selector.register(process.sentinel, selectors.EVENT_READ, (index, False))

    def _send(self, index: int, message: bytes) -> None:
        # A process that is gone is reported by whoever waits for its reply.
        with contextlib.suppress(OSError):
            self._requests[index].send_bytes(message)

    # Receiving

    def _receive(self, index: int, call: str) -> bytes:
        """The content of a reply that has arrived."""
        try:
            reply = self._requests[index].recv_bytes()
        except (EOFError, OSError):
            self._raise_death(index, call)
        if not reply:
            return reply
        kind, content = reply[:1], reply[1:]
        if kind == worker_loop.DATA:
            return content
        text = content.decode()
        where = self._where(index, call)
        self.kill()
        if kind == worker_loop.BAD_CONFIG:
            raise ConfigError(f"{where}: {text}")
        if kind == worker_loop.BAD_DATA:
            raise DataError(f"{where}: {text}")
        if kind == worker_loop.BROKEN_CONTRACT:
            raise EnvError(f"{where}: {text}")
        raise EnvError(f"{where} raised {text}")

    # Errors

    def _where(self, index: int, call: str) -> str:
        name = f" ({self.name})" if self.name else ""
        pid = self._processes[index].pid
        return f"environment {index}{name}, process {pid}, {call}"

    def _raise_death(self, index: int, call: str) -> NoReturn:
        process = self._processes[index]
        process.join(_DEATH_SECONDS)
        where = self._where(index, call)
        stack = child_process.read_stack(self._stacks[index])
        self.kill()
        end = child_process.how_it_ended(process.exitcode)
        raise EnvError(f"{where}: the process {end}.{stack}")

    def _raise_timeout(self, index: int, call: str) -> NoReturn:
        where = self._where(index, call)
        stack = child_process.ask_for_stack(self.pids[index], self._stacks[index])
        self.kill()
        raise EnvError(
            f"{where}: no answer for {self._timeout_seconds:g} s, so it was killed. "
            f"If it needs longer, raise env_timeout_seconds.{stack}"
        )


def _kill(
    processes: list[BaseProcess],
    requests: list[Connection],
    stacks: list[Connection],
    selector: selectors.BaseSelector,
) -> None:
    selector.close()
    for connection in (*requests, *stacks):
        connection.close()
    for process in processes:
        process.kill()
    for process in processes:
        process.join(_CLOSE_SECONDS)
