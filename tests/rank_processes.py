"""Runs a function of a test on several ranks, each a process of its own.

They are copies of the process that starts trainers, which has imported all they need.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alf_lite.utils.ranks import RankLostError, ranks
from tests.reliability.trainer_process import Launcher, Trainer, wait_until

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
    launcher: Launcher,
    function: Callable[..., Any],
    size: int,
    *args: Any,
    answering: int | None = None,
) -> list[Any]:
    """What ``function(*args)`` returns on each rank, as numpy arrays and plain data.

    Args:
        launcher: starts the processes.
        function: at the top level of a module.
        size: how many ranks.
        *args: for the function.
        answering: how many of them, the first ones, are listened to; all by default.
    """
    with tempfile.TemporaryDirectory() as directory:
        call = Path(directory, "call")
        call.write_bytes(pickle.dumps((function, args)))
        port, started = free_port(), []
        for index in range(size):
            settings = variables(index, size, port)
            place = Path(directory, str(index))
            program = {"module": __name__, "environ": settings}
            started.append(launcher.start(place, [str(call)], **program))
        try:
            return [_result(rank) for rank in started[:answering]]
        finally:
            for rank in started:
                rank.end()


def _result(rank: Trainer) -> Any:
    answer = rank.root_dir
    wait_until(lambda: answer.exists() or rank.exit_code is not None, "none", _SECONDS)
    assert answer.exists(), rank.error
    return pickle.loads(answer.read_bytes())


def _main(answer: Path, call: Path) -> None:
    """Runs it on this rank."""
    function, args = pickle.loads(call.read_bytes())
    ranks.join()
    temporary = answer.with_suffix(".tmp")
    temporary.write_bytes(pickle.dumps(function(*args)))
    temporary.rename(answer)
    # Not before all have what they asked for.
    with contextlib.suppress(RankLostError):
        ranks.total(1)
    ranks.leave()


if __name__ == "__main__":
    _main(Path(sys.argv[1].removeprefix("--root_dir=")), Path(sys.argv[2]))
