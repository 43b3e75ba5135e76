"""Runs a function of a test on several ranks, each a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from alf_lite.utils.ranks import RankLostError, ranks

_SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def variables(index: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    return {
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def on_ranks(
    function: Callable[..., Any], size: int, *args: Any, answering: int | None = None
) -> list[Any]:
    """What ``function(*args)`` returns on each rank, as numpy arrays and plain data.

    Args:
        function: at the top level of a module.
        size: how many ranks.
        *args: for the function.
        answering: how many of them, the first ones, are listened to; all by default.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["alf_lite.unrollers.unroll_worker"])
    port, ours, processes = free_port(), [], []
    for index in range(size):
        end, theirs = context.Pipe()
        given = (variables(index, size, port), theirs, function, args)
        process = context.Process(target=_run, args=given, daemon=True)
        process.start()
        theirs.close()
        ours.append(end)
        processes.append(process)
    try:
        return [_result(end, index) for index, end in enumerate(ours[:answering])]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _result(connection: Connection, index: int) -> Any:
    assert connection.poll(_SECONDS), f"rank {index} has not answered"
    is_error, result = connection.recv()
    assert not is_error, f"rank {index}: {result}"
    return result


def _run(
    environment: dict[str, str],
    connection: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.update(environment)
    try:
        ranks.join()
        connection.send((False, function(*args)))
    except BaseException as error:
        connection.send((True, repr(error)))
        raise
    # Not before all have what they asked for.
    with contextlib.suppress(RankLostError):
        ranks.total(1)
    ranks.leave()
