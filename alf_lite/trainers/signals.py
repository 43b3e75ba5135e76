"""Signals to a training run: stop, checkpoint now, tell where you are."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import logging
import os
import select
import selectors
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from alf_lite.utils.interruption import interruption
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A shell's nohup, or code of the user, may have decided what these shall do.
_ONLY_IF_DEFAULT = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# From the watching thread to the main thread, to interrupt what that waits for.
_KNOCK = signal.SIGURG
_KNOCK_SECONDS = 0.1  # between two attempts

# After SIGTERM or SIGHUP, until environments that do not answer are given up.
PATIENCE_SECONDS = 4.0
# After a second signal: for updates to come to their end, and for everything.
_UPDATE_SECONDS = 3.0
_EXIT_SECONDS = 9.0
# A signal to a process and to its group arrives twice.
_SAME_SIGNAL_SECONDS = 0.5

STACKS_FILE = "stacks.txt"


class BrokenOffError(BaseException):
    """The run must end now; raised in the main thread, wherever that is.

    No ``Exception``, so that user code that handles all errors does not keep it.

    Args:
        signals: that ask for it.
    """

    def __init__(self, signals: StopSignals) -> None:
        super().__init__()
        self.signals = signals


class StopSignals:
    """What the signals to this process ask a training run for.

    * SIGINT, SIGTERM and SIGHUP before the first iteration: a ``BrokenOffError`` at
      once, and again while something keeps it, such as a finalizer; nine seconds after
      SIGTERM or SIGHUP the process ends, whatever it does.
    * SIGINT, SIGTERM and SIGHUP: finish the iteration, save, stop. If an iteration
      waits longer than some seconds after SIGTERM or SIGHUP, it is broken off by a
      ``BrokenOffError``, provided that nothing half done is left behind.
    * A second one: the same at once; nine seconds later the process ends, whatever it
      does.
    * SIGUSR1: the stacks of all Python threads, to stderr and to a file.
    * SIGUSR2: a checkpoint after this iteration.

    One of several ranks goes on to the end of its iteration: the others stop with it,
    at the same place, whichever of them was asked.

    A thread waits for the signals, so that they work even if the main thread hangs in
    a library. Processes that are forked meanwhile handle signals as before.

    Use as a context manager; signals are handled from :meth:`install` to its end, where
    what breaks a run off becomes the usual end of a program, see :meth:`usual_end`.
    Outside the main thread, where Python delivers no signals, it does nothing.

    Attributes:
        received: the first signal that asked to stop.
        is_starting: whether a signal breaks off whatever is done.
        num_broken_off: how often a ``BrokenOffError`` was raised.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._checkpoint_requested = False
        self._previous: dict[signal.Signals, Any] = {}
        self._blocked: set[int] = set()  # until then, by who has started the process
        self._is_held_off = False
        self.is_starting = True  # there is nothing yet that could be saved
        self.num_broken_off = 0
        self._watch: _Watch | None = None

    def hear_of(self, number: int) -> None:
        """Another rank of the run has received this signal."""
        if self.received is None:
            self.received = signal.Signals(number)

    def usual_end(self) -> BaseException | None:
        """What the signal is for a program: KeyboardInterrupt, or SystemExit(143)."""
        if self.received is None:
            return None
        if self.received == signal.SIGINT:
            return KeyboardInterrupt()
        return SystemExit(128 + self.received)

    def check(self) -> None:
        """Raises what anyone may have kept that a signal has raised.

        Raises:
            BrokenOffError: if there was a signal.
        """
        if self.received is not None:
            raise BrokenOffError(self)

    def start_is_over(self) -> None:
        """From now on an iteration comes to its end, and the run is saved.

        Raises:
            BrokenOffError: if there was a signal before.
        """
        self.is_starting = False
        self.is_starting = self.received is not None  # none that comes now is missed
        self.check()

    def take_checkpoint_request(self) -> bool:
        """Whether SIGUSR2 came since the last call."""
        requested, self._checkpoint_requested = self._checkpoint_requested, False
        return requested

    @contextlib.contextmanager
    def held_off(self) -> Iterator[None]:
        """The block is never broken off."""
        before, self._is_held_off = self._is_held_off, True
        try:
            yield
        finally:
            self._is_held_off = before

    def install(self, stacks_path: Callable[[], Path | None] = lambda: None) -> None:
        """Handles signals from now on.

        Args:
            stacks_path: where to append the stacks; None if nowhere.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        self._watch = _Watch(self, stacks_path)
        for number in (*_STOP, signal.SIGUSR1, signal.SIGUSR2, _KNOCK):
            previous = signal.getsignal(number)
            if number in _ONLY_IF_DEFAULT and previous is not signal.SIG_DFL:
                continue
            self._previous[number] = previous
            signal.signal(number, self._handle)
        if signal.SIGUSR1 in self._previous:
            # In the C handler: it works even if nothing else does.
            with contextlib.suppress(OSError, ValueError):
                stderr = 2 if sys.__stderr__ is None else sys.__stderr__
                faulthandler.register(signal.SIGUSR1, stderr, chain=True)
        with self.held_off():  # half a thread could not be ended
            self._watch.start()
        handled = self._previous.keys()
        self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, handled) & handled
        _installed.add(self)

    def uninstall(self, *, in_fork: bool = False) -> None:
        """Signals do again what they did before."""
        _installed.discard(self)
        if signal.SIGUSR1 in self._previous:
            faulthandler.unregister(signal.SIGUSR1)
        signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)
        for number, handler in self._previous.items():
            # None is a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        if self._watch is not None:
            self._watch.end(in_fork=in_fork)
            self._watch = None

    def __enter__(self) -> StopSignals:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.uninstall()
        end = self.usual_end()
        if end is None or error is None:
            return
        if isinstance(error, BrokenOffError):
            raise end.with_traceback(traceback) from None
        if self.is_starting:  # a library that is broken off may say it in its words
            raise end from error

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == _KNOCK:
            if self._watch is not None and self._may_break_off(self._watch):
                self.num_broken_off += 1
                raise BrokenOffError(self)
        elif number == signal.SIGUSR2:
            self._checkpoint_requested = True
            _say(logging.INFO, "SIGUSR2: saving after this iteration.")
        elif number != signal.SIGUSR1 and self.received is None:
            self.received = signal.Signals(number)
            if not self.is_starting:
                _say(
                    logging.WARNING,
                    f"{self.received.name}: finishing this iteration, then saving. "
                    "Once more ends the run within ten seconds.",
                )
            elif not self._is_held_off:
                raise BrokenOffError(self)

    def _may_break_off(self, watch: _Watch) -> bool:
        if self._is_held_off:
            return False
        if self.is_starting:
            return self.received is not None and not self._is_on_its_way()
        if watch.num_wanted <= self.num_broken_off:
            return False
        if ranks.size > 1:  # the others would wait for this one
            return False
        return interruption.is_harmless or watch.is_in_haste

    def _is_on_its_way(self) -> bool:
        """Whether what is done now is closed and tidied up because of the signal."""
        error = sys.exc_info()[1]
        while error is not None:
            if isinstance(error, BrokenOffError) and error.signals is self:
                return True
            error = error.__context__
        return False


class _Watch:
    """The thread that sees every signal and knows how long a run may take to stop.

    Attributes:
        num_wanted: how often the main thread shall break off what it does.
        is_in_haste: whether it shall do so even in the middle of updates.
    """

    def __init__(
        self, signals: StopSignals, stacks_path: Callable[[], Path | None]
    ) -> None:
        self._signals = signals
        self._stacks_path = stacks_path
        self.num_wanted = 0
        self.is_in_haste = False
        self._first: tuple[signal.Signals, float] | None = None
        self._second_time: float | None = None
        self._has_acted_on_second = False
        self._main_thread = threading.get_ident()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # One byte for every signal, written by the C handler.
        self._previous_fd = signal.set_wakeup_fd(
            self._writer, warn_on_full_buffer=False
        )
        self._thread = threading.Thread(
            target=self._run, name="alf_lite-signals", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def end(self, *, in_fork: bool) -> None:
        """Ends the thread, which does not exist in a forked process."""
        signal.set_wakeup_fd(-1 if in_fork else self._previous_fd)
        if not in_fork:
            os.write(self._writer, b"\0")
            self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            while True:
                is_ready = selector.select(self._seconds_to_wait())
                for number in os.read(self._reader, 4096) if is_ready else b"":
                    if number == 0:
                        return
                    self._note(number)
                self._act()

    def _note(self, number: int) -> None:
        now = time.monotonic()
        if number == signal.SIGUSR1:
            self._write_stacks()
        if number not in _STOP:
            return
        if self._first is None:
            self._first = signal.Signals(number), now
            return
        # Of Ctrl-C a rank hears twice, from the terminal and from torchrun.
        may_be_same = number != signal.SIGINT or ranks.size > 1
        is_same = may_be_same and number == self._first[0]
        if is_same and now - self._first[1] < _SAME_SIGNAL_SECONDS:
            return
        if self._second_time is None:
            self._second_time = now

    def _seconds_to_wait(self) -> float | None:
        """Until there may be something to do; None until the next signal."""
        if self._first is None:
            return None
        if self._signals.is_starting:
            return _KNOCK_SECONDS
        if self.num_wanted > self._signals.num_broken_off:
            return _KNOCK_SECONDS
        if self._second_time is not None:
            return max(0.0, self._second_time + _EXIT_SECONDS - time.monotonic())
        number, begin = self._first
        if number == signal.SIGINT or self.num_wanted:
            return None
        return max(0.0, begin + PATIENCE_SECONDS - time.monotonic())

    def _act(self) -> None:
        if self._first is None:
            return
        now = time.monotonic()
        number, begin = self._first
        if self._signals.is_starting:
            self._act_at_start(number, begin, now)
        elif self._second_time is not None:
            if now >= self._second_time + _EXIT_SECONDS:
                self._exit(number)
            if not self._has_acted_on_second:
                self._has_acted_on_second = True
                self.num_wanted = self._signals.num_broken_off + 1
            self.is_in_haste = now >= self._second_time + _UPDATE_SECONDS
        elif number != signal.SIGINT and now >= begin + PATIENCE_SECONDS:
            self.num_wanted = 1
        if self.num_wanted > self._signals.num_broken_off:
            signal.pthread_kill(self._main_thread, _KNOCK)

    def _act_at_start(self, number: signal.Signals, begin: float, now: float) -> None:
        # Somebody at a keyboard may wait for a library that hears no signal.
        asked = begin if number != signal.SIGINT else self._second_time
        if asked is not None and now >= asked + _EXIT_SECONDS:
            self._exit(number)
        if now >= begin + _KNOCK_SECONDS:  # the signal itself has come first
            signal.pthread_kill(self._main_thread, _KNOCK)

    def _exit(self, number: signal.Signals) -> NoReturn:
        text = (
            "The run does not end: the process ends now. What was saved before is "
            "kept; the same command continues from there.\n"
        )
        # Not through the log: the main thread may hang in a write to it.
        with contextlib.suppress(OSError):
            if select.select([], [2], [], 0)[1]:
                os.write(2, text.encode())
        os._exit(128 + number)

    def _write_stacks(self) -> None:
        with contextlib.suppress(Exception):
            path = self._stacks_path()
            if path is None:
                return
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
                now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
                file.write(f"{now}, process {os.getpid()}\n")
                file.flush()
                faulthandler.dump_traceback(file)
                file.write("\n")


def _say(level: int, text: str) -> None:
    """Logs in a signal handler, where the same stream may be in use just now."""
    with contextlib.suppress(Exception):
        _logger.log(level, text)


# Of this process: at most one that handles signals.
_installed: weakref.WeakSet[StopSignals] = weakref.WeakSet()


def _forget_in_fork() -> None:
    """A child that someone forks from a training process is no training process."""
    for signals in list(_installed):
        signals.uninstall(in_fork=True)


os.register_at_fork(after_in_child=_forget_in_fork)
