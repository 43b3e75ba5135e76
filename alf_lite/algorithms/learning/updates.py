"""The gradient updates of an iteration, wherever its batches come from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning import gradients
from alf_lite.algorithms.learning.batch_loss import (
    BatchLoss,
    LossFunction,
    aggregate_loss,
)
from alf_lite.algorithms.learning.captured_update import CapturedUpdate
from alf_lite.algorithms.learning.divergence import describe_divergence
from alf_lite.algorithms.learning.partial_batches import (
    accumulate_gradient,
    check_parts,
    with_batch_statistics,
)
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    num_mini_batches,
    passes,
)
from alf_lite.algorithms.learning.update_summaries import (
    asks_all_ranks,
    summarize_update,
)
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Field, LossInfo
from alf_lite.errors import DivergedError
from alf_lite.optimizers.optimizer import Optimizer
from alf_lite.utils import summary
from alf_lite.utils.diagnostics import diagnostics_if
from alf_lite.utils.interruption import interruption
from alf_lite.utils.ranks import ranks
from alf_lite.utils.wide_products import largest_matrix, wide_products

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
        self._num_passes = config.num_updates
        loss = LossFunction(algorithm)
        self._burn_in_length = loss.burn_in_length
        # Of the parts of an update, in their order
        self._loss_functions: list[Any] = [loss, LossFunction(algorithm, offline=True)]
        if compiles:
            self._loss_functions = [each.compiled() for each in self._loss_functions]
        # A compiled function shall not be compiled anew for each recorded iteration.
        self._always_looks = compiles or algorithm.stops_updates_early
        self.num_updates = 0  # since the run began
        varies = config.unroll_episodes is not None  # oneDNN keeps code for each size
        self._largest_matrix = 0 if varies else largest_matrix(algorithm.parameters())
        self._num_parts = config.gradient_accumulation
        if self._num_parts > 1:
            check_parts(algorithm)
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
        num_updates: int,
        *,
        num_bootstrap_rows: int = 0,
        update_priority: Callable[[BatchInfo, Tensor], None] | None = None,
    ) -> int:
        """Makes the updates; what is recorded is that of the last one alone.

        Args:
            updates: made when they are needed, so that the next one is not asked for.
            num_updates: how many there are, at least one.
            num_bootstrap_rows: of every batch, at its end; not counted as trained.
            update_priority: gets the new priorities of every batch from replay.

        Returns:
            The number of steps trained on.
        """
        algorithm = self._algorithm
        num_steps: int | Tensor = 0
        records = summary.should_record()
        asks_all = ranks.size > 1 and asks_all_ranks()
        norms: list[Tensor] = []
        for left, update in zip(reversed(range(num_updates)), updates, strict=True):
            may_be_last = not left or algorithm.stops_updates_early
            is_recorded = records and may_be_last
            looks = self._always_looks or (may_be_last and (records or asks_all))
            batch = next(filter(None, update))
            with wide_products(batch.valid.numel(), self._largest_matrix):
                losses, norms = self._update(update, looks, is_recorded)
            self._after_update(losses)
            for part in losses:
                if update_priority is not None:
                    update_priority(part.batch.batch_info, part.loss_info.priority)
                num_steps += self._num_steps(part.batch.valid, num_bootstrap_rows)
            if algorithm.stops_updates_early and algorithm.should_stop_updates(
                losses[0].loss_info, losses[0].batch.valid
            ):  # the host waits for it: so nothing at all changes after that
                break
        if records or asks_all:
            summarize_update(algorithm, self._config, losses, norms)
        return int(num_steps)

    def _update(
        self, update: Update, looks: bool, wants_norms: bool
    ) -> tuple[list[BatchLoss], list[Tensor]]:
        """One gradient step; its losses, and norms if somebody wants them."""
        if self._captured is not None and not wants_norms:
            return self._update_by_graph(self._captured, update), []
        if self._num_parts > 1:
            return self._update_in_parts(update, looks, wants_norms)
        losses = self._losses_of(update, looks)
        explain = functools.partial(self._explain, update)
        norms = self._step.take(_total_loss(losses), explain, wants_norms=wants_norms)
        return losses, norms

    def run_passes(self, batch: TrainingBatch, *, num_bootstrap_rows: int) -> int:
        """As :meth:`run`, in passes over sequences [N, T, ...], in mini-batches."""
        algorithm, config = self._algorithm, self._config
        prepare: Callable[[list[TrainingBatch]], Iterable[TrainingBatch]] = iter
        if ranks.size > 1:
            prepare = functools.partial(with_batch_statistics, algorithm)
        size, number = config.mini_batch_size, self._num_passes
        return self.run(
            map(Update, passes(batch, number, size, prepare)),
            number * num_mini_batches(batch.valid.shape[0], size),
            num_bootstrap_rows=num_bootstrap_rows,
        )

    def _num_steps(self, valid: Tensor, num_bootstrap_rows: int) -> int | Tensor:
        """How many of the steps [T, B] are trained."""
        if self._config.unroll_episodes is not None:  # most rows may be others'
            return valid.count_nonzero()
        num_rows, batch_size = valid.shape
        return (num_rows - num_bootstrap_rows) * batch_size

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
        norms = update_with_gradient(algorithm, loss_info, wants_norms=records)
        algorithm.after_update(batch.inputs, info)
        self.num_updates += 1
        if records or (ranks.size > 1 and asks_all_ranks()):
            summarize_update(
                algorithm, self._config, [BatchLoss(batch, loss_info, info)], norms
            )
        return int(self._num_steps(batch.valid, 1))

    @functools.cached_property
    def _step(self) -> GradientStep:
        """Its optimizers stay the same once there was an update."""
        return GradientStep(self._algorithm)

    def _after_update(self, losses: list[BatchLoss]) -> None:
        """Tells the algorithm, of the rows that were trained, and counts."""
        batch, _, info = losses[0]
        inputs = batch.inputs
        if self._burn_in_length:
            inputs = batch.rows(self._burn_in_length, None).inputs
        self._algorithm.after_update(inputs, info)
        self.num_updates += 1

    def _update_in_parts(
        self, update: Update, looks: bool, wants_norms: bool
    ) -> tuple[list[BatchLoss], list[Tensor]]:
        """One gradient step on the sum of the gradients of parts of the batch."""
        assert update.batch is not None, "no offline loss, as was checked"

        def loss_of(batch: TrainingBatch) -> BatchLoss:
            return self._losses_of(Update(batch), looks)[0]

        step = self._step
        together = accumulate_gradient(
            self._algorithm, update.batch, self._num_parts, loss_of, step.optimizers
        )
        explain = functools.partial(self._explain, update)
        norms = step.apply(together.loss_info, explain, wants_norms=wants_norms)
        return [together], norms

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
        self._step.take(_total_loss(losses), wants_norms=False, glances=False)
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
        losses = []
        with diagnostics_if(looks):
            for batch, function in zip(update, self._loss_functions, strict=True):
                if batch is not None:
                    losses.append(BatchLoss(batch, *function(batch)))
        return losses


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


# One gradient step


def update_with_gradient(
    algorithm: Algorithm, loss_info: LossInfo, *, wants_norms: bool = True
) -> list[Tensor]:
    """One :class:`GradientStep` on ``loss_info``."""
    return GradientStep(algorithm).take(loss_info, wants_norms=wants_norms)


class GradientStep:
    """One step of every optimizer on a loss [].

    With several ranks, on the mean over the valid steps of all of them: ``num_valid``
    says how many there are here.

    Args:
        algorithm: whose parameters move, the root of a run or a part of it.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.optimizers = [each for _, each in algorithm.optimizers_of_run()]

    def take(
        self,
        loss_info: LossInfo,
        explain: Callable[[], LossInfo] | None = None,
        *,
        wants_norms: bool,
        glances: bool = True,
    ) -> list[Tensor]:
        """Moves the parameters by the gradient of ``loss_info.loss`` [].

        Args:
            loss_info: of the update; for messages its parts are in ``extra``.
            explain: computes it again with parts that were left out.
            wants_norms: whether somebody looks at what is returned.
            glances: False if the caller does, see :meth:`UpdateGuard.glance`.

        Returns:
            The gradient norm [] of every optimizer before clipping; nothing if nobody
            looks and none of them clips.

        Raises:
            DivergedError: if the loss or a gradient is NaN or infinite; no parameter
                has changed then. On a GPU, if one of the last updates was so: it and
                those after it have changed nothing, see :class:`UpdateGuard`.
        """
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss, algorithm = loss_info.loss, self._algorithm
        gradients.backward(loss)
        norms = self.apply(loss_info, explain, wants_norms=wants_norms)
        guard = None if loss.is_cpu else algorithm.update_guard
        if guard is not None and glances:
            guard.glance(algorithm.name)
        return norms

    def apply(
        self,
        loss_info: LossInfo,
        explain: Callable[[], LossInfo] | None,
        *,
        wants_norms: bool,
    ) -> list[Tensor]:
        """As :meth:`take`, by the gradients that there are."""
        algorithm, optimizers = self._algorithm, self.optimizers
        loss = loss_info.loss.detach()
        if ranks.size > 1:
            loss = algorithm.average_gradients(loss, loss_info.num_valid)
        norms: list[Tensor] = []
        if wants_norms or any(optimizer.clips_gradients for optimizer in optimizers):
            norms = [optimizer.clip_gradients() for optimizer in optimizers]
        guard = None if loss.is_cpu else algorithm.update_guard
        skip: Tensor | None = None
        if guard is not None:
            skip = guard.skip(loss, norms, optimizers)
        if guard is None or guard.looks_at_once:
            config = algorithm.config
            checks = config is None or config.check_finite
            if checks and not _is_finite(loss, norms, optimizers):
                raise DivergedError(describe_divergence(algorithm, loss_info, explain))
        interruption.parameters_changed = True
        for optimizer in optimizers:
            optimizer.apply_gradients(skip)
        return norms


def _is_finite(
    loss: Tensor, norms: list[Tensor], optimizers: Sequence[Optimizer]
) -> bool:
    """One number tells of all, so that it is read once."""
    if norms:
        return math.isfinite(sum(norms, loss).item())
    mark = 0 * loss  # NaN if it is not finite
    for optimizer in optimizers:
        optimizer.mark_non_finite(mark)
    return mark.item() == 0
