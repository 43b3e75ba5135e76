"""The first code that runs in every child process, and its link to the parent.

Its own imports are light: the numerical libraries, which read some of the environment
variables set here when they are imported, come after that. Without torch: children that
need none are small and start fast.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import forkserver, reduction, util
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol

from alf_lite.errors import AlfLiteError, ConfigError, DataError, EnvError, failure_text
from alf_lite.utils.output_streams import make_best_effort

# What a trainer handles. SIGURG interrupts it in whatever it waits for, which must not
# be the start of a child.
PARENT_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGURG,
)
CLOSE_SECONDS = 2.0  # for what a child closes at its end, then it is killed

# The first byte of a child's last words, and what they are for the parent.
_ERROR_KINDS = {b"C": ConfigError, b"D": DataError, b"E": EnvError}
_RAISED = b"X"  # anything else: what it was, and the traceback


class StopRequested(BaseException):
    """The parent wants the child to end, or is gone."""


def _unblock_signals(_: object) -> None:
    """Runs in every process that is forked while this module is loaded.

    The server that ``start_server`` has started keeps the signals blocked, so that its
    children have them blocked until they can ignore them. Others that are forked from
    it, such as those of a ``multiprocessing.Pool``, must hear them.
    """
    is_ours = getattr(multiprocessing.current_process(), "_target", None) is main
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if not is_ours and blocked.issuperset(PARENT_SIGNALS):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)


util.register_after_fork(_unblock_signals, _unblock_signals)


class Memory(Protocol):
    """What is mapped by its file descriptor, such as a ``SharedMemory``."""

    def attach(self, descriptor: int) -> None: ...


class Parent:
    """The child's end of the pipe. StopRequested when the parent has closed its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def receive(self) -> bytes:
        """The next message."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            _end_soon()

    def send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            _end_soon()

    def attach(self, memory: Memory) -> None:
        """Maps memory whose descriptor the parent sends next."""
        try:
            descriptor = reduction.recv_handle(self._connection)
        except (EOFError, OSError):
            _end_soon()
        memory.attach(descriptor)
        os.close(descriptor)


# (settings, parent): what a child does; it ends when that returns.
Serve = Callable[[Any, Parent], None]


def main(
    dumped: bytes, connection: Connection, stacks: Connection, parent_pid: int | None
) -> None:
    """Serves the parent until it closes the pipe.

    Args:
        dumped: a ``Serve`` and its settings, pickled.
        connection: to the parent.
        stacks: where the Python stack goes if the process crashes, or is asked with
            SIGUSR1 why it does not answer.
        parent_pid: of the process with which this one dies through the operating
            system; 0 for the present parent, None for nobody: through the pipe only.
    """
    _prepare(stacks)
    if parent_pid is not None:
        die_with_parent(parent_pid or os.getppid(), signal.SIGKILL)
    _let_server_end()
    try:
        serve, settings = reduction.ForkingPickler.loads(dumped)
        serve(settings, Parent(connection))
    except StopRequested:
        pass
    except BaseException as error:  # SystemExit and the like must not pass silently
        with contextlib.suppress(OSError):
            connection.send_bytes(last_words(error))
    # Although something in the process, such as a thread, may still run.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _prepare(stacks: Connection) -> None:
    """Signals of a terminal or a scheduler reach all processes: the parent decides."""
    # A reader that does not come shall not stop the process.
    os.set_blocking(stacks.fileno(), False)
    faulthandler.enable(stacks.fileno())
    faulthandler.register(signal.SIGUSR1, stacks.fileno())
    for number in PARENT_SIGNALS:
        if number != signal.SIGUSR1:
            signal.signal(number, signal.SIG_IGN)
    # The parent blocked them while this process started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)
    make_best_effort()
    # Whatever a rank of a run starts is no rank (alf_lite.utils.ranks).
    os.environ.pop("RANK", None)
    # Threads of several processes would only compete with each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A GPU context per process would fill the GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def die_with_parent(parent_pid: int, number: int) -> None:
    """Has the operating system end this process by a signal after its parent, on Linux.

    Args:
        parent_pid: of the process that has started this one.
        number: of the signal.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    set_parent_death_signal = 1
    libc: Any = ctypes.CDLL(None)
    libc.prctl(set_parent_death_signal, number)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)


def _let_server_end() -> None:
    """Gives up the pipe by which the server sees that somebody may still need it.

    Every child that it forks inherits the end for writing. One that hangs would keep
    the server alive, and itself by that, when the program is killed.
    """
    server: Any = forkserver._forkserver
    descriptor = getattr(server, "_forkserver_alive_fd", None)
    # The process that has started the server knows its id.
    is_child = getattr(server, "_forkserver_pid", None) is None
    if descriptor is not None and is_child:
        server._forkserver_alive_fd = None
        os.close(descriptor)


def _end_soon() -> NoReturn:
    """Ends the process; if closing what it holds hangs, the system does."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(2 * math.ceil(CLOSE_SECONDS))
    raise StopRequested


def last_words(error: BaseException) -> bytes:
    """The message for ``error_of``: text, as not every exception can be pickled."""
    kinds = (kind for kind, of in _ERROR_KINDS.items() if isinstance(error, of))
    kind = next(kinds, _RAISED)
    text = failure_text(error) if kind == _RAISED else str(error)
    return kind + text.encode("utf-8", errors="backslashreplace")


def error_of(
    message: bytes, where: str, otherwise: type[AlfLiteError]
) -> AlfLiteError | None:
    """The error in the last words of a child; None for any other message.

    Args:
        message: of the child.
        where: which child, and what it did.
        otherwise: the error for what is none of ours, with its traceback.
    """
    kind = message[:1]
    if kind not in _ERROR_KINDS and kind != _RAISED:
        return None
    text = message[1:].decode(errors="replace")
    if kind == _RAISED:
        return otherwise(f"{where} raised {text}")
    return _ERROR_KINDS[kind](f"{where}: {text}")
