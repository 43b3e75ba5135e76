"""One gradient step from a loss, and what is said when it is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.data_structures import LossInfo
from alf_lite.errors import DivergedError
from alf_lite.optimizers.optimizer import Optimizer
from alf_lite.utils.interruption import interruption
from alf_lite.utils.ranks import ranks

_MAX_NAMES = 5  # in messages
# A private part of torch; where it is gone, the public way is taken.
_ENGINE: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
_ones: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # gradients of losses


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
        algorithm: whose parameters move, the root of a run or a part of it.
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
    for _, optimizer in algorithm.optimizers_of_run():
        optimizer.zero_grad()
    _backward(loss_info.loss)
    norms = apply_gradients(algorithm, loss_info, explain, wants_norms=wants_norms)
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
    for _, optimizer in algorithm.optimizers_of_run():
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
        for _, optimizer in algorithm.optimizers_of_run()
        for parameter in optimizer.parameters
        if parameter.grad is not None
    ]
    torch._foreach_div_(gradients, divisor)
    return total / divisor, count


def apply_gradients(
    algorithm: Algorithm,
    loss_info: LossInfo,
    explain: Callable[[], LossInfo] | None,
    *,
    wants_norms: bool,
) -> list[Tensor]:
    """Moves by the gradients that there are; see :func:`update_with_gradient`."""
    loss = loss_info.loss.detach()
    optimizers = [optimizer for _, optimizer in algorithm.optimizers_of_run()]
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
