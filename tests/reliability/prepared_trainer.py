"""Starts trainers without waiting for their imports: ``python -m …prepared_trainer``.

A new interpreter needs seconds to import torch, and the tests here start hundreds.
This process imports what every run needs, once, and is then copied for every line it
reads: the copy runs the program as ``python -m`` would, as the leader of a session of
its own.
See :mod:`tests.reliability.trainer_process` for the other side.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

PRELOADED = (
    "alf_lite.algorithms.ppo_algorithm",
    "alf_lite.algorithms.sac_algorithm",
    "alf_lite.bin.program",
    "alf_lite.tools.report",
    "alf_lite.config.files",
    "alf_lite.networks.actor_networks",
    "alf_lite.networks.value_networks",
    "alf_lite.tools.player",
    "alf_lite.trainers.hooks",
    "alf_lite.trainers.trainer",
    # What a run imports late: another user may not read where python is installed.
    "encodings.utf_8_sig",
    "gymnasium.envs.classic_control",
    "numpy.ma",
    "torch._dynamo",  # by the first optimizer that is built
    "torch.utils.serialization.config",
    "torch.utils.tensorboard",
)


def main() -> None:
    for name in PRELOADED:
        __import__(name)
    os.fsync = lambda _: None  # as in tests/conftest.py
    # A copy shares this memory until it writes to it, as its garbage collector would.
    gc.collect()
    gc.freeze()
    _say("ready")
    for line in sys.stdin:
        if os.fork() == 0:
            _watch(json.loads(line))
            return


def _watch(request: dict[str, Any]) -> None:
    """Starts the trainer, says its number, and writes down how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number = os.fork()
    if number == 0:
        _run(request)
        return
    _say(str(number))
    preparing = os.getppid()
    while not (status := os.waitpid(number, os.WNOHANG))[0]:
        if os.getppid() != preparing:
            # The tests are gone, without having ended it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(number, signal.SIGKILL)
        time.sleep(0.01)
    path = Path(request["status"])
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(os.waitstatus_to_exitcode(status[1])))
    temporary.replace(path)
    os._exit(0)


def _run(request: dict[str, Any]) -> None:
    """Becomes the program; it ends with SystemExit, as at the top of an interpreter."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    files = ("/dev/null", request["output"], request["error"])
    for descriptor, path in enumerate(files):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if descriptor else os.O_RDONLY
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(request["environ"])
    os.chdir(request["directory"])
    for name, value in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if request["user"] is not None:
        os.setgroups([])
        os.setgid(request["user"])
        os.setuid(request["user"])
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
