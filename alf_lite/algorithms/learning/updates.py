"""The gradient updates of an iteration, whichever learner made the batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_loss import LossFunction, aggregate_loss
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, LossInfo
from alf_lite.errors import DivergedError
from alf_lite.nest import path_parts
from alf_lite.utils import summary
from alf_lite.utils.interruption import interruption
from alf_lite.utils.losses import masked_mean
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
) -> list[Tensor]:
    """One gradient step of every optimizer on ``loss_info.loss`` [].

    Args:
        algorithm: whose parameters move.
        loss_info: ``loss`` [], and for messages its parts in ``extra``.
        explain: computes it again with parts that were left out.
        wants_norms: whether somebody looks at what is returned.

    Returns:
        The gradient norm [] of every optimizer before clipping; nothing if nobody
        looks and none of them clips.

    Raises:
        DivergedError: if the loss or a gradient is NaN or infinite; no parameter
            has changed then.
    """
    loss, optimizers = loss_info.loss, algorithm.optimizers()
    for _, optimizer in optimizers:
        optimizer.zero_grad()
    _backward(loss)
    config = algorithm.config
    checks = config is None or config.check_finite
    norms: list[Tensor] = []
    # One number tells of all, so that the device is waited for once.
    if wants_norms or any(optimizer.clips_gradients for _, optimizer in optimizers):
        norms = [optimizer.clip_gradients() for _, optimizer in optimizers]
        is_finite = not checks or math.isfinite(sum(norms, loss.detach()).item())
    elif checks:
        mark = 0 * loss.detach()  # NaN if it is not finite
        for _, optimizer in optimizers:
            optimizer.mark_non_finite(mark)
        is_finite = mark.item() == 0
    else:
        is_finite = True
    if not is_finite:
        raise DivergedError(_describe_divergence(algorithm, loss_info, explain))
    interruption.parameters_changed = True
    for _, optimizer in optimizers:
        optimizer.apply_gradients()
    return norms


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
        for update in updates:
            losses = self._losses_of(update, looks)
            norms = update_with_gradient(
                algorithm,
                _total_loss(losses),
                functools.partial(self._explain, update),
                wants_norms=records,
            )
            batch, loss_info, info = losses[0]
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
            if algorithm.stops_updates_early and algorithm.should_stop_updates(
                loss_info, batch.valid
            ):
                break
        if records:
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
        loss_info = aggregate_loss(algorithm.calc_loss(info), batch.valid)
        records = summary.should_record()
        norms = update_with_gradient(algorithm, loss_info, wants_norms=records)
        algorithm.after_update(batch.inputs, info)
        self.num_updates += 1
        if records:
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
        with diagnostics_if(looks):
            return [
                BatchLoss(batch, *function(batch))
                for batch, function in zip(update, self._loss_functions, strict=True)
                if batch is not None
            ]

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


# Messages


def _describe_divergence(
    algorithm: Algorithm,
    loss_info: LossInfo,
    explain: Callable[[], LossInfo] | None,
) -> str:
    if torch.isfinite(loss_info.loss):
        return _describe_bad_gradient(algorithm.name, algorithm)
    if explain is not None:
        loss_info = loss_info._replace(extra=explain().extra)
    return _describe_bad_loss(algorithm.name, algorithm, loss_info)


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
