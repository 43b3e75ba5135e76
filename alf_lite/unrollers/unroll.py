"""What unrollers return, and what they need to know of an algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import AlgStep, Experience, TimeStep

Nest = Any


class Policy(Protocol):
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


def join_experience(unrolls: Sequence[Unroll]) -> Experience:
    """The experience of unrolls of equal length, side by side [T, ΣB, ...]."""
    if len(unrolls) == 1:
        return unrolls[0].experience
    return nest.cat([unroll.experience for unroll in unrolls], dim=1)
