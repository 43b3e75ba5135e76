"""SIGINT and SIGTERM: finish the iteration, then stop."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_logger = logging.getLogger(__name__)

_HANDLED = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Notes the first signal; a second SIGINT raises KeyboardInterrupt at once.

    Use as a context manager around the training loop. Outside the main thread, where
    Python delivers no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def received(self) -> signal.Signals | None:
        """The first signal so far."""
        return self._received

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _HANDLED:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            # None is a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if self._received is None:
            self._received = received
            again = " Once more stops at once." if received == signal.SIGINT else ""
            _logger.warning(
                "%s: finishing this iteration, then saving.%s", received.name, again
            )
        elif received == signal.SIGINT:
            raise KeyboardInterrupt
