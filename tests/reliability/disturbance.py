"""What happens to a run at one of its iterations, as an environment variable says.

The confs of the fault suite name the hook; without the variable it does nothing. So a
disturbed run and the one that it is compared with have the same configuration.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

from alf_lite.config import configurable
from alf_lite.trainers.hooks import Hook, Training

VARIABLE = "ALF_LITE_TEST_DISTURBANCE"


def environ(**what: object) -> dict[str, str]:
    """The environment variables of a trainer that is to be disturbed.

    Args:
        **what: ``signals``: a list of (iteration, name, seconds after it began).
            ``fill``: (file, first iteration, last iteration), which takes all that is
            free on its disk. ``clock``: seconds that the time is wrong.
    """
    return {VARIABLE: json.dumps(what)}


@configurable
class Disturbance(Hook):
    """Sends signals to its own process, fills a disk, sets the clock."""

    def __init__(self) -> None:
        super().__init__()
        what = json.loads(os.environ.get(VARIABLE, "{}"))
        self._signals = what.get("signals", [])
        self._file, self._first, self._last = what.get("fill", ("", -1, -1))
        if "clock" in what:
            true_time, wrong_by = time.time, what["clock"]
            time.time = lambda: true_time() + wrong_by

    def before_iter(self, training: Training) -> None:
        iteration = training.run.iterations + 1
        for when, name, seconds in self._signals:
            if iteration == when:
                number = signal.Signals[name]
                threading.Timer(seconds, os.kill, (os.getpid(), number)).start()
        if iteration == self._first:
            fill(Path(self._file))
        if iteration == self._last + 1:
            Path(self._file).unlink()


def fill(path: Path) -> None:
    """Writes to ``path`` until there is no byte left on its disk."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 512, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
