"""The precision in which hidden layers are computed.

Parameters, gradients, outputs and losses are float32 always. What is large, the matrix
products of hidden layers, can be done in bfloat16, twice as fast or more on processors
with units for it. Micikevicius et al. 2018, "Mixed Precision Training".
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import torch
from torch import Tensor

_dtype = torch.float32


class hidden_layers_in:  # noqa: N801 - used like a function
    """Hidden layers that are called inside are computed in ``dtype``.

    What is computed inside may be differentiated outside.
    """

    __slots__ = ("_before", "_dtype")

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __enter__(self) -> None:
        global _dtype  # one for the process, as torch's own is
        self._before, _dtype = _dtype, self._dtype

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _dtype
        _dtype = self._before


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
