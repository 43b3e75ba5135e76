"""The first code that runs in the process of an environment.

Its own imports are light: the numerical libraries, which read some of the environment
variables set here when they are imported, come after that.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from alf_lite.environments.worker_settings import WorkerSettings


def main(settings: WorkerSettings, requests: Connection, stacks: Connection) -> None:
    """Serves the requests of the parent process until it closes the pipe.

    Args:
        settings: what to serve.
        requests: see ``worker_loop``.
        stacks: where the Python stack goes if the process crashes, or is asked with
            SIGUSR1 why it does not answer.
    """
    _ignore_terminal_signals()
    if settings.dies_with_parent:
        _die_with_parent(settings.parent_pid)
    faulthandler.enable(stacks.fileno())
    faulthandler.register(signal.SIGUSR1, stacks.fileno())
    # One environment per process: threads would only compete with each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A GPU context per environment would fill the GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

    from alf_lite.environments.worker_loop import serve

    serve(settings, requests)
    # Nothing that the environment left behind, such as a thread, may keep us alive.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _ignore_terminal_signals() -> None:
    """Ctrl-C and a scheduler's SIGTERM reach all processes: the parent decides."""
    ignored = (signal.SIGINT, signal.SIGTERM)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    # The parent blocked them while this process started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)


def _die_with_parent(parent_pid: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    set_parent_death_signal = 1
    libc: Any = ctypes.CDLL(None)
    libc.prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)
