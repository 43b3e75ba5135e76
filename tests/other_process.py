"""Runs a function of a test in another process, which gets a file descriptor."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, reduction
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

_SECONDS = 30.0


def light_context() -> ForkServerContext:
    """Starts processes as unroll workers are: torch is imported once for all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["alf_lite.unrollers.unroll_worker"])
    return context


@contextlib.contextmanager
def fork_server_of_its_own() -> Iterator[None]:
    """What the block starts without torch is no server for the workers of other tests.

    Each of those would import it by itself.
    """
    server: Any = forkserver._forkserver
    preload = server._preload_modules
    server._stop()
    try:
        yield
    finally:
        server._stop()
        server._preload_modules = preload


@contextlib.contextmanager
def other_process(
    function: Callable[..., None], descriptor: int, *args: Any
) -> Iterator[Connection]:
    """Calls ``function(descriptor, connection, *args)`` there.

    Yields:
        The other end of ``connection``, to say and ask what the test needs. When it is
        closed, at the latest, the function must return.
    """
    context = light_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(function, theirs, *args))
    process.start()
    theirs.close()
    try:
        reduction.send_handle(ours, descriptor, process.pid)
        yield ours
    finally:
        ours.close()
        process.join(_SECONDS)
        exit_code = process.exitcode
        process.kill()
        process.join()
        process.close()
    assert exit_code == 0, exit_code


def answer(connection: Connection) -> Any:
    """What the other process sent."""
    assert connection.poll(_SECONDS), "no answer"
    return connection.recv()


def shared_memory_left(before: set[str]) -> set[str]:
    """Names of shared memory that were not there before and stay.

    Other processes have some for a moment, and tests beside this one do, too.
    """
    deadline = time.monotonic() + _SECONDS
    while left := set(os.listdir("/dev/shm")) - before:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "State:\tZ" not in status


def _run(function: Callable[..., None], connection: Connection, *args: Any) -> None:
    descriptor = reduction.recv_handle(connection)
    function(descriptor, connection, *args)
    with contextlib.suppress(OSError):
        os.close(descriptor)
