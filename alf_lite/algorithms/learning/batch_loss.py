"""From a mini-batch to its loss: ``train_step``, ``calc_loss`` and the mean of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    time_major,
    transpose,
)
from alf_lite.data_structures import AlgStep, Field, LossInfo, TimeStep
from alf_lite.networks.batch_norm import normalizes_by_batch, trained_rows
from alf_lite.networks.lean_layers import hidden_layers_in
from alf_lite.networks.network import whole_sequences
from alf_lite.utils.compiling import compiled
from alf_lite.utils.diagnostics import diagnostics_are_due
from alf_lite.utils.losses import masked_mean
from alf_lite.utils.ranks import ranks
from alf_lite.utils.tensor_utils import flatten_outer, reset_state

Nest = Any
# (inputs, state, rollout_info) → AlgStep
TrainStep = Callable[[TimeStep, Nest, Nest], AlgStep]


class BatchLoss(NamedTuple):
    """What an update computed from one of its batches."""

    batch: TrainingBatch
    loss_info: LossInfo  # ``loss`` []
    info: Nest  # [T, B, ...], from the train step


class LossFunction:
    """Computes the loss of mini-batches; what the configuration says is read once.

    With ``TrainerConfig.burn_in_length``, the first rows only build up the state.

    Args:
        algorithm: with the configuration of the run, if it is the root of one.
        offline: whether by ``train_step_offline`` and ``calc_loss_offline``.
    """

    def __init__(self, algorithm: Algorithm, *, offline: bool = False) -> None:
        config = algorithm.config
        self._algorithm = algorithm
        self._offline = offline
        self._at_once = algorithm.is_temporally_independent
        self._in_sequences = takes_sequences(algorithm)
        self.burn_in_length = 0 if config is None else config.burn_in_length
        self._precision = (
            torch.float32 if config is None else getattr(torch, config.precision)
        )
        # Whether the loss is averaged with others: of other ranks, or other parts
        self._counts = ranks.size > 1 or (
            config is not None and config.gradient_accumulation > 1
        )
        self._normalizes = any(map(normalizes_by_batch, algorithm.modules()))
        self._is_plain = self._precision == torch.float32 and not self.burn_in_length
        self._is_simple = (
            self._is_plain and self._at_once and not offline and not self._normalizes
        )

    def __call__(self, batch: TrainingBatch) -> tuple[LossInfo, Nest]:
        """The aggregated loss of a mini-batch [T, B, ...], and the info it came from.

        Importance weights multiply the loss of every step of their row.
        """
        algorithm = self._algorithm
        calc_loss = algorithm.calc_loss
        if self._offline:
            calc_loss = algorithm.calc_loss_offline
        if self._is_simple:
            found = algorithm.quick_loss(batch)
            if found is not None:
                return _counted(*found, batch) if self._counts else found
            info, _ = info_at_once(algorithm, batch)
        elif self._is_plain:
            info, _ = self.info(batch)
        else:
            batch, info = self._after_burn_in(batch)
        weights = batch.batch_info.importance_weights
        loss_info = calc_loss(info)
        return aggregate_loss(
            loss_info, batch.valid, weights, counts=self._counts
        ), info

    def compiled(self, **options: Any) -> Callable[..., tuple[LossInfo, Nest]]:
        """The same by ``torch.compile``, in one graph; with its options."""

        def loss_and_info(batch: TrainingBatch) -> tuple[LossInfo, Nest]:
            loss_info, info = self(batch)
            # torch cannot return views of what a graph was given.
            return loss_info, nest.map_structure(torch.clone, info)

        return compiled(loss_and_info, **options)

    def info(
        self, batch: TrainingBatch, state: Nest | None = None
    ) -> tuple[Nest, Nest]:
        """The infos [T, B, ...] of the train step and the state [B, ...] after it."""
        algorithm = self._algorithm
        train_step: TrainStep = algorithm.train_step
        if self._offline:
            train_step = algorithm.train_step_offline
        if self._normalizes:
            train_step = _normalized_by_trained_rows(train_step, batch)
        if self._at_once:
            return info_at_once(algorithm, batch, train_step)
        initial_state = algorithm.get_initial_train_state
        if self._in_sequences and not torch.compiler.is_compiling():
            return info_of_sequences(train_step, batch, initial_state, state)
        return info_step_by_step(train_step, batch, initial_state, state)

    def _after_burn_in(self, batch: TrainingBatch) -> tuple[TrainingBatch, Nest]:
        """The rows that are trained, and their infos, in the precision of the run."""
        state = None
        with hidden_layers_in(self._precision):
            if self.burn_in_length:
                with torch.no_grad():
                    _, state = self.info(batch.rows(0, self.burn_in_length))
                batch = batch.rows(self.burn_in_length, None)
            return batch, self.info(batch, state)[0]


def _counted(
    loss_info: LossInfo, info: Nest, batch: TrainingBatch
) -> tuple[LossInfo, Nest]:
    """With ``num_valid``: a quick loss of several steps is without the last one.

    With n-step returns, a batch has fewer steps than its windows have rows.
    """
    num_steps = batch.inputs.step_type.shape[0]
    valid = batch.valid[: max(1, num_steps - 1)]
    return loss_info._replace(num_valid=valid.count_nonzero()), info


def info_of_steps(algorithm: Algorithm, batch: TrainingBatch) -> Nest:
    """What ``train_step`` says now about a batch [B, T, ...]: infos [B, T, ...]."""
    return transpose(LossFunction(algorithm).info(time_major(batch))[0])


def aggregate_loss(
    loss_info: LossInfo, valid: Tensor, weights: Field = (), *, counts: bool = False
) -> LossInfo:
    """Reduces the loss to one number: the mean over the valid steps.

    Args:
        loss_info: ``loss`` [T, B] or fewer rows, or () if there is a scalar_loss.
        valid: [T, B] bool; its first rows belong to those of the loss.
        weights: [B], importance weights.
        counts: whether to say of how many valid steps, as ``num_valid``.

    Returns:
        ``loss`` [] and ``extra``, detached but not reduced: most of it is never
        looked at.

    Raises:
        ValueError: if there is no loss, or it has another shape.
    """
    total: Tensor | float = 0.0
    rows = valid
    if not isinstance(loss_info.loss, tuple):
        shape = loss_info.loss.shape
        if shape != valid.shape:
            if shape[1:] != valid.shape[1:] or not 0 < shape[0] <= valid.shape[0]:
                raise ValueError(
                    f"calc_loss: expected a loss [T, B] with T from 1 to "
                    f"{valid.shape[0]} and B = {valid.shape[1]}, one number for each "
                    f"step, got {list(shape)}. A single number for all steps is a "
                    "scalar_loss; without a step, mini_batch_length is too short."
                )
            rows = valid[: shape[0]]
        total = masked_mean(
            loss_info.loss, rows, None if isinstance(weights, tuple) else weights
        )
    if not isinstance(loss_info.scalar_loss, tuple):
        total = total + loss_info.scalar_loss
    if counts:
        loss_info = loss_info._replace(num_valid=rows.count_nonzero())
    if not isinstance(total, Tensor):
        raise ValueError(
            "calc_loss returned a LossInfo without a loss: set loss [T, B] or "
            "scalar_loss []"
        )
    if total.ndim:
        raise ValueError(
            f"calc_loss: expected a scalar_loss [], got {list(total.shape)}. What has "
            "one number for each step, [T, B], is a loss."
        )
    extra = loss_info.extra
    if not isinstance(extra, tuple) or extra:
        extra = nest.map_structure(_detached, extra)
    return loss_info._replace(loss=total, extra=extra)


def _detached(value: Any) -> Tensor:
    t = torch.as_tensor(value)  # a number of Python, too
    return t.detach() if t.requires_grad else t  # the view costs something


def looked_at(
    algorithm: Algorithm, batch: TrainingBatch, loss: Tensor
) -> tuple[LossInfo, Nest]:
    """A quick loss [] and, where somebody looks, diagnostics and info without gradient.

    What is trained is the same whether or not somebody does.
    """
    if not diagnostics_are_due():
        return LossInfo(loss=loss), ()
    with torch.no_grad():
        info, _ = info_at_once(algorithm, batch)
        return algorithm.calc_loss(info)._replace(loss=loss), info


def takes_sequences(algorithm: Algorithm) -> bool:
    """Whether ``train_step`` and all networks with a state take whole sequences."""
    return algorithm.trains_on_sequences and all(
        getattr(module, "takes_sequences", False) for module in with_memory(algorithm)
    )


def with_memory(algorithm: Algorithm) -> list[nn.Module]:
    """The networks below it that have a state."""
    return [
        module
        for module in algorithm.modules()
        if not nest.is_empty(getattr(module, "state_spec", ()))
    ]


# Calling train_step on a mini-batch, all at once or step by step


def info_at_once(
    algorithm: Algorithm, batch: TrainingBatch, train_step: TrainStep | None = None
) -> tuple[Nest, Nest]:
    """One call with all steps [T·B, ...], each with its own state.

    Args:
        algorithm: that is trained.
        batch: [T, B, ...]. A step starts from the state that is stored with it, from
            the initial one if there is none.
        train_step: to call, if not that of the algorithm.

    Returns:
        The infos [T, B, ...] and the state [B, ...] after the last step.
    """
    num_steps, batch_size = batch.inputs.step_type.shape

    if num_steps == 1:  # takes half of the time of what follows
        with_time = operator.methodcaller("unsqueeze", 0)
    else:
        with_time = operator.methodcaller("unflatten", 0, (num_steps, batch_size))
    inputs, rollout_info, state = batch.flattened()
    if nest.is_empty(state):
        state = algorithm.get_initial_train_state(num_steps * batch_size)
    step = (train_step or algorithm.train_step)(inputs, state, rollout_info)
    info = nest.map_structure(with_time, step.info)
    if nest.is_empty(step.state):
        return info, step.state
    return info, nest.map_structure(lambda t: t[-batch_size:], step.state)


def info_of_sequences(
    train_step: TrainStep,
    batch: TrainingBatch,
    initial_state: Callable[[int], Nest],
    state: Nest | None = None,
) -> tuple[Nest, Nest]:
    """One call with all steps [T·B, ...] and the states [B, ...] before the first one.

    Arguments and result are those of :func:`info_step_by_step`, which it equals but for
    rounding and, where the train step draws random numbers, their order.
    """
    shape = batch.inputs.step_type.shape
    inputs, rollout_info = flatten_outer((batch.inputs, batch.rollout_info))
    if state is None:
        state = _stored_state(batch, initial_state(shape[1]))
    with whole_sequences(batch.inputs.is_first()):
        step = train_step(inputs, state, rollout_info)
    return nest.map_structure(lambda t: t.unflatten(0, shape), step.info), step.state


def info_step_by_step(
    train_step: TrainStep,
    batch: TrainingBatch,
    initial_state: Callable[[int], Nest],
    state: Nest | None = None,
) -> tuple[Nest, Nest]:
    """T calls with [B, ...], each with the state that the one before returned.

    Args:
        train_step: to call.
        batch: [T, B, ...].
        initial_state: of so many rows.
        state: [B, ...], before the first step; None means the one stored with it, or
            the initial one if there is none. It is reset where a step is FIRST.

    Returns:
        The infos [T, B, ...] and the state [B, ...] after the last step.
    """
    num_steps, batch_size = batch.inputs.step_type.shape
    initial = initial_state(batch_size)
    if state is None:
        state = _stored_state(batch, initial)
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


def _normalized_by_trained_rows(
    train_step: TrainStep, batch: TrainingBatch
) -> TrainStep:
    """The same for all steps of a batch, or for one after the other."""
    num_steps, batch_size = batch.inputs.step_type.shape
    valid = batch.valid[:num_steps]
    each = iter(valid)

    def step(inputs: TimeStep, state: Nest, rollout_info: Nest) -> AlgStep:
        is_one = inputs.step_type.shape[0] == batch_size
        with trained_rows(next(each) if is_one else valid.flatten()):
            return train_step(inputs, state, rollout_info)

    return step


def _stored_state(batch: TrainingBatch, initial: Nest) -> Nest:
    """[B, ...], the one that is stored with the first step, if there is one."""
    state = nest.map_structure(lambda t: t[0], batch.state)
    return initial if nest.is_empty(state) else state
