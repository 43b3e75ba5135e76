"""Signals that ask a program for an early end, with what it has done so far."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

_logger = logging.getLogger(__name__)

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A signal to a process and to its group arrives twice.
_SAME_SIGNAL_SECONDS = 0.5


class StopRequestedError(BaseException):
    """A signal has come; raised where the program said that it may be.

    No ``Exception``, so that user code that handles all errors does not keep it.
    """


class StopRequests:
    """Hears SIGINT, SIGTERM and SIGHUP in the block of a ``with``.

    The first one is kept in ``received``; a second one ends the program as if nobody
    had handled it, but for what is tidied up on the way. Those that are ignored, and a
    SIGHUP that user code handles, stay as they are. Outside the main thread, where
    Python delivers no signals, it does nothing.

    Attributes:
        received: the first signal.
        is_in_haste: whether there was a second one.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.is_in_haste = False
        self._time = 0.0  # of the first one
        self._may_raise = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in _STOP:
                previous = signal.getsignal(number)
                is_default = previous is signal.SIG_DFL
                if is_default or (number != signal.SIGHUP and callable(previous)):
                    self._previous[number] = previous
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        """In the block the first signal is raised at once.

        Raises:
            StopRequestedError: if there was one, also before.
        """
        self._may_raise = True
        try:
            self.check()
            yield
        finally:
            self._may_raise = False

    def check(self) -> None:
        """Raises StopRequestedError if there was a signal."""
        if self.received is not None:
            raise StopRequestedError

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._time = signal.Signals(number), now
            with contextlib.suppress(Exception):  # the stream may be in use just now
                _logger.warning(
                    "%s: stopping; what there is is kept. Once more ends the program "
                    "at once.",
                    self.received.name,
                )
            if self._may_raise:
                raise StopRequestedError
            return
        is_same = number != signal.SIGINT and number == self.received
        if is_same and now - self._time < _SAME_SIGNAL_SECONDS:
            return
        self.is_in_haste = True
        is_interrupt = self.received == signal.SIGINT
        raise KeyboardInterrupt if is_interrupt else SystemExit(128 + self.received)
