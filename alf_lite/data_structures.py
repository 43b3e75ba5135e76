"""The data that travels through the library, and its time convention.

Time convention. ``reward[t]``, ``discount[t]`` and ``prev_action[t]`` belong to
*arriving* at step t: they were caused by the action taken at t-1. The TD target of
step t, valid where step_type[t] ≠ LAST, is

    reward[t+1] + γ · discount[t+1] · V(observation[t+1])

``discount`` is the environment's, without γ: 0 only where the state is truly terminal.
A time limit is LAST with discount 1 and is bootstrapped. The step after a LAST ignores
its action and is the FIRST of the next episode, with reward 0. Or it is LAST, too, as
long as its agent waits for others: an episode ends with the first LAST step.

Shapes. ``[B, ...]`` at rollout, ``[T, B, ...]`` in an unroll and in every loss,
``[B, T, ...]`` when sampled from a replay buffer.

All types are NamedTuples whose fields default to ``()``, the empty nest: absent.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec

Nest = Any
Field = Any  # a Tensor, or () where it is absent


class StepType(enum.IntEnum):
    """Where in its episode a step is."""

    FIRST = 0
    MID = 1
    LAST = 2


class TimeStep(NamedTuple):
    """What the environment returns, one row per environment."""

    step_type: Field = ()  # [B] int32, a StepType
    reward: Field = ()  # [B] or [B, D], of the action that led here; 0 at FIRST
    discount: Field = ()  # [B], 0 where the state is terminal, else 1
    observation: Nest = ()  # [B, ...]
    prev_action: Nest = ()  # [B, ...], the action that led here; zeros at FIRST
    env_id: Field = ()  # [B] int32, the environment's row in the batch
    env_info: Nest = ()  # [B, ...], the declared info keys; zeros where not given
    untransformed: Any = ()  # the raw TimeStep, kept if a data transformer says so

    def is_first(self) -> Tensor:
        """[B] bool."""
        return self.step_type == int(StepType.FIRST)

    def is_mid(self) -> Tensor:
        """[B] bool."""
        return self.step_type == int(StepType.MID)

    def is_last(self) -> Tensor:
        """[B] bool."""
        return self.step_type == int(StepType.LAST)


class AlgStep(NamedTuple):
    """What ``predict_step``, ``rollout_step`` and ``train_step`` return."""

    output: Nest = ()  # [B, ...], the action
    state: Nest = ()  # [B, ...], the recurrent state for the next step
    info: Nest = ()  # [B, ...], what the loss or the replay buffer needs


class Experience(NamedTuple):
    """A time step and what the algorithm did there."""

    time_step: Any = ()  # TimeStep
    action: Nest = ()  # the output of rollout_step
    rollout_info: Nest = ()  # the info of rollout_step
    state: Nest = ()  # the state passed *into* rollout_step


class LossInfo(NamedTuple):
    """What ``calc_loss`` returns.

    ``loss`` is averaged over the valid steps; ``scalar_loss`` is added to that mean.
    """

    loss: Field = ()  # [T, B] or [T-1, B]
    scalar_loss: Field = ()  # []
    # Summarised, never differentiated; [T, B] or [T-1, B] or []. Left out by algorithms
    # that compute it as a ``diagnostic`` while nobody looks.
    extra: Nest = ()
    priority: Field = ()  # [B], |δ| for prioritised replay
    # [], of how many valid steps an aggregated loss is the mean; where it is weighted
    # with others, of other ranks or of other parts of its batch
    num_valid: Field = ()


class BatchInfo(NamedTuple):
    """Where the rows of a replayed batch come from."""

    env_ids: Field = ()  # [B] int64
    positions: Field = ()  # [B] int64, absolute position of the first step
    importance_weights: Field = ()  # [B]
    source: Field = ()  # [B] int64, 0: the run's own steps, k: the k-th offline buffer
    # [B, T] discounted return of what followed each step, -inf where its episode has
    # not terminated; if the algorithm uses_episode_returns
    episode_returns: Field = ()


def waits(step_type: Tensor, time: int = 0) -> Tensor:
    """Whether steps are of no episode: LAST, as is the step before it. Of any shape.

    Args:
        step_type: of steps in a row; of the first one it is not known.
        time: the dimension in which they follow each other.
    """
    is_last = step_type == int(StepType.LAST)
    before = is_last.roll(1, time)
    before.select(time, 0).fill_(False)
    return is_last & before


def time_step_spec(
    observation_spec: NestedTensorSpec,
    action_spec: NestedTensorSpec,
    reward_spec: TensorSpec = TensorSpec(()),
    env_info_spec: NestedTensorSpec = (),
) -> TimeStep:
    """The specs of a TimeStep's fields, without the batch dimension."""
    return TimeStep(
        step_type=BoundedTensorSpec((), torch.int32, 0, 2),
        reward=reward_spec,
        discount=BoundedTensorSpec((), torch.float32, 0.0, 1.0),
        observation=observation_spec,
        prev_action=action_spec,
        env_id=TensorSpec((), torch.int32),
        env_info=env_info_spec,
    )
