"""What is recorded of an update: losses and their parts, gradients, histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_loss import BatchLoss
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.config import TrainerConfig
from alf_lite.nest import path_parts
from alf_lite.utils import summary
from alf_lite.utils.losses import masked_mean
from alf_lite.utils.ranks import ranks

Nest = Any


def summarize_update(
    algorithm: Algorithm,
    config: TrainerConfig,
    losses: Sequence[BatchLoss],
    norms: Sequence[Tensor],
) -> None:
    """Writes what an update was like, own steps and offline ones apart.

    With several ranks, losses are the means over the steps of all of them: where
    :func:`asks_all_ranks`, every rank calls this.

    Args:
        algorithm: the root of the run.
        config: of the run.
        losses: of its batches.
        norms: the gradient norm [] of every optimizer.
    """
    guard = algorithm.update_guard
    if guard is not None:  # what is recorded is read from the device anyway
        guard.look(algorithm.name)
    means = _Means()
    for part in losses:
        for name, valid in _valid_by_source(part.batch).items():
            _add_loss(means, name, part, valid)
    with summary.scope(algorithm.name):
        write_means(means)
    if summary.should_record():
        _write_details(algorithm, config, losses, norms)


def _write_details(
    algorithm: Algorithm,
    config: TrainerConfig,
    losses: Sequence[BatchLoss],
    norms: Sequence[Tensor],
) -> None:
    """Writes what there is beside the losses, of this rank alone."""
    for part in losses:
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
    return {
        name: batch.valid & rows
        for name, rows in parts.items()
        if rows.any() or ranks.size > 1  # another rank may have some
    }


# By name: a mean [], and of how many steps [] it is one
_Means = dict[str, tuple[Tensor, Tensor]]


def asks_all_ranks() -> bool:
    """Whether one of several ranks now writes means over all of them."""
    return ranks.size > 1 and summary.is_due()


def write_means(means: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Writes numbers, with several ranks their means over the steps of all of these.

    Args:
        means: by name, a mean [] and of how many steps [] it is one; the same names on
            every rank.
    """
    if not asks_all_ranks():
        for name, (mean, _) in means.items():
            summary.scalar(name, mean)
        return
    pairs = [[x.double().cpu() for x in pair] for pair in means.values()]
    sums = ranks.sum_(torch.stack([torch.stack([m * n, n]) for m, n in pairs]))
    for name, (total, count) in zip(means, sums, strict=True):
        if count:
            summary.scalar(name, total / count)


def _add_loss(means: _Means, name: str, part: BatchLoss, valid: Tensor) -> None:
    """Adds ``loss`` []; of its parts in ``extra``, the means over the valid steps."""
    loss_info, count = part.loss_info, valid.count_nonzero()
    is_whole = valid is part.batch.valid and isinstance(loss_info.num_valid, Tensor)
    own = loss_info.num_valid if is_whole else count
    _add(means, name, loss_info.loss.detach(), own)
    for path, value in nest.flatten_with_path(loss_info.extra):
        if value.ndim == 2:
            rows = valid[: value.shape[0]]
            value, count = masked_mean(value, rows), rows.count_nonzero()
        _add(means, "/".join((name, *path_parts(path))), value, count)


def _add(means: _Means, name: str, mean: Tensor, count: Any) -> None:
    if name in means:  # of both parts of an update, one of which has no such steps
        other, others = means[name]
        mean = (mean * count + other * others) / (count + others).clamp(min=1)
        count = count + others
    means[name] = mean, count


def _histograms(name: str, values: Nest) -> None:
    for path, leaf in nest.flatten_with_path(values):
        summary.histogram("/".join((name, *path_parts(path))), leaf.detach().float())
