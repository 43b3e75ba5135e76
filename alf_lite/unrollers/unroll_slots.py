"""Places in shared memory for the unrolls of one worker."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers.unroll import Unroll
from alf_lite.utils.shared_tensors import SharedTensors

Nest = Any


class RowSpecs(NamedTuple):
    """What one row of an unroll consists of, as specs with the shape [B, ...]."""

    experience: Nest  # its time_step is () if it is the raw one
    time_step: Nest  # raw


def row_specs(experience: Experience, time_step: TimeStep) -> RowSpecs:
    """The specs of one row of tensors [B, ...]."""
    if experience.time_step is time_step:
        experience = experience._replace(time_step=())
    return RowSpecs(
        nest.extract_spec(experience, from_dim=0),
        nest.extract_spec(time_step, from_dim=0),
    )


class UnrollSlots:
    """A number of slots, each of which holds an unroll of T steps.

    Worker and trainer use different slots at every moment and tell each other which, so
    that nothing needs a lock.

    Args:
        specs: of one row.
        num_slots: how many unrolls there are room for.
        unroll_length: T.
        bootstrap: whether the experience has one more row.
    """

    def __init__(
        self, specs: RowSpecs, num_slots: int, unroll_length: int, bootstrap: bool
    ) -> None:
        self._specs = specs
        self._num_slots = num_slots
        self._num_rows = RowSpecs(unroll_length + bootstrap, unroll_length + 1)
        self._memory = SharedTensors(
            [
                TensorSpec((num_slots, num_rows, *leaf.shape), leaf.dtype)
                for part, num_rows in zip(specs, self._num_rows, strict=True)
                for leaf in nest.flatten(part)
            ]
        )
        self._places: list[list[Tensor]] = []  # of every slot
        self._unrolls: list[RowSpecs] = []  # the same as nests of tensors

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
        self._find_places()
        return descriptor

    def attach(self, descriptor: int) -> None:
        """Maps the memory that another process created."""
        self._memory.attach(descriptor)
        self._find_places()

    def _find_places(self) -> None:
        with torch.inference_mode(False):
            columns = [tensor.unbind(0) for tensor in self._memory.tensors]
        self._places = [list(row) for row in zip(*columns, strict=True)]
        num_leaves = len(nest.flatten(self._specs.experience))
        self._unrolls = [
            RowSpecs(
                nest.pack_sequence_as(self._specs.experience, place[:num_leaves]),
                nest.pack_sequence_as(self._specs.time_step, place[num_leaves:]),
            )
            for place in self._places
        ]

    def write(self, slot: int, unroll: Unroll) -> None:
        """Copies an unroll into a slot."""
        experience = unroll.experience
        if nest.is_empty(self._specs.experience.time_step):
            experience = experience._replace(time_step=())
        leaves = nest.flatten(experience) + nest.flatten(unroll.time_steps)
        torch._foreach_copy_(self._places[slot], leaves)

    def read(self, slot: int) -> tuple[Experience, TimeStep]:
        """Views of what is in a slot, as in an ``Unroll``."""
        experience, time_steps = self._unrolls[slot]
        if nest.is_empty(self._specs.experience.time_step):
            rows = self._num_rows.experience
            inputs = nest.map_structure(lambda t: t[:rows], time_steps)
            experience = experience._replace(time_step=inputs)
        return experience, time_steps
