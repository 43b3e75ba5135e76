"""What is recorded of an update: losses and their parts, gradients, histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_loss import BatchLoss
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import LossInfo
from alf_lite.nest import path_parts
from alf_lite.utils import summary
from alf_lite.utils.losses import masked_mean

Nest = Any


def summarize_update(
    algorithm: Algorithm,
    config: TrainerConfig,
    losses: Sequence[BatchLoss],
    norms: Sequence[Tensor],
) -> None:
    """Writes what an update was like, own steps and offline ones apart.

    Args:
        algorithm: the root of the run.
        config: of the run.
        losses: of its batches.
        norms: the gradient norm [] of every optimizer.
    """
    guard = algorithm.update_guard
    if guard is not None:  # what is recorded is read from the device anyway
        guard.look(algorithm.name)
    for part in losses:
        with summary.scope(algorithm.name):
            for name, valid in _valid_by_source(part.batch).items():
                _summarize_loss(part.loss_info, valid, name)
        if config.debug_summaries:
            inputs = part.batch.inputs
            _histograms("batch/reward", inputs.reward)
            _histograms("batch/observation", inputs.observation)
            _histograms("batch/action", inputs.prev_action)
        if config.summarize_action_distributions:
            distribution = algorithm.action_distribution(part.info)
            _histograms("action_distribution", distribution)
    for (name, optimizer), norm in zip(algorithm.optimizers(), norms, strict=True):
        summary.scalar(f"optimizer/{name}/gradient_norm", norm)
        summary.scalar(f"optimizer/{name}/learning_rate", optimizer.learning_rate)
    if config.summarize_grads_and_vars:
        for name, parameter in algorithm.named_parameters():
            summary.histogram(f"parameters/{name}", parameter)
            if parameter.grad is not None:
                summary.histogram(f"gradients/{name}", parameter.grad)


def _valid_by_source(batch: TrainingBatch) -> dict[str, Tensor]:
    """The valid steps [T, B] of own rows and of offline ones, by the loss's name."""
    source = batch.batch_info.source
    if isinstance(source, tuple):
        return {"loss": batch.valid}
    own = (source == 0).to(batch.valid.device)
    parts = {"loss": own, "loss_offline": ~own}
    return {name: batch.valid & rows for name, rows in parts.items() if rows.any()}


def _summarize_loss(loss_info: LossInfo, valid: Tensor, name: str) -> None:
    """Writes ``loss`` []; of its parts in ``extra``, the means over the valid steps."""
    summary.scalar(name, loss_info.loss)
    for path, value in nest.flatten_with_path(loss_info.extra):
        if value.ndim == 2:
            value = masked_mean(value, valid[: value.shape[0]])
        summary.scalar("/".join((name, *path_parts(path))), value)


def _histograms(name: str, values: Nest) -> None:
    for path, leaf in nest.flatten_with_path(values):
        summary.histogram("/".join((name, *path_parts(path))), leaf.detach().float())
