"""The gradient updates of an iteration, wherever its batches come from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_loss import (
    BatchLoss,
    LossFunction,
    aggregate_loss,
)
from alf_lite.algorithms.learning.batch_statistics import with_batch_statistics
from alf_lite.algorithms.learning.captured_update import CapturedUpdate
from alf_lite.algorithms.learning.gradient_step import (
    accumulate_gradient,
    apply_gradients,
    update_with_gradient,
)
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    parts_of,
    passes,
)
from alf_lite.algorithms.learning.update_summaries import (
    asks_all_ranks,
    summarize_update,
)
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Field, LossInfo
from alf_lite.errors import ConfigError
from alf_lite.networks.batch_norm import normalizes_by_batch
from alf_lite.utils import summary
from alf_lite.utils.diagnostics import diagnostics_if
from alf_lite.utils.losses import losses_of_part
from alf_lite.utils.ranks import ranks

Nest = Any


class Update(NamedTuple):
    """What one gradient step is computed from, time-major; one part may be absent."""

    batch: TrainingBatch | None  # for train_step and calc_loss
    offline_batch: TrainingBatch | None = None  # for the offline ones, if they differ


class UpdateLoop:
    """Makes the updates of an algorithm and counts them.

    Args:
        algorithm: the root of the run.
        config: of the run.
        compiles: whether losses are computed by ``torch.compile``.
    """

    def __init__(
        self, algorithm: Algorithm, config: TrainerConfig, *, compiles: bool = False
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        loss = LossFunction(algorithm)
        self._burn_in_length = loss.burn_in_length
        # Of the parts of an update, in their order
        self._loss_functions: list[Any] = [loss, LossFunction(algorithm, offline=True)]
        if compiles:
            self._loss_functions = [each.compiled() for each in self._loss_functions]
        # A compiled function shall not be compiled anew for each recorded iteration.
        self._always_looks = compiles or algorithm.stops_updates_early
        self.num_updates = 0  # since the run began
        self._num_parts = config.gradient_accumulation
        if self._num_parts > 1:
            _check_parts(algorithm)
        self._captured: CapturedUpdate | None = None
        if config.cuda_graphs:
            self._captured = CapturedUpdate(algorithm, self._update_unseen)

    @property
    def num_graphs(self) -> int:
        """How many kinds of updates were captured: ``TrainerConfig.cuda_graphs``."""
        return 0 if self._captured is None else self._captured.num_graphs

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
        num_steps: int | Tensor = 0
        records = summary.should_record()
        looks = self._always_looks or records or asks_all_ranks()
        algorithm.begin_updates()
        for update in updates:
            explain = functools.partial(self._explain, update)
            if self._num_parts > 1:
                losses, norms = self._update_by_parts(update, looks, explain, records)
            elif self._captured is not None and not records:
                losses, norms = self._update_by_graph(self._captured, update), []
            else:
                losses = self._losses_of(update, looks)
                norms = update_with_gradient(
                    algorithm, _total_loss(losses), explain, wants_norms=records
                )
            batch, _, info = losses[0]
            inputs = batch.inputs
            if self._burn_in_length:
                inputs = batch.rows(self._burn_in_length, None).inputs
            algorithm.after_update(inputs, info)
            if update_priority is not None:
                for part in losses:
                    update_priority(part.batch.batch_info, part.loss_info.priority)
            self.num_updates += 1
            for part in losses:
                num_steps += self._num_steps(part.batch.valid, num_bootstrap_rows)
            if algorithm.stops_updates_early and self._is_stopped_by(losses[0]):
                break
        if records or asks_all_ranks():
            summarize_update(algorithm, self._config, losses, norms)
        return int(num_steps)

    def run_passes(self, batch: TrainingBatch, *, num_bootstrap_rows: int) -> int:
        """As :meth:`run`, in passes over sequences [N, T, ...], in mini-batches."""
        algorithm, config = self._algorithm, self._config
        prepare: Callable[[list[TrainingBatch]], Iterable[TrainingBatch]] = iter
        if ranks.size > 1:
            prepare = functools.partial(with_batch_statistics, algorithm)
        batches = passes(batch, config.num_updates, config.mini_batch_size, prepare)
        return self.run(map(Update, batches), num_bootstrap_rows=num_bootstrap_rows)

    def _num_steps(self, valid: Tensor, num_bootstrap_rows: int) -> int | Tensor:
        """How many of the steps [T, B] are trained."""
        if self._config.unroll_episodes is not None:  # most rows may be others'
            return valid.count_nonzero()
        num_rows, batch_size = valid.shape
        return (num_rows - num_bootstrap_rows) * batch_size

    def _is_stopped_by(self, part: BatchLoss) -> bool:
        """Whether the remaining updates are left out; on a GPU they change nothing."""
        algorithm = self._algorithm
        stop = algorithm.should_stop_updates(part.loss_info, part.batch.valid)
        guard = algorithm.update_guard
        if guard is None or isinstance(stop, bool):
            return bool(stop)
        guard.stop(stop)
        return False

    def run_on_rollout(self, batch: TrainingBatch) -> int:
        """One update by what ``rollout_step`` returned, through its own graph.

        Args:
            batch: [T+1, B, ...], with the bootstrap row and the info for ``calc_loss``.

        Returns:
            The number of steps trained on.
        """
        algorithm, info = self._algorithm, batch.rollout_info
        loss_info = aggregate_loss(
            algorithm.calc_loss(info), batch.valid, counts=ranks.size > 1
        )
        records = summary.should_record()
        algorithm.begin_updates()
        norms = update_with_gradient(algorithm, loss_info, wants_norms=records)
        algorithm.after_update(batch.inputs, info)
        self.num_updates += 1
        if records or asks_all_ranks():
            summarize_update(
                algorithm, self._config, [BatchLoss(batch, loss_info, info)], norms
            )
        return int(self._num_steps(batch.valid, 1))

    def _update_by_parts(
        self,
        update: Update,
        looks: bool,
        explain: Callable[[], LossInfo],
        wants_norms: bool,
    ) -> tuple[list[BatchLoss], list[Tensor]]:
        """One gradient step on a batch that is cut in parts for want of memory."""
        batch = update.batch
        assert batch is not None, "no offline loss, as was checked"
        parts: list[BatchLoss] = []

        def losses() -> Iterator[LossInfo]:
            (whole,) = with_batch_statistics(self._algorithm, [batch])
            for part in parts_of(whole, self._num_parts):
                with losses_of_part():
                    (part_loss,) = self._losses_of(Update(part), looks)
                yield part_loss.loss_info
                parts.append(_without_graph(part_loss))

        loss, num_valid = accumulate_gradient(self._algorithm, losses())
        together = LossInfo(
            loss=loss,
            extra=_joined([part.loss_info.extra for part in parts]),
            priority=_joined([part.loss_info.priority for part in parts]),
            num_valid=num_valid,
        )
        norms = apply_gradients(
            self._algorithm, together, explain, wants_norms=wants_norms
        )
        info = _joined([part.info for part in parts])
        return [BatchLoss(batch, together, info)], norms

    def _update_by_graph(
        self, captured: CapturedUpdate, update: Update
    ) -> list[BatchLoss]:
        batches = [batch for batch in update if batch is not None]
        return [
            BatchLoss(batch, *result)
            for batch, result in zip(batches, captured(update), strict=True)
        ]

    def _update_unseen(
        self, batches: Sequence[TrainingBatch | None]
    ) -> list[tuple[LossInfo, Nest]]:
        """One gradient step, of which nothing is recorded and nothing is read."""
        losses = self._losses_of(Update(*batches), self._always_looks)
        update_with_gradient(
            self._algorithm, _total_loss(losses), wants_norms=False, glances=False
        )
        return [(part.loss_info, part.info) for part in losses]

    def _explain(self, update: Update) -> LossInfo:
        """The loss with all its parts."""
        return _total_loss(self._losses_of(update, looks=True))

    def _losses_of(self, update: Update, looks: bool) -> list[BatchLoss]:
        """Of the batches that there are; not both are absent.

        Args:
            update: what to compute them from.
            looks: whether somebody looks at the diagnostics.
        """
        with diagnostics_if(looks):
            return [
                BatchLoss(batch, *function(batch))
                for batch, function in zip(update, self._loss_functions, strict=True)
                if batch is not None
            ]


def _total_loss(losses: Sequence[BatchLoss]) -> LossInfo:
    """The loss of an update: every window counts alike, whichever batch it is in."""
    if len(losses) == 1:
        return losses[0].loss_info
    sizes = [part.batch.valid.shape[1] for part in losses]
    means = [part.loss_info.loss for part in losses]
    num_valid: Field = ()
    if ranks.size > 1:  # each loss is a mean over the steps of all ranks
        counts = torch.stack([part.loss_info.num_valid for part in losses]).double()
        shares = ranks.size * counts / ranks.sum_(counts.clone()).clamp(min=1)
        means = [
            share.to(mean) * mean for share, mean in zip(shares, means, strict=True)
        ]
        num_valid = torch.ones(())
    total = sum(
        size / sum(sizes) * mean for size, mean in zip(sizes, means, strict=True)
    )
    extra = [part.loss_info.extra for part in losses]
    return LossInfo(loss=total, extra=extra, num_valid=num_valid)


def _without_graph(part: BatchLoss) -> BatchLoss:
    """The graph's memory is what parts save."""
    loss_info, info = nest.map_structure(torch.detach, (part.loss_info, part.info))
    return part._replace(loss_info=loss_info, info=info)


def _joined(parts: Sequence[Nest]) -> Nest:
    """What the parts of a batch [T, b, ...] say, or [b], as that of the batch.

    Of single numbers [] it is their mean.
    """

    def join(*leaves: Tensor) -> Tensor:
        if leaves[0].ndim == 0:
            return torch.stack(leaves).float().mean()
        return torch.cat(leaves, dim=min(1, leaves[0].ndim - 1))

    return nest.map_structure(join, *parts)


def _check_parts(algorithm: Algorithm) -> None:
    """Refuses to cut batches where their parts would not add up to the whole."""
    name = algorithm.name
    for module in algorithm.modules():
        if normalizes_by_batch(module):
            raise ConfigError(
                f"TrainerConfig.gradient_accumulation: {name} normalizes by the "
                f"statistics of its batch ({type(module).__name__}), which parts of it "
                "do not have. Set gradient_accumulation = 1, or batch_norm = False."
            )
    if algorithm.has_offline_loss:
        raise ConfigError(
            f"TrainerConfig.gradient_accumulation: {name} has a loss of its own for "
            "recorded steps, whose batches are not cut. Set gradient_accumulation = 1."
        )
