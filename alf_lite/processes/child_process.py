"""Child processes, seen from the parent: start, talk, wait, time out, end.

Every wait has an end, and watches whether the processes live. None of them outlives the
parent, however that ends.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import selectors
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import forkserver, reduction, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from alf_lite.config import shipping as config_shipping
from alf_lite.processes import child_main
from alf_lite.processes.child_main import CLOSE_SECONDS, Serve

_DEATH_SECONDS = 1.0  # for the system to say how a process ended
_STACK_SECONDS = 1.0  # for a process that hangs to begin to write its Python stack
_GRACE_SECONDS = 0.5  # after a deadline: the whole program may have been stopped
_MAX_DESCRIPTORS = 65_536  # of a program: enough for ten thousand children
# What multiprocessing says of children whose server is gone, with which they end.
_SERVER_LOST = 255
_SERVER_SECONDS = 5.0  # for a server that was killed to be gone
_start_lock = threading.Lock()
_server_end: util.Finalize | None = None
_MAIN_HINT = (
    " It runs the program itself again, whose class or function it needs: put what "
    'the program starts below `if __name__ == "__main__":`, or that class into a '
    "module of its own."
)

StartMethod = Literal["spawn", "forkserver"]


class ChildDiedError(Exception):
    """A child is gone; the message says how it ended and shows its last stack."""

    def __init__(self, child: ChildProcess) -> None:
        super().__init__(child.death())
        self.child = child


class ChildSilentError(Exception):
    """A child has not answered in time; the message shows where it is."""

    def __init__(self, child: ChildProcess) -> None:
        super().__init__(child.ask_for_stack())
        self.child = child


class ChildProcess:
    """A process that runs ``serve(settings, parent)``.

    It ignores Ctrl-C and SIGTERM, ends with the parent, and sees no GPU.

    Args:
        serve: a function at the top level of a module.
        settings: picklable.
        name: such as ``unroll-worker``.
        index: of the child among those of its kind.
        method: ``spawn`` is a fresh interpreter; ``forkserver`` forks one that
            :func:`start_server` has prepared.
        is_daemon: whether it may not have children of its own by multiprocessing.
    """

    def __init__(
        self,
        serve: Serve,
        settings: Any,
        *,
        name: str,
        index: int,
        method: StartMethod,
        is_daemon: bool = False,
    ) -> None:
        self.index = index
        dumped = bytes(reduction.ForkingPickler.dumps((serve, settings)))
        context: Any = multiprocessing.get_context(method)
        self.connection, child_connection = context.Pipe()
        self._stacks, child_stacks = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(
            target=child_main.main,
            args=(dumped, child_connection, child_stacks, _parent_pid(method)),
            name=f"{name}-{index}",
            daemon=is_daemon,
        )
        needs_main = config_shipping.needs_main_module(dumped)
        self._needs_main = needs_main
        self._is_forked = method == "forkserver"

        def start() -> None:
            with _start_lock, _blocked_signals(), _hidden_main_module(needs_main):
                self._process.start()

        try:
            if method == "forkserver":
                _wait_for_server(start)
            else:
                start()
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
        try:  # noqa: SIM105 - suppress() takes longer, at every step
            self.connection.send_bytes(message)
        except OSError:
            pass

    def send_descriptor(self, descriptor: int) -> None:
        """Sends a file descriptor, see ``Parent.attach``."""
        with contextlib.suppress(OSError):
            reduction.send_handle(self.connection, descriptor, self.pid)

    def receive(self) -> bytes:
        """The next message, or the rest of one that has begun to arrive.

        Raises:
            ChildDiedError: if the process is gone.
        """
        try:
            return self.connection.recv_bytes()
        except (EOFError, OSError):
            raise ChildDiedError(self) from None

    def hang_up(self) -> None:
        """Closes the connection: a child that waits for messages ends."""
        self.connection.close()

    def join(self, seconds: float) -> None:
        """Waits for the end."""
        self._process.join(max(0.0, seconds))

    def kill(self) -> None:
        """Ends the process now and releases what belongs to it."""
        self._finalizer()

    def death(self) -> str:
        """How a process that is gone ended: "the process was killed by SIGKILL"."""
        self._process.join(_DEATH_SECONDS)
        end = how_it_ended(self._process.exitcode)
        if self._is_forked and self._process.exitcode == _SERVER_LOST:
            end += ", or was killed together with the server that starts such processes"
        hint = _MAIN_HINT if self._needs_main and self._process.exitcode == 1 else ""
        return f"the process {end}.{hint}{self._read_stack()}"

    def ask_for_stack(self) -> str:
        """Has a child that does not answer write where it is; "" if it cannot."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR1)
        with contextlib.suppress(OSError, EOFError):
            if self._stacks.poll(_STACK_SECONDS):
                return self._read_stack(patience=0.2)
        return ""

    def _read_stack(self, patience: float = 0.0) -> str:
        """What a child wrote when it crashed or was asked; it comes in several parts.

        Args:
            patience: seconds to wait for each.
        """
        parts: list[bytes] = []
        with contextlib.suppress(OSError, EOFError):
            while self._stacks.poll(patience):
                part = os.read(self._stacks.fileno(), 1 << 16)
                if not part:
                    break
                parts.append(part)
        text = b"".join(parts).decode(errors="replace").rstrip()
        return f"\n\nIts Python stack:\n{text}" if text else ""


