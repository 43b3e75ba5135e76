"""Makes the time steps of an episode, for tests and loops of one's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


def restart(observation: Nest, action_spec: NestedTensorSpec) -> TimeStep:
    """The first steps of episodes, as a test or a loop of one's own needs them.

    Args:
        observation: [B, ...].
        action_spec: of one action.
    """
    prev_action = nest.zeros(action_spec, (nest.batch_size(observation),))
    return _time_step(StepType.FIRST, observation, prev_action, 0.0, 1.0)


def transition(
    observation: Nest,
    prev_action: Nest,
    reward: Tensor | float,
    discount: Tensor | float = 1.0,
) -> TimeStep:
    """Steps in the middle of episodes.

    Args:
        observation: [B, ...].
        prev_action: [B, ...], the actions that led here.
        reward: [B] or [B, D], of them, or one for all.
        discount: [B], or one for all.
    """
    return _time_step(StepType.MID, observation, prev_action, reward, discount)


def termination(
    observation: Nest, prev_action: Nest, reward: Tensor | float
) -> TimeStep:
    """The last steps of episodes, in terminal states; see :func:`transition`."""
    return _time_step(StepType.LAST, observation, prev_action, reward, 0.0)


def truncation(
    observation: Nest, prev_action: Nest, reward: Tensor | float
) -> TimeStep:
    """The last steps of episodes that a time limit ends; see :func:`transition`."""
    return _time_step(StepType.LAST, observation, prev_action, reward, 1.0)


def _time_step(
    step_type: StepType,
    observation: Nest,
    prev_action: Nest,
    reward: Tensor | float,
    discount: Tensor | float,
) -> TimeStep:
    size, device = nest.batch_size(observation), nest.flatten(observation)[0].device

    def rows(value: Tensor | float) -> Tensor:
        given = torch.as_tensor(value, dtype=torch.float32, device=device)
        return given if given.dim() else given.expand(size)

    return TimeStep(
        step_type=torch.full((size,), int(step_type), dtype=torch.int32, device=device),
        reward=rows(reward),
        discount=rows(discount),
        observation=observation,
        prev_action=prev_action,
        env_id=torch.arange(size, dtype=torch.int32, device=device),
    )
