"""Calls ``train_step`` on the steps of a mini-batch, all at once or one by one."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.data_structures import AlgStep, TimeStep
from alf_lite.utils.recurrent_state import reset_state

Nest = Any
# (inputs, state, rollout_info) → AlgStep
TrainStep = Callable[[TimeStep, Nest, Nest], AlgStep]


def info_at_once(
    train_step: TrainStep,
    batch: TrainingBatch,
    initial_state: Callable[[int], Nest],
) -> tuple[Nest, Nest]:
    """One call with all steps [T·B, ...], each with its own state.

    Args:
        train_step: to call.
        batch: [T, B, ...]. A step starts from the state that is stored with it, from
            the initial one if there is none.
        initial_state: of so many rows.

    Returns:
        The infos [T, B, ...] and the state [B, ...] after the last step.
    """
    num_steps, batch_size = batch.inputs.step_type.shape

    if num_steps == 1:  # takes half of the time of what follows
        without_time = methodcaller("squeeze", 0)
        with_time = methodcaller("unsqueeze", 0)
    else:
        without_time = methodcaller("flatten", 0, 1)
        with_time = methodcaller("unflatten", 0, (num_steps, batch_size))

    inputs, state, rollout_info = nest.map_structure(
        without_time, (batch.inputs, batch.state, batch.rollout_info)
    )
    if nest.is_empty(state):
        state = initial_state(num_steps * batch_size)
    step = train_step(inputs, state, rollout_info)
    info = nest.map_structure(with_time, step.info)
    if nest.is_empty(step.state):
        return info, step.state
    return info, nest.map_structure(lambda t: t[-batch_size:], step.state)


def info_step_by_step(
    train_step: TrainStep,
    batch: TrainingBatch,
    state: Nest,
    initial_state: Callable[[int], Nest],
) -> tuple[Nest, Nest]:
    """T calls with [B, ...], each with the state that the one before returned.

    Args:
        train_step: to call.
        batch: [T, B, ...].
        state: [B, ...], before the first step; reset where a step is FIRST.
        initial_state: of so many rows.

    Returns:
        The infos [T, B, ...] and the state [B, ...] after the last step.
    """
    num_steps, batch_size = batch.inputs.step_type.shape
    initial = initial_state(batch_size)
    infos = []
    for t in range(num_steps):
        inputs, rollout_info = nest.map_structure(
            lambda x, t=t: x[t], (batch.inputs, batch.rollout_info)
        )
        state = reset_state(state, initial, inputs.is_first())
        step = train_step(inputs, state, rollout_info)
        state = step.state
        infos.append(step.info)
    return nest.stack(infos), state
