"""Evaluating a module without training it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """What ``module`` computes inside has gradient to its inputs only.

    A policy is improved through a critic in this way, within the same backward pass
    that trains the critic on something else. The parameters are left as they were.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
