"""What it costs to move an unroll of frames from unroll workers to the trainer.

    python benchmarks/unroll_transfer.py

An unroll of 128 steps of 8 environments, 84x84x4 bytes each, on-policy (with its
bootstrap row), is compared with one copy of its frames to memory that was used before.
Counted is what comes on top of an unroll in the training process itself:

* in the worker, writing the rows where the trainer reads them, less writing them to
  memory of the worker's own;
* in the trainer, getting at them, and with several workers putting their parts side by
  side.

Both sides run here in turn, each with a mapping of the memory of its own. What they say
to each other is not counted: some 100 µs per unroll, whatever its size.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from multiprocessing import reduction

# isort: off
import measuring  # noqa: F401 (first: it sets the number of threads)
# isort: on

import numpy as np
import torch
from gymnasium import spaces

from alf_lite.data_structures import Experience, TimeStep
from alf_lite.environments.specs_only_environment import SpecsOnlyEnvironment
from alf_lite.unrollers.unroll import PreallocatedRows, Unroll, UnrollJoiner
from alf_lite.unrollers.worker_memory import UnrollSlots, row_specs

NUM_ENVS = 8
NUM_SLOTS = 3  # of every worker, that take turns


class Worker:
    """The rows of an unroll, and where a worker and the trainer have them.

    Args:
        batch_size: its environments.
        length: T.
    """

    def __init__(self, batch_size: int, length: int) -> None:
        self._length = length
        self._time_steps = [_time_step(batch_size) for _ in range(length + 1)]
        self._acted = Experience((), torch.zeros(batch_size, dtype=torch.int64))
        self._own = PreallocatedRows()
        self._env = _Recorded()
        specs = row_specs(self._acted, self._time_steps[0])
        self._slots = UnrollSlots(specs, NUM_SLOTS, length, bootstrap=True)
        sent = reduction.ForkingPickler.loads(reduction.ForkingPickler.dumps(specs))
        self._read_slots = UnrollSlots(sent, NUM_SLOTS, length, bootstrap=True)
        descriptor = self._read_slots.create()
        self._slots.attach(descriptor)
        os.close(descriptor)

    def write_own(self) -> None:
        """As an unroll in the training process."""
        self._write(self._own)

    def write_slot(self, slot: int) -> None:
        self._write(self._slots.rows(slot))

    def _write(self, rows: PreallocatedRows) -> None:
        rows.begin(self._length, self._env, self._time_steps[0])
        for time_step in self._time_steps:
            rows.add(time_step, self._acted)
        rows.end(None)

    def read(self, slot: int) -> Unroll:
        return Unroll(*self._read_slots.read(slot), 0.0, False)


class _Recorded(SpecsOnlyEnvironment):
    """Its steps exist already, so they are copied."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(2), spaces.Discrete(2))


def _time_step(batch_size: int) -> TimeStep:
    return TimeStep(
        step_type=torch.ones(batch_size, dtype=torch.int32),
        reward=torch.zeros(batch_size),
        discount=torch.ones(batch_size),
        observation=torch.randint(256, (batch_size, 84, 84, 4), dtype=torch.uint8),
        prev_action=torch.zeros(batch_size, dtype=torch.int64),
        env_id=torch.arange(batch_size, dtype=torch.int32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unroll_length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print("| workers | one copy | worker | trainer | together, in copies |")
    print("|---|---|---|---|---|")
    for num_workers in (1, 2, 4):
        times = measure(num_workers, options.unroll_length, options.rounds)
        copy, own, slot, trainer = np.median(times, axis=0)
        together = np.median(
            (times[:, 2] - times[:, 1] + times[:, 3]) / times[:, 0], axis=0
        )
        print(
            f"| {num_workers} | {copy:.2f} ms | {slot - own:.2f} ms "
            f"({slot:.2f} - {own:.2f}) | {trainer:.2f} ms | {together:.2f} |",
            flush=True,
        )


def measure(num_workers: int, length: int, num_rounds: int) -> np.ndarray:
    """CPU milliseconds [rounds, 4]: one copy, rows of one's own, in slots, reading."""
    workers = [Worker(NUM_ENVS // num_workers, length) for _ in range(num_workers)]
    frames = torch.randint(256, (length + 1, NUM_ENVS, 84, 84, 4), dtype=torch.uint8)
    copy = torch.empty_like(frames)
    joiner = UnrollJoiner()

    def write_own() -> None:
        for worker in workers:
            worker.write_own()

    def write_slots(slot: int) -> None:
        for worker in workers:
            worker.write_slot(slot)

    times = np.zeros((num_rounds + NUM_SLOTS, 4))
    for i, row in enumerate(times):
        slot = i % NUM_SLOTS
        row[0] = _milliseconds(lambda: copy.copy_(frames))
        row[1] = _milliseconds(write_own)
        row[2] = _milliseconds(lambda slot=slot: write_slots(slot))
        row[3] = _milliseconds(
            lambda slot=slot: joiner.join([worker.read(slot) for worker in workers])
        )
    return times[NUM_SLOTS:]  # each slot was used before


def _milliseconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return 1e3 * (time.process_time() - begin)


if __name__ == "__main__":
    main()
