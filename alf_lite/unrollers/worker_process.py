"""One unroll worker, seen from the trainer: start, talk, watch, end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, reduction, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from alf_lite.config import shipping as config_shipping
from alf_lite.errors import AlfLiteError, ConfigError, EnvError, WorkerError
from alf_lite.processes import child_process
from alf_lite.unrollers import unroll_worker, worker_messages
from alf_lite.unrollers.unroll_worker import WorkerSettings

CLOSE_SECONDS = 2.0  # for the environments' own close(), then the process is killed
_DEATH_SECONDS = 1.0  # for the system to say how a process ended
# Building an optimizer imports the second one, which takes a second.
_PRELOAD = (unroll_worker.__name__, "torch._dynamo")
_start_lock = threading.Lock()


def start_server(preload: Sequence[str] = ()) -> None:
    """Starts the process that worker processes are forked from, if there is none.

    It imports the library once, in some seconds, during which the caller can do other
    things.

    Args:
        preload: modules that it imports, too.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOAD, *preload])
    with _start_lock, child_process.blocked_signals(), _one_thread():
        forkserver.ensure_running()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Has libraries that a child loads start no threads of their own."""
    name = "OMP_NUM_THREADS"
    before = os.environ.get(name)
    os.environ.setdefault(name, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


class WorkerProcess:
    """A process that runs ``unroll_worker.main``.

    It is forked from the server process, see :func:`start_server`. It ends with the
    trainer, however that ends.

    Args:
        settings: of the worker.
        descriptors: of the memory that it maps first.
        preload: for the server, if it does not run yet.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        descriptors: Sequence[int],
        preload: Sequence[str] = (),
    ) -> None:
        start_server(preload)
        context = multiprocessing.get_context("forkserver")
        self.worker_index = settings.worker_index
        self.connection, child_connection = context.Pipe()
        self._stacks, child_stacks = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=unroll_worker.main,
            args=(settings, child_connection, child_stacks),
            name=f"unroll-worker-{settings.worker_index}",
        )
        needs_main = config_shipping.needs_main_module(settings.recipe)
        try:
            with (
                _start_lock,
                child_process.blocked_signals(),
                child_process.hidden_main_module(needs_main),
            ):
                self._process.start()
        except BaseException:
            self.connection.close()
            self._stacks.close()
            raise
        finally:
            # Ours must be the only other end, so that a death is noticed.
            child_connection.close()
            child_stacks.close()
        # Runs before multiprocessing waits for its children at the end of the program.
        self._finalizer = util.Finalize(
            self,
            _end,
            (self._process, self.connection, self._stacks),
            exitpriority=100,
        )
        for descriptor in descriptors:
            self.send_descriptor(descriptor)

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process ends."""
        return self._process.sentinel

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: bytes) -> None:
        """Sends a message; whoever waits for the answer notices if nobody reads it."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(message)

    def send_descriptor(self, descriptor: int) -> None:
        """Passes a file descriptor on."""
        with contextlib.suppress(OSError):
            reduction.send_handle(self.connection, descriptor, self.pid)

    def error_of(self, message: bytes) -> AlfLiteError:
        """The worker's last words as an error."""
        kind, text = message[:1], message[1:].decode(errors="replace")
        if kind == worker_messages.BAD_CONFIG:
            return ConfigError(f"{self.where}: {text}")
        if kind == worker_messages.ENV_FAILED:
            return EnvError(f"{self.where}: {text}")
        return WorkerError(f"{self.where} raised\n\n{text}")

    def death(self) -> WorkerError:
        """Why a process that said nothing is gone."""
        self._process.join(_DEATH_SECONDS)
        end = child_process.how_it_ended(self._process.exitcode)
        stack = child_process.read_stack(self._stacks)
        return WorkerError(f"{self.where}: the process {end}.{stack}")

    def hang(self, seconds: float) -> WorkerError:
        """Where a process is that does not answer."""
        stack = child_process.ask_for_stack(self.pid, self._stacks)
        return WorkerError(
            f"{self.where}: no step of its environments for {seconds:g} s, so it was "
            "killed. If they need longer, raise TrainerConfig.worker_timeout_seconds."
            f"{stack}"
        )

    @property
    def where(self) -> str:
        """For messages."""
        return f"unroll worker {self.worker_index}, process {self.pid}"

    def hang_up(self) -> None:
        """Closes the connection: a worker that waits for requests ends."""
        self.connection.close()

    def join(self, seconds: float) -> None:
        """Waits for the end."""
        self._process.join(seconds)

    def kill(self) -> None:
        """Ends the process now and releases what belongs to it."""
        self._finalizer()


def _end(process: BaseProcess, connection: Connection, stacks: Connection) -> None:
    connection.close()
    stacks.close()
    process.kill()
    process.join(CLOSE_SECONDS)
