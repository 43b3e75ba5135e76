"""What unrollers return, and what they need to know of an algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import AlgStep, Experience, TimeStep

Nest = Any


class ActingPolicy(Protocol):
    """What an unroller needs to know of an algorithm."""

    @property
    def device(self) -> torch.device: ...

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep: ...

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]: ...

    def get_initial_rollout_state(self, batch_size: int) -> Nest: ...

    def get_initial_transform_state(self, batch_size: int) -> Nest: ...


class Unroll(NamedTuple):
    """The result of an unroll of T steps.

    Without gradient both parts are views of the unroller's storage, valid until its
    next unroll.
    """

    experience: Experience  # [T, B, ...], or [T+1, B, ...] with a bootstrap row
    time_steps: TimeStep  # [T+1, B, ...] untransformed; row T starts the next unroll
    env_step_seconds: float
    is_first_unroll: bool  # row 0 of time_steps has not been in an earlier unroll
    env_ids: Tensor | None = None  # [B], the environments; None: all, in their order
    # Columns of which the same is true, because episodes could not be resumed there.
    new_columns: tuple[int, ...] = ()


class UnrollJoiner:
    """Puts unrolls side by side, in memory that is used again for those of one size."""

    def __init__(self) -> None:
        self._sizes: list[int] = []  # B of every unroll
        self._memory: list[Tensor] = []  # [T, ΣB, ...]
        self._places: list[Tensor] = []  # where in it the unrolls go, one after another

    def join(self, unrolls: Sequence[Unroll]) -> Experience:
        """The experience of unrolls of equal length, side by side [T, ΣB, ...].

        Valid as long as the unrolls are, and until the next call.
        """
        if len(unrolls) == 1:
            return unrolls[0].experience
        parts = [nest.flatten(unroll.experience) for unroll in unrolls]
        sizes = [leaves[0].shape[1] for leaves in parts]
        if sizes != self._sizes or len(parts[0][0]) != len(self._memory[0]):
            self._allocate(parts[0], sizes)
        torch._foreach_copy_(self._places, [leaf for part in parts for leaf in part])
        return nest.pack_sequence_as(unrolls[0].experience, self._memory)

    def _allocate(self, leaves: Sequence[Tensor], sizes: list[int]) -> None:
        self._sizes = sizes
        self._memory = [
            leaf.new_empty((leaf.shape[0], sum(sizes), *leaf.shape[2:]))
            for leaf in leaves
        ]
        columns = [memory.split(sizes, dim=1) for memory in self._memory]
        self._places = [place for part in zip(*columns, strict=True) for place in part]
