"""stdout and stderr that never raise: what a program says is less than what it does."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

# Of C0 and C1, what moves the cursor, and what a terminal takes for commands.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class BestEffortStream:
    """A text stream whose trouble is nobody's: full disk, closed pipe, dead terminal.

    Characters that the encoding lacks are written as escapes. Anything else is the
    stream's own.

    Args:
        stream: to write to; None writes nowhere.

    Attributes:
        error: the last one of the system.
        is_plain: whether what a terminal takes for a command is written as escapes.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = _Nowhere() if stream is None else stream
        self.error: OSError | None = None
        self.is_plain = False

    def write(self, text: str) -> int:
        """Writes what can be written."""
        text = printable(text) if self.is_plain else text
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                escaped = text.encode(encoding, "backslashreplace")
                self._stream.write(escaped.decode(encoding))
        except OSError as error:
            self.error = error
        except (ValueError, RuntimeError):
            pass  # closed, or in use by the code that a signal has interrupted
        return len(text)

    def flush(self) -> None:
        """Flushes what can be flushed."""
        try:
            self._stream.flush()
        except OSError as error:
            self.error = error
        except (ValueError, RuntimeError):
            pass

    def let_go(self) -> None:
        """Flushes; what cannot be written now is not tried again at the exit."""
        self.error = None
        self.flush()
        if self.error is not None:
            with contextlib.suppress(OSError, ValueError):
                descriptor = os.open(os.devnull, os.O_WRONLY)
                os.dup2(descriptor, self._stream.fileno())
                os.close(descriptor)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Nowhere(io.TextIOBase):
    """Takes everything, as /dev/null."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)


def best_effort(stream: Any) -> Any:
    """``stream`` as one that never raises."""
    return stream if isinstance(stream, BestEffortStream) else BestEffortStream(stream)


def make_best_effort() -> None:
    """Stdout and stderr of this process never raise from now on."""
    _open_missing_descriptors()
    sys.stdout, sys.stderr = best_effort(sys.stdout), best_effort(sys.stderr)


@contextlib.contextmanager
def best_effort_output() -> Iterator[None]:
    """Stdout and stderr never raise in the block, nor at the end of the process."""
    before = sys.stdout, sys.stderr
    make_best_effort()
    ours: tuple[Any, Any] = sys.stdout, sys.stderr
    try:
        yield
    finally:
        for stream in ours:
            stream.let_go()
        sys.stdout, sys.stderr = before


def printable(text: str) -> str:
    """With what a terminal takes for a command as escapes; lines and tabs stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _open_missing_descriptors() -> None:
    """Files that are opened later shall not become stdout or stderr."""
    for wanted in (0, 1, 2):
        try:
            os.fstat(wanted)
        except OSError:
            # The lowest number that is free: this one.
            os.open(os.devnull, os.O_RDWR)
