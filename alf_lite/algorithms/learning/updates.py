"""The gradient updates of an iteration, whichever learner made the batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_loss import LossFunction, aggregate_loss
from alf_lite.algorithms.learning.batch_statistics import with_batch_statistics
from alf_lite.algorithms.learning.captured_update import CapturedUpdate
from alf_lite.algorithms.learning.training_batches import TrainingBatch, parts_of
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Field, LossInfo
from alf_lite.errors import ConfigError, DivergedError
from alf_lite.nest import path_parts
from alf_lite.networks.batch_norm import normalizes_by_batch
from alf_lite.optimizers.optimizer import Optimizer
from alf_lite.utils import summary
from alf_lite.utils.interruption import interruption
from alf_lite.utils.losses import losses_of_part, masked_mean
from alf_lite.utils.ranks import ranks
from alf_lite.utils.summary import diagnostics_if

Nest = Any

_MAX_NAMES = 5  # in messages
# A private part of torch; where it is gone, the public way is taken.
_ENGINE: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
_ones: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # gradients of losses


class Update(NamedTuple):
    """What one gradient step is computed from, time-major; one part may be absent."""

    batch: TrainingBatch | None  # for train_step and calc_loss
    offline_batch: TrainingBatch | None = None  # for the offline ones, if they differ


class BatchLoss(NamedTuple):
    """What an update computed from one of its batches."""

    batch: TrainingBatch
    loss_info: LossInfo  # ``loss`` []
    info: Nest  # [T, B, ...], from the train step


def update_with_gradient(
    algorithm: Algorithm,
    loss_info: LossInfo,
    explain: Callable[[], LossInfo] | None = None,
    *,
    wants_norms: bool = True,
    glances: bool = True,
) -> list[Tensor]:
    """One gradient step of every optimizer on ``loss_info.loss`` [].

    With several ranks, on the mean over the valid steps of all of them: ``num_valid``
    says how many there are here.

    Args:
        algorithm: whose parameters move.
        loss_info: ``loss`` [], and for messages its parts in ``extra``.
        explain: computes it again with parts that were left out.
        wants_norms: whether somebody looks at what is returned.
        glances: False if the caller does, see :meth:`UpdateGuard.glance`.

    Returns:
        The gradient norm [] of every optimizer before clipping; nothing if nobody
        looks and none of them clips.

    Raises:
        DivergedError: if the loss or a gradient is NaN or infinite; no parameter
            has changed then. On a GPU, if one of the last updates was so: it and those
            after it have changed nothing, see :class:`UpdateGuard`.
    """
    for _, optimizer in algorithm.optimizers():
        optimizer.zero_grad()
    _backward(loss_info.loss)
    norms = _step(algorithm, loss_info, explain, wants_norms=wants_norms)
    guard = None if loss_info.loss.is_cpu else algorithm.update_guard
    if guard is not None and glances:
        guard.glance(algorithm.name)
    return norms


def accumulate_gradient(
    algorithm: Algorithm, parts: Iterable[LossInfo]
) -> tuple[Tensor, Tensor]:
    """The gradient of the mean loss over all valid steps of the parts of a batch.

    Args:
        algorithm: whose parameters get it.
        parts: ``loss`` [] and ``num_valid`` of each, computed when it is needed, so
            that there is one graph at a time.

    Returns:
        The loss [], detached, and the number of valid steps [].
    """
    for _, optimizer in algorithm.optimizers():
        optimizer.zero_grad()
    total, count = torch.zeros(()), torch.zeros(())
    for part in parts:
        weighted = part.loss * part.num_valid
        _backward(weighted)
        total = total.to(weighted.device) + weighted.detach()
        count = count.to(weighted.device) + part.num_valid
    divisor = count.clamp(min=1)
    gradients = [
        parameter.grad
        for _, optimizer in algorithm.optimizers()
        for parameter in optimizer.parameters
        if parameter.grad is not None
    ]
    torch._foreach_div_(gradients, divisor)
    return total / divisor, count


def _step(
    algorithm: Algorithm,
    loss_info: LossInfo,
    explain: Callable[[], LossInfo] | None,
    *,
    wants_norms: bool,
) -> list[Tensor]:
    """Applies the gradients that there are; see :func:`update_with_gradient`."""
    loss = loss_info.loss.detach()
    optimizers = [optimizer for _, optimizer in algorithm.optimizers()]
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
            raise DivergedError(_describe_divergence(algorithm, loss_info, explain))
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


def _backward(loss: Tensor) -> None:
    """``loss.backward()``, without the half of its time that looks at its arguments."""
    if (
        _ENGINE is None
        or type(loss) is not Tensor
        or loss.shape
        or not loss.requires_grad
    ):
        loss.backward()
        return
    one = _ones.get((loss.device, loss.dtype))
    if one is None:
        one = torch.ones((), dtype=loss.dtype, device=loss.device)
        _ones[loss.device, loss.dtype] = one
    keep_graph, create_graph, inputs, allow_unreachable = False, False, (), True
    _ENGINE.run_backward(
        *((loss,), (one,), keep_graph, create_graph, inputs, allow_unreachable),
        accumulate_grad=True,
    )


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
        num_steps = 0
        records = summary.should_record()
        looks = self._always_looks or records
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
                num_rows, batch_size = part.batch.valid.shape
                num_steps += (num_rows - num_bootstrap_rows) * batch_size
            if algorithm.stops_updates_early and self._is_stopped_by(losses[0]):
                break
        if records:
            self._summarize(losses, norms)
        return num_steps

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
        if records:
            self._summarize([BatchLoss(batch, loss_info, info)], norms)
        return batch.valid[:-1].numel()

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
        norms = _step(self._algorithm, together, explain, wants_norms=wants_norms)
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

    # Summaries

    def _summarize(self, losses: list[BatchLoss], norms: list[Tensor]) -> None:
        """Writes what the last update was like, own steps and offline ones apart."""
        guard = self._algorithm.update_guard
        if guard is not None:  # what is recorded is read from the device anyway
            guard.look(self._algorithm.name)
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
            distribution = self._algorithm.action_distribution(part.info)
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


# Messages


def _describe_divergence(
    algorithm: Algorithm,
    loss_info: LossInfo,
    explain: Callable[[], LossInfo] | None,
) -> str:
    if ranks.size > 1:
        return _describe_on_ranks(algorithm, loss_info, explain)
    if torch.isfinite(loss_info.loss):
        return _describe_bad_gradient(algorithm.name, algorithm)
    if explain is not None:
        loss_info = loss_info._replace(extra=explain().extra)
    return _describe_bad_loss(algorithm.name, algorithm, loss_info)


def _describe_on_ranks(
    algorithm: Algorithm,
    loss_info: LossInfo,
    explain: Callable[[], LossInfo] | None,
) -> str:
    """What the first rank says whose own loss is not finite, told by all."""
    is_finite = torch.isfinite(loss_info.loss.detach()).float().cpu()
    index = int(ranks.gather(is_finite).argmin())  # the first one, if all are finite
    text = ""
    if index == ranks.index:
        with ranks.alone():
            text = _describe_divergence(algorithm, loss_info, explain)
    return f"Rank {index}: {ranks.broadcast_data(text, index)}"


def _describe_bad_loss(name: str, module: nn.Module, loss_info: LossInfo) -> str:
    """A non-finite loss: which of its parts and which parameters are not finite."""
    parts = [
        path
        for path, value in nest.flatten_with_path(loss_info.extra)
        if not torch.isfinite(value).all()
    ]
    parameters = [n for n, p in module.named_parameters() if not p.isfinite().all()]
    return (
        f"{name}: the loss is {loss_info.loss.item()}; non-finite loss parts: "
        f"{parts or 'none'}; non-finite parameters: "
        f"{parameters[:_MAX_NAMES] or 'none'}. Likely causes: a too large learning "
        "rate, unscaled rewards or observations, no gradient clipping. No parameter "
        "was changed."
    )


def _describe_bad_gradient(name: str, module: nn.Module) -> str:
    """A non-finite gradient of a finite loss: of which parameters."""
    parameters = [
        n
        for n, p in module.named_parameters()
        if p.grad is not None and not p.grad.isfinite().all()
    ]
    return (
        f"{name}: the loss is finite, but the gradient is not, of "
        f"{parameters[:_MAX_NAMES]} ({len(parameters)} parameters). Likely causes: a "
        "square root, logarithm or division at its limit, or a too large learning "
        "rate. No parameter was changed."
    )
