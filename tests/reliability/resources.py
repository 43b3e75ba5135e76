"""Counts what a run holds of the machine while it trains."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from alf_lite.config import configurable
from alf_lite.trainers.hooks import Hook, Training
from tests.reliability.trainer_process import living

FILE = "resources.jsonl"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Resources(NamedTuple):
    """Of a run's process and of all those that it started."""

    env_steps: int
    memory_mb: float  # that is in use now, without what they share
    descriptors: int
    threads: int
    processes: int


@configurable
class ResourceCounter(Hook):
    """Writes a line of :class:`Resources` every so many iterations.

    Args:
        interval: iterations.
        leak_bytes: that are lost per environment step, to see whether it is found.
    """

    def __init__(self, interval: int = 100, leak_bytes: int = 0) -> None:
        super().__init__()
        self._interval = interval
        self._leak_bytes = leak_bytes
        self._lost: list[bytearray] = []
        self._env_steps = 0

    def after_iter(self, training: Training) -> None:
        steps = training.run.env_steps
        if self._leak_bytes:
            lost = (steps - self._env_steps) * self._leak_bytes
            self._lost.append(bytearray(b"x" * lost))
            self._env_steps = steps
        if training.run.iterations % self._interval == 0:
            with (training.root_dir / FILE).open("a") as file:
                file.write(json.dumps(_count(steps)) + "\n")


def read(root_dir: Path) -> list[Resources]:
    lines = (root_dir / FILE).read_text().splitlines()
    return [Resources(*json.loads(line)) for line in lines]


def growth(resources: list[Resources]) -> Resources:
    """What is added per 100,000 steps in the last 80 % of a run.

    The median of the slopes between all pairs: a block that is allocated once, however
    late, is no growth.
    """
    table = np.array(resources[len(resources) // 5 :], dtype=float)
    first, second = np.triu_indices(len(table), k=1)
    slopes = (table[second] - table[first])[:, 1:] / (
        table[second, :1] - table[first, :1]
    )
    return Resources(100_000, *(1e5 * np.median(slopes, axis=0)).tolist())


def _count(env_steps: int) -> Resources:
    pids = living(os.getsid(0))
    return Resources(
        env_steps,
        sum(_memory_bytes(pid) for pid in pids) / 2**20,
        sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        len(pids),
    )


def _memory_bytes(pid: int) -> int:
    resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * _PAGE_BYTES
