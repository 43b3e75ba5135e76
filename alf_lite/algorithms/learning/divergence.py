"""What is said of an update whose loss or gradient is not finite."""

from __future__ import annotations

from collections.abc import Callable

import torch

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.data_structures import LossInfo
from alf_lite.utils.ranks import ranks

_MAX_NAMES = 5  # in messages


def describe_divergence(
    algorithm: Algorithm, loss_info: LossInfo, explain: Callable[[], LossInfo] | None
) -> str:
    """Which parts of the loss, parameters or gradients are not finite.

    Args:
        algorithm: whose update it was.
        loss_info: ``loss`` [], and its parts in ``extra``.
        explain: computes it again with parts that were left out.
    """
    if ranks.size == 1:
        return _describe_alone(algorithm, loss_info, explain)
    # What the first rank says whose own loss is not finite, told by all.
    is_finite = torch.isfinite(loss_info.loss.detach()).float().cpu()
    index = int(ranks.gather(is_finite).argmin())  # the first one, if all are finite
    text = ""
    if index == ranks.index:
        with ranks.alone():
            text = _describe_alone(algorithm, loss_info, explain)
    return f"Rank {index}: {ranks.broadcast_data(text, index)}"


def _describe_alone(
    algorithm: Algorithm, loss_info: LossInfo, explain: Callable[[], LossInfo] | None
) -> str:
    if torch.isfinite(loss_info.loss):
        return _describe_bad_gradient(algorithm)
    if explain is not None:
        loss_info = loss_info._replace(extra=explain().extra)
    parts = [
        path
        for path, value in nest.flatten_with_path(loss_info.extra)
        if not torch.isfinite(value).all()
    ]
    named = algorithm.named_parameters()
    parameters = [name for name, p in named if not p.isfinite().all()]
    return (
        f"{algorithm.name}: the loss is {loss_info.loss.item()}; non-finite loss "
        f"parts: {parts or 'none'}; non-finite parameters: "
        f"{parameters[:_MAX_NAMES] or 'none'}. Likely causes: a too large learning "
        "rate, unscaled rewards or observations, no gradient clipping. No parameter "
        "was changed."
    )


def _describe_bad_gradient(algorithm: Algorithm) -> str:
    """A non-finite gradient of a finite loss: of which parameters."""
    parameters = [
        name
        for name, p in algorithm.named_parameters()
        if p.grad is not None and not p.grad.isfinite().all()
    ]
    return (
        f"{algorithm.name}: the loss is finite, but the gradient is not, of "
        f"{parameters[:_MAX_NAMES]} ({len(parameters)} parameters). Likely causes: a "
        "square root, logarithm or division at its limit, or a too large learning "
        "rate. No parameter was changed."
    )
