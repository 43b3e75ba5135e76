"""The precision in which hidden layers are computed.

Parameters, gradients, outputs and losses are float32 always. What is large, the matrix
products of hidden layers, can be done in bfloat16, twice as fast or more on processors
with units for it. Micikevicius et al. 2018, "Mixed Precision Training".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_dtype = torch.float32


@contextlib.contextmanager
def hidden_layers_in(dtype: torch.dtype) -> Iterator[None]:
    """Hidden layers that are called inside are computed in ``dtype``.

    What is computed inside may be differentiated outside.
    """
    global _dtype  # one for the process, as torch's own is
    before, _dtype = _dtype, dtype
    try:
        yield
    finally:
        _dtype = before


def is_full_precision() -> bool:
    """Whether hidden layers are computed in float32 now."""
    return _dtype is torch.float32


def apply_hidden(layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``layers(x)`` in the precision that is in force; the result is float32."""
    if is_full_precision():
        return layers(x)
    # Without the cache: it would give what was cast without gradient to calls with.
    with torch.autocast(x.device.type, _dtype, cache_enabled=False):
        return layers(x).float()
