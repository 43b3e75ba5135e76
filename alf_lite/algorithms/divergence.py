"""What to say when training produces NaN or infinity."""

from __future__ import annotations

import torch
from torch import nn

from alf_lite import nest
from alf_lite.data_structures import LossInfo

_MAX_NAMES = 5


def describe_bad_loss(name: str, module: nn.Module, loss_info: LossInfo) -> str:
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


def describe_bad_gradient(name: str, module: nn.Module) -> str:
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
