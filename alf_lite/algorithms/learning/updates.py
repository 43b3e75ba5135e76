"""The gradient updates of an iteration, whichever learner made the batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.parts.diagnostics import diagnostics_if
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, LossInfo
from alf_lite.nest import path_parts
from alf_lite.utils import summary
from alf_lite.utils.losses import masked_mean

Nest = Any


class Update(NamedTuple):
    """What one gradient step is computed from, time-major; one part may be absent."""

    batch: TrainingBatch | None  # for train_step and calc_loss
    offline_batch: TrainingBatch | None = None  # for the offline ones, if they differ


class BatchLoss(NamedTuple):
    """What an update computed from one of its batches."""

    batch: TrainingBatch
    loss_info: LossInfo  # ``loss`` []
    info: Nest  # [T, B, ...], from the train step


class UpdateLoop:
    """Makes the updates of an algorithm and counts them.

    Args:
        algorithm: the root of the run.
        config: of the run.
    """

    def __init__(self, algorithm: Algorithm, config: TrainerConfig) -> None:
        self._algorithm = algorithm
        self._config = config
        self._batch_loss: Callable[..., tuple[LossInfo, Nest]] = algorithm.batch_loss
        if config.compile:
            self._batch_loss = torch.compile(algorithm.batch_loss)
        # A compiled function shall not be compiled anew for each recorded iteration.
        self._always_looks = config.compile or algorithm.stops_updates_early
        self.num_updates = 0  # since the run began

    def run(
        self,
        updates: Iterable[Update],
        *,
        num_bootstrap_rows: int = 0,
        update_priority: Callable[[BatchInfo, Tensor], None] | None = None,
    ) -> int:
        """Makes the updates.

        Args:
            updates: at least one.
            num_bootstrap_rows: of every batch, at its end; not counted as trained.
            update_priority: gets the new priorities of every batch from replay.

        Returns:
            The number of steps trained on.
        """
        algorithm = self._algorithm
        num_steps = 0
        looks = self._always_looks or summary.should_record()
        for update in updates:
            losses = self._losses_of(update, looks)
            norms = algorithm.update_with_gradient(
                _total_loss(losses), functools.partial(self._explain, update)
            )
            batch, loss_info, info = losses[0]
            trained = batch.rows(self._config.burn_in_length, None)
            algorithm.after_update(trained.inputs, info)
            if update_priority is not None:
                for part in losses:
                    update_priority(part.batch.batch_info, part.loss_info.priority)
            self.num_updates += 1
            for part in losses:
                num_rows, batch_size = part.batch.valid.shape
                num_steps += (num_rows - num_bootstrap_rows) * batch_size
            if algorithm.stops_updates_early and algorithm.should_stop_updates(
                loss_info, batch.valid
            ):
                break
        if summary.should_record():
            self._summarize(losses, norms)
        return num_steps

    def run_on_rollout(self, batch: TrainingBatch) -> int:
        """One update by what ``rollout_step`` returned, through its own graph.

        Args:
            batch: [T+1, B, ...], with the bootstrap row and the info for ``calc_loss``.

        Returns:
            The number of steps trained on.
        """
        algorithm, info = self._algorithm, batch.rollout_info
        loss_info = algorithm.aggregate_loss(algorithm.calc_loss(info), batch.valid)
        norms = algorithm.update_with_gradient(loss_info)
        algorithm.after_update(batch.inputs, info)
        self.num_updates += 1
        if summary.should_record():
            self._summarize([BatchLoss(batch, loss_info, info)], norms)
        return batch.valid[:-1].numel()

    def _explain(self, update: Update) -> LossInfo:
        """The loss with all its parts."""
        return _total_loss(self._losses_of(update, looks=True))

    def _losses_of(self, update: Update, looks: bool) -> list[BatchLoss]:
        """Of the batches that there are; not both are absent.

        Args:
            update: what to compute them from.
            looks: whether somebody looks at the diagnostics.
        """
        losses = []
        with diagnostics_if(looks):
            for batch, offline in ((update.batch, False), (update.offline_batch, True)):
                if batch is not None:
                    loss_info, info = self._batch_loss(batch, offline)
                    losses.append(BatchLoss(batch, loss_info, info))
        return losses

    # Summaries

    def _summarize(self, losses: list[BatchLoss], norms: list[Tensor]) -> None:
        """Writes what the last update was like, own steps and offline ones apart."""
        for part in losses:
            with summary.scope(self._algorithm.name):
                for name, valid in _valid_by_source(part.batch).items():
                    _summarize_loss(part.loss_info, valid, name)
            self._summarize_batch(part)
        self._summarize_optimizers(norms)

    def _summarize_batch(self, part: BatchLoss) -> None:
        """Histograms, for those who look for a mistake."""
        if self._config.debug_summaries:
            inputs = part.batch.inputs
            _histograms("batch/reward", inputs.reward)
            _histograms("batch/observation", inputs.observation)
            _histograms("batch/action", inputs.prev_action)
        if self._config.summarize_action_distributions:
            distribution = getattr(part.info, "action_distribution", ())
            _histograms("action_distribution", distribution)

    def _summarize_optimizers(self, norms: list[Tensor]) -> None:
        """Writes the gradient norms [] and learning rates of one update."""
        algorithm = self._algorithm
        for (name, optimizer), norm in zip(algorithm.optimizers(), norms, strict=True):
            summary.scalar(f"optimizer/{name}/gradient_norm", norm)
            summary.scalar(f"optimizer/{name}/learning_rate", optimizer.learning_rate)
        if self._config.summarize_grads_and_vars:
            for name, parameter in algorithm.named_parameters():
                summary.histogram(f"parameters/{name}", parameter)
                if parameter.grad is not None:
                    summary.histogram(f"gradients/{name}", parameter.grad)


def _total_loss(losses: Sequence[BatchLoss]) -> LossInfo:
    """The loss of an update: every window counts alike, whichever batch it is in."""
    if len(losses) == 1:
        return losses[0].loss_info
    sizes = [part.batch.valid.shape[1] for part in losses]
    total = sum(
        size / sum(sizes) * part.loss_info.loss
        for size, part in zip(sizes, losses, strict=True)
    )
    return LossInfo(loss=total, extra=[part.loss_info.extra for part in losses])


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
