"""Stacks of layers whose forward pass on few rows costs as little as it can."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.networks.hidden_precision import apply_hidden, is_full_precision

# Those whose gradient follows from their output.
_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Sigmoid: torch.sigmoid_,
    nn.Tanh: torch.tanh_,
}


class LinearMap(nn.Module):
    """A layer that is linear: of its output, only the next layer needs the values."""


class LeanSequential(nn.Sequential):
    """As ``nn.Sequential``, without what that does beside the layers.

    ``nn.Module.__call__`` takes a third of the time of a layer on a small batch, all of
    it for hooks. Hooks of the layers are not called here; those of the module are.
    Activations overwrite the outputs of linear layers, :class:`LinearMap` among them.
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
    """What an ``nn.Linear`` does, without its hooks."""
    # Not by attribute, which nn.Module looks up in Python.
    parameters: dict[str, Any] = layer._parameters
    return F.linear(x, parameters["weight"], parameters["bias"])


def _run(layers: Iterable[nn.Module | None], x: Tensor) -> Tensor:
    may_overwrite = False  # whether nobody else needs x
    for layer in layers:
        assert layer is not None
        kind = type(layer)
        if kind is nn.Linear:
            x = apply_linear(layer, x)
            may_overwrite = True
        elif may_overwrite and kind in _IN_PLACE:
            x = _IN_PLACE[kind](x)
            may_overwrite = False  # its gradient needs it
        else:
            x = layer.forward(x)
            may_overwrite = kind is nn.Conv2d or issubclass(kind, LinearMap)
    return x
