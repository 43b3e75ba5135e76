"""The programs. Ctrl-C while one is still importing: one line, as at any other time.

Imports take a second or two. KeyboardInterrupt would end them with a long traceback or,
inside of a library in C, with an error that says something else.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from alf_lite.tools.invocation import is_script

EXIT_INTERRUPTED = 130  # what a shell reports for a program that SIGINT ended

_runs_main = False
_was_interrupted = False


def _install_in_program() -> None:
    """Handles Ctrl-C if this process is a program, by python -m or by the script."""
    # While Python looks for NAME of ``-m alf_lite.bin.NAME``, it calls itself so.
    is_program = sys.argv[:1] == ["-m"] and any(
        argument.startswith("alf_lite.bin.") for argument in sys.orig_argv
    )
    # A child that multiprocessing has started has the arguments of its parent, too.
    is_program |= is_script() and sys.argv[0] in sys.orig_argv
    if is_program:
        # Python's last search for garbage takes most of a second, for nothing.
        atexit.register(gc.freeze)
    # It may be ignored, as in the background of a shell.
    if is_program and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle)


@contextlib.contextmanager
def main_program() -> Iterator[None]:
    """The program runs; outside of an import Ctrl-C is a KeyboardInterrupt."""
    global _runs_main
    _runs_main = True
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _handle:
            # What Python does at its end has nothing to say either.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def check_interrupted() -> None:
    """Raises KeyboardInterrupt if one was lost, as it is inside of a finalizer."""
    if _was_interrupted:
        raise KeyboardInterrupt


def _handle(number: int, frame: FrameType | None) -> None:
    global _was_interrupted
    _was_interrupted = True
    if _runs_main and not _is_importing(frame):
        raise KeyboardInterrupt
    # Nothing is begun that would have to be ended.
    with contextlib.suppress(OSError):
        os.write(2, b"Interrupted.\n")
    os._exit(EXIT_INTERRUPTED)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


_install_in_program()
