"""Places in shared memory for the unrolls of one worker."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.processes.shared_tensors import SharedTensors
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers.unroll_rows import StoredRows

Nest = Any


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


class UnrollSlots:
    """A number of slots, each of which holds an unroll of T steps.

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
        self._num_slots = num_slots
        self._num_time_steps = unroll_length + 1
        self._num_rows = unroll_length + bootstrap
        # Without a bootstrap row, the last row has a raw step alone.
        outer_dims = (num_slots, self._num_time_steps)
        self._memory = SharedTensors(
            [
                TensorSpec((*outer_dims, *leaf.shape), leaf.dtype)
                for leaf in nest.flatten(self._specs)
            ]
        )
        self._rows: list[StoredRows] = []  # of every slot

    @property
    def num_bytes(self) -> int:
        return self._memory.num_bytes

    def create(self, num_workers: int) -> int:
        """Allocates the memory; see ``SharedTensors.create``."""
        descriptor = self._memory.create(
            f"{self._num_slots} unrolls of each of {num_workers} unroll workers",
            "Lower TrainerConfig.unroll_queue_size, unroll_length or num_unroll_workers"
            ", or create_environment.num_parallel_environments.",
            num_copies=num_workers,
        )
        self._find_rows()
        return descriptor

    def attach(self, descriptor: int) -> None:
        """Maps the memory that another process created."""
        self._memory.attach(descriptor)
        self._find_rows()

    def _find_rows(self) -> None:
        with torch.inference_mode(False):
            columns = [tensor.unbind(0) for tensor in self._memory.tensors]
        self._rows = [
            StoredRows(nest.pack_sequence_as(self._specs, list(leaves)))
            for leaves in zip(*columns, strict=True)
        ]

    def rows(self, slot: int) -> StoredRows:
        """Where a worker writes the rows of its next unroll."""
        return self._rows[slot]

    def read(self, slot: int) -> tuple[Experience, TimeStep]:
        """Views of what is in a slot, as in an ``Unroll``."""
        time_steps, experience = self._rows[slot].read(
            self._num_time_steps, self._num_rows
        )
        return experience, time_steps
