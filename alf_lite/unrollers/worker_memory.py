"""The memory that unroll workers share with the trainer: what acts, and what was done.

Parameters go to the workers and unrolls come back without a copy or a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.processes.shared_memory import ArrayLayout, SharedMemory
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers.unroll import PreallocatedRows

Nest = Any

_BEGUN, _PUBLISHED = 0, 1


def control_memory(num_workers: int) -> SharedMemory:
    """A request to stop [1], and the heartbeats of all workers [num_workers]."""
    int64 = np.dtype(np.int64)
    return SharedMemory(
        [ArrayLayout((1,), int64), ArrayLayout((num_workers,), int64)],
        "unroll workers",
        "Free some memory.",
    )


def flat_parameters(specs: Iterable[TensorSpec]) -> SharedMemory:
    """Memory of this process in which tensors lie as in that of any other one."""
    memory = SharedMemory(
        list(specs), "the parameters for unroll workers", "Use a smaller network."
    )
    memory.create_here()
    return memory


class ParameterStore(SharedMemory):
    """One process publishes versions of a list of tensors, any number of others read.

    There are two copies. Version v is written into copy v % 2 while readers use the
    other one. The writer never waits. A reader that was so slow that the writer began
    the next but one version meanwhile notices it and reads again, so that it never uses
    tensors of which some are newer than others (a sequence lock).

    Args:
        specs: of the tensors.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        counters = TensorSpec((2,), dtype=torch.int64)
        self._num_tensors = len(specs)
        super().__init__(
            [counters, *specs, *specs],
            "the parameters for unroll workers",
            "Use a smaller network.",
        )
        # Some processors reorder what is not between two holders of a lock.
        self._barrier = threading.Lock()

    def attach(self, descriptor: int) -> None:
        super().attach(descriptor)
        counters, *copies = self.tensors()
        self._counters = counters.numpy()
        self._copies = (copies[: self._num_tensors], copies[self._num_tensors :])

    @property
    def version(self) -> int:
        """The newest complete one; 0 before the first."""
        return int(self._counters[_PUBLISHED])

    def publish(self, tensors: Sequence[Tensor]) -> int:
        """Copies ``tensors`` from any device. Returns the new version."""
        version = self.version + 1
        with self._barrier:
            self._counters[_BEGUN] = version
        with self._barrier, torch.no_grad():
            torch._foreach_copy_(self._copies[version % 2], list(tensors))
        with self._barrier:
            self._counters[_PUBLISHED] = version
        return version

    def read(self, into: Sequence[Tensor], known_version: int = 0) -> int:
        """Copies the newest version into ``into``, unless it is known.

        Args:
            into: tensors of this process.
            known_version: what they hold.

        Returns:
            The version that ``into`` holds now.
        """
        into = list(into)
        while True:
            with self._barrier:
                version = self.version
            if version == known_version:
                return version
            with self._barrier, torch.no_grad():
                torch._foreach_copy_(into, self._copies[version % 2])
            with self._barrier:
                is_whole = self._counters[_BEGUN] <= version + 1
            if is_whole:
                return version


class RowSpecs(NamedTuple):
    """What one row of an unroll consists of, as specs with the shape [B, ...]."""

    time_step: Nest  # raw
    experience: Nest  # its time_step is () if it is the raw one


def row_specs(experience: Experience, time_step: TimeStep) -> RowSpecs:
    """The specs of one row of tensors [B, ...]."""
    if experience.time_step is time_step:
        experience = experience._replace(time_step=())
    return RowSpecs(
        nest.extract_spec(time_step, from_dim=0),
        nest.extract_spec(experience, from_dim=0),
    )


class UnrollSlots(SharedMemory):
    """A number of slots, each of which holds an unroll of T steps of one worker.

    The worker writes every row where the trainer reads it. They use different slots at
    every moment and tell each other which, so that nothing needs a lock.

    Args:
        specs: of one row.
        num_slots: how many unrolls there are room for.
        unroll_length: T.
        bootstrap: whether the experience has one more row.
    """

    def __init__(
        self, specs: RowSpecs, num_slots: int, unroll_length: int, bootstrap: bool
    ) -> None:
        self._specs = tuple(specs)
        self._num_time_steps = unroll_length + 1
        self._num_rows = unroll_length + bootstrap
        self._rows: list[PreallocatedRows] = []  # of every slot
        self._views: dict[int, tuple[Experience, TimeStep]] = {}
        # Without a bootstrap row, the last row has a raw step alone.
        outer_dims = (num_slots, self._num_time_steps)
        super().__init__(
            [
                TensorSpec((*outer_dims, *leaf.shape), leaf.dtype)
                for leaf in nest.flatten(self._specs)
            ],
            f"{num_slots} unrolls of an unroll worker",
            "Lower TrainerConfig.unroll_queue_size, unroll_length or num_unroll_workers"
            ", or create_environment.num_parallel_environments.",
        )

    def attach(self, descriptor: int) -> None:
        super().attach(descriptor)
        with torch.inference_mode(False):
            columns = [tensor.unbind(0) for tensor in self.tensors()]
        self._views.clear()
        self._rows = [
            PreallocatedRows(nest.pack_sequence_as(self._specs, list(leaves)))
            for leaves in zip(*columns, strict=True)
        ]

    def rows(self, slot: int) -> PreallocatedRows:
        """Where a worker writes the rows of an unroll, and the trainer reads them."""
        return self._rows[slot]

    def read(self, slot: int) -> tuple[Experience, TimeStep]:
        """Views of what is in a slot, as in an ``Unroll``; the same ones each time."""
        if slot not in self._views:
            time_steps, experience = self._rows[slot].read(
                self._num_time_steps, self._num_rows
            )
            self._views[slot] = experience, time_steps
        return self._views[slot]
