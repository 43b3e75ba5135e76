"""The gradient updates of an iteration, whichever path made the batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_summaries import (
    summarize_batch,
    valid_by_source,
)
from alf_lite.algorithms.learning.training_batches import (
    BatchLoss,
    Update,
    total_loss,
)
from alf_lite.algorithms.parts.diagnostics import diagnostics_if
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, LossInfo
from alf_lite.utils import summary

Nest = Any


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
        overrides = type(algorithm).should_stop_updates is not (
            Algorithm.should_stop_updates
        )
        self._always_looks = config.compile or overrides
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
                total_loss(losses), functools.partial(self._explain, update)
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
            if algorithm.should_stop_updates(loss_info, batch.valid):
                break
        if summary.should_record():
            self._summarize(losses, norms)
        return num_steps

    def _explain(self, update: Update) -> LossInfo:
        """The loss with all its parts."""
        return total_loss(self._losses_of(update, looks=True))

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

    def _summarize(self, losses: list[BatchLoss], norms: list[Tensor]) -> None:
        """Writes what the last update was like, own steps and offline ones apart."""
        for batch, loss_info, info in losses:
            for name, valid in valid_by_source(batch).items():
                self._algorithm.summarize_loss(loss_info, valid, name)
            summarize_batch(self._config, batch.inputs, info)
        self._algorithm.summarize_optimizers(norms)
