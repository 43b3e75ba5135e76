"""What every child process of the library does and suffers: signals, death, last words.

Without torch: children that need none are small and start fast.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from alf_lite.utils.output_streams import make_best_effort

_STACK_SECONDS = 1.0  # for a process that hangs to begin to write its Python stack

# What a trainer handles. SIGURG interrupts it in whatever it waits for, which must not
# be the start of a child.
_BLOCKED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGURG,
)

# In the child


def prepare_child(stacks: Connection) -> None:
    """The first call in a child process.

    Signals of the terminal are ignored, the Python stack is written when the process
    crashes or is asked with SIGUSR1 why it does not answer, and no GPU is seen.

    Args:
        stacks: where the stack goes.
    """
    # A reader that does not come shall not stop the process.
    os.set_blocking(stacks.fileno(), False)
    faulthandler.enable(stacks.fileno())
    faulthandler.register(signal.SIGUSR1, stacks.fileno())
    _ignore_signals_to_all()
    make_best_effort()
    # Threads of several processes would only compete with each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A GPU context per process would fill the GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _ignore_signals_to_all() -> None:
    """Those of a terminal or a scheduler reach all processes: the parent decides."""
    for number in _BLOCKED:
        if number != signal.SIGUSR1:
            signal.signal(number, signal.SIG_IGN)
    # The parent blocked them while this process started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)


def die_with_parent(parent_pid: int) -> None:
    """Has the operating system kill this process when its parent ends, on Linux.

    Args:
        parent_pid: if it is no longer the parent, it has died already.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    set_parent_death_signal = 1
    libc: Any = ctypes.CDLL(None)
    libc.prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)


def exit_now() -> None:
    """Ends the process although something in it, such as a thread, still runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# In the parent


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """A child inherits the mask: Ctrl-C must not hit it before it can ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        resource_tracker.ensure_running()  # unblocks some of them
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def hidden_main_module(is_needed: bool) -> Iterator[None]:
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


def how_it_ended(exit_code: int | None) -> str:
    """The end of a process in words: "was killed by SIGKILL ..."."""
    if exit_code is None:
        return "closed its pipe"
    if exit_code >= 0:
        return f"exited with code {exit_code} in the middle of a call"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ""
    if name == "SIGKILL":
        hint = " (by hand, or by the system when memory runs out)"
    return f"was killed by {name}{hint}"


def read_stack(stacks: Connection, patience: float = 0.0) -> str:
    """The Python stack that a child wrote when it crashed or was asked.

    Args:
        stacks: see :func:`prepare_child`.
        patience: seconds to wait for more; it comes in several writes.
    """
    parts: list[bytes] = []
    with contextlib.suppress(OSError, EOFError):
        while stacks.poll(patience):
            part = os.read(stacks.fileno(), 1 << 16)
            if not part:
                break
            parts.append(part)
    text = b"".join(parts).decode(errors="replace").rstrip()
    return f"\n\nIts Python stack:\n{text}" if text else ""


def ask_for_stack(pid: int, stacks: Connection) -> str:
    """Has a child that does not answer write where it is; "" if it cannot."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
    with contextlib.suppress(OSError, EOFError):
        if stacks.poll(_STACK_SECONDS):
            return read_stack(stacks, patience=0.2)
    return ""
