"""Evaluating layers at as little cost as torch can, in the precision that is wanted.

Parameters, gradients, outputs and losses are float32 always. What is large, the matrix
products of hidden layers, can be done in bfloat16, twice as fast or more on processors
with units for it. Micikevicius et al. 2018, "Mixed Precision Training".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.networks.built_layers import has_hooks

# Of hidden layers, see hidden_layers_in
current_dtype = torch.float32
# Those whose gradient follows from their output.
_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Sigmoid: torch.sigmoid_,
    nn.Tanh: torch.tanh_,
}


class hidden_layers_in:  # noqa: N801 - used like a function
    """Hidden layers that are called inside are computed in ``dtype``.

    What is computed inside may be differentiated outside.
    """

    __slots__ = ("_before", "_dtype")

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __enter__(self) -> None:
        global current_dtype  # one for the process, as torch's own is
        self._before, current_dtype = current_dtype, self._dtype

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global current_dtype
        current_dtype = self._before


def is_full_precision() -> bool:
    """Whether hidden layers are computed in float32 now."""
    return current_dtype is torch.float32


def apply_hidden(layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``layers(x)`` in the precision that is in force; the result is float32."""
    if is_full_precision():
        return layers(x)
    # Without the cache: it would give what was cast without gradient to calls with.
    with torch.autocast(x.device.type, current_dtype, cache_enabled=False):
        return layers(x).float()


class LinearMap(nn.Module):
    """A layer whose own gradient does not need its output, such as a linear one."""


class LeanSequential(nn.Sequential):
    """As ``nn.Sequential``, without what that does beside the layers.

    ``nn.Module.__call__`` takes a third of the time of a layer on a small batch, all of
    it for hooks: only layers that have some are called so. Activations overwrite the
    outputs of linear layers, :class:`LinearMap` among them.
    """

    def forward(self, x: Tensor) -> Tensor:
        return _run(self._modules.values(), x)


class HiddenSequential(LeanSequential):
    """As ``LeanSequential``, in the precision of hidden layers."""

    def forward(self, x: Tensor) -> Tensor:
        if is_full_precision():
            return _run(self._modules.values(), x)
        return apply_hidden(super().forward, x)


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """What an ``nn.Linear`` does, in less time if there is nothing more to it."""
    if type(layer) is not nn.Linear or has_hooks(layer):
        result: Tensor = layer(x)
        return result
    # Not by attribute, which nn.Module looks up in Python.
    parameters: dict[str, Any] = layer._parameters
    return F.linear(x, parameters["weight"], parameters["bias"])


def _run(layers: Iterable[nn.Module | None], x: Tensor) -> Tensor:
    may_overwrite = False  # whether nobody else needs x
    for layer in layers:
        assert layer is not None
        kind = type(layer)
        if has_hooks(layer):
            x = layer(x)
            may_overwrite = False  # they may keep it
        elif kind is nn.Linear:
            parameters = layer._parameters
            x = F.linear(x, parameters["weight"], parameters["bias"])  # type: ignore
            may_overwrite = True
        elif may_overwrite and kind in _IN_PLACE:
            x = _IN_PLACE[kind](x)
            may_overwrite = False  # its gradient needs it
        else:
            x = layer.forward(x)
            may_overwrite = kind is nn.Conv2d or issubclass(kind, LinearMap)
    return x