class ChildGroup:
    """Children of one kind, to wait for whichever of them has something to say.

    Args:
        serve: see ``ChildProcess``, as for the others.
    """

    def __init__(
        self, serve: Serve, *, name: str, method: StartMethod, is_daemon: bool = False
    ) -> None:
        self._start = functools.partial(
            ChildProcess, serve, name=name, method=method, is_daemon=is_daemon
        )
        self.children: list[ChildProcess] = []
        self._selector = selectors.DefaultSelector()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self.children]

    def start(self, settings: Any, index: int) -> ChildProcess:
        """Starts a child, be it in the place of the one that had the same index."""
        child = self._start(settings, index=index)
        if index < len(self.children):
            old = self.children[index]
            self._selector.unregister(old.connection)
            self._selector.unregister(old.sentinel)
            old.kill()
            self.children[index] = child
        else:
            self.children.append(child)
        for source, is_message in ((child.connection, True), (child.sentinel, False)):
            self._selector.register(source, selectors.EVENT_READ, (index, is_message))
        return child

    def wait(self, seconds: float) -> list[tuple[int, bool]]:
        """Who says something or has ended, after at most ``seconds``.

        Returns:
            Index of a child, and whether there is something to receive.
        """
        return [key.data for key, _ in self._selector.select(max(0.0, seconds))]

    def receive(
        self, indices: Iterable[int], seconds: float
    ) -> Iterator[tuple[int, bytes]]:
        """Waits for one message of each of these children.

        Yields:
            Index and message, as they come.

        Raises:
            ChildDiedError: if one of the children is gone without a word.
            ChildSilentError: if there is no message of one of these after ``seconds``.
        """
        waiting = set(indices)
        deadline = time.monotonic() + seconds
        while waiting:
            ready = self.wait(deadline - time.monotonic())
            if not ready and time.monotonic() >= deadline:
                # The clock also runs while the whole program is stopped (Ctrl-Z).
                ready = self.wait(_GRACE_SECONDS)
                if not ready:
                    raise ChildSilentError(self.children[min(waiting)])
            for index, has_message in ready:
                child = self.children[index]
                if has_message:
                    waiting.discard(index)
                    yield index, child.receive()
                elif not child.connection.poll(0):  # no last words
                    raise ChildDiedError(child)

    def close(self) -> None:
        """Has all children end themselves; those that do not in time are killed."""
        for child in self.children:
            child.hang_up()
        deadline = time.monotonic() + CLOSE_SECONDS
        for child in self.children:
            child.join(deadline - time.monotonic())
        self.kill()

    def kill(self) -> None:
        """Ends all children now."""
        self._selector.close()
        for child in self.children:
            child.kill()


def start_server(preload: Sequence[str]) -> None:
    """Starts the process that others are forked from, if there is none.

    It imports what they need once, in some seconds, during which the caller can do
    other things.

    Args:
        preload: modules that it imports.
    """
    raise_descriptor_limit()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([child_main.__name__, *preload])
    name = "OMP_NUM_THREADS"
    is_set = name in os.environ
    os.environ.setdefault(name, "1")  # what is imported there starts no threads
    try:
        with _start_lock, _blocked_signals():
            forkserver.ensure_running()
    finally:
        if not is_set:
            del os.environ[name]
    global _server_end
    if _server_end is None:
        # After the children: while it imports it does not see that this process ends.
        _server_end = util.Finalize(None, _kill_server, exitpriority=-1)


def _wait_for_server(start: Callable[[], None]) -> None:
    """Starts a child of the server; a signal can break off the wait for it.

    The server answers when it has imported all that it should, and multiprocessing does
    not let itself be disturbed: that is a thread's affair.
    """
    errors: list[BaseException] = []

    def run() -> None:
        deadline = time.monotonic() + _SERVER_SECONDS
        while True:
            try:
                return start()
            except ConnectionError as error:  # it was killed, and has not yet ended
                if time.monotonic() >= deadline:
                    return errors.append(error)
                time.sleep(0.02)
            except BaseException as error:
                return errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        _kill_server()  # the next child has a new one
        thread.join()
        raise
    if errors:
        raise errors[0]


def _kill_server() -> None:
    server: Any = forkserver._forkserver
    pid = server._forkserver_pid
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def raise_descriptor_limit() -> None:
    """Allows as many open files as the system does: a child takes up to five."""
    try:
        import resource
    except ImportError:  # there is no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < min(most, _MAX_DESCRIPTORS):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (min(most, _MAX_DESCRIPTORS), hard)
            )


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """A child inherits the mask: Ctrl-C must not hit it before it can ignore it."""
    blocked = child_main.PARENT_SIGNALS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        resource_tracker.ensure_running()  # unblocks some of them
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _hidden_main_module(is_needed: bool) -> Iterator[None]:
    """Hides the program's main module from the child, unless that needs it.

    multiprocessing has every child import it again. For a training program that means
    torch, seconds of time and hundreds of megabytes per child; a script without
    ``if __name__ == "__main__":`` would even start itself again.
    """
    if is_needed:
        yield
        return
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _parent_pid(method: str) -> int | None:
    """See ``child_main.main``."""
    if method == "forkserver":
        return 0  # which ends with this process, as no child holds its pipe
    # Linux would kill the child as soon as the thread that starts it ends.
    is_main = threading.current_thread() is threading.main_thread()
    return os.getpid() if is_main else None


def how_it_ended(exit_code: int | None) -> str:
    """The end of a process in words: "was killed by SIGKILL ..."."""
    if exit_code is None:
        return "closed its pipe"
    if exit_code >= 0:
        return f"exited with code {exit_code} in the middle of a call"
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL (by hand, or by the system when memory runs out)"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def _end(process: BaseProcess, connection: Connection, stacks: Connection) -> None:
    process.kill()
    connection.close()
    stacks.close()
    process.join(CLOSE_SECONDS)
