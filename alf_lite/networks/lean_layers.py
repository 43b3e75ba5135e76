"""Evaluating layers at as little cost as torch can, in the precision that is wanted.

What computes a layer without calling it has to ask first: anybody may put another layer
in the place of one, watch one by a hook, or have its weight made of other parameters
(``torch.nn.utils.parametrizations``).

Parameters, gradients, outputs and losses are float32 always. What is large, the matrix
products of hidden layers, can be done in bfloat16, twice as fast or more on processors
with units for it. Micikevicius et al. 2018, "Mixed Precision Training".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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

    def __exit__(self, *error: object) -> None:
        global current_dtype
        current_dtype = self._before


def apply_hidden(layers: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``layers(x)`` in the precision that is in force; the result is float32."""
    if current_dtype is torch.float32:
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

    _is_hidden = False  # whether in the precision of hidden layers

    def forward(self, x: Tensor) -> Tensor:
        if self._is_hidden and current_dtype is not torch.float32:
            return apply_hidden(super().forward, x)
        may_overwrite = False  # whether nobody else needs x
        for layer in self._modules.values():
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


class HiddenSequential(LeanSequential):
    """As ``LeanSequential``, in the precision of hidden layers."""

    _is_hidden = True


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """What an ``nn.Linear`` does, in less time if there is nothing more to it."""
    if type(layer) is not nn.Linear or has_hooks(layer):
        result: Tensor = layer(x)
        return result
    # Not by attribute, which nn.Module looks up in Python.
    parameters: dict[str, Any] = layer._parameters
    return F.linear(x, parameters["weight"], parameters["bias"])


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody wants to see, or change, what goes in or comes out.

    Also by another ``forward`` of this object alone.
    """
    return bool(  # asked at every step; any() takes twice as long
        "forward" in module.__dict__
        or module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
    )


class BuiltLayers:
    """The layers of a network, and where they are in it.

    Args:
        layers: all of them below ``network``.
        network: that was built with them.
    """

    def __init__(self, layers: Sequence[nn.Module], network: nn.Module) -> None:
        self._places = _places_of(layers, network)
        held = {id(modules): modules for modules, *_ in self._places}
        # A layer that is appended to a sequence is called, too
        self._sizes = [
            (module._modules, len(module._modules))
            for module in network.modules()
            if isinstance(module, nn.Sequential) and id(module._modules) in held
        ]
        self._hooks = [
            hooks for _, _, layer in self._places for hooks in _hooks_of(layer)
        ]

    def are_untouched(self) -> bool:
        """Whether each is where it was and computes what its class does, unwatched."""
        # Asked at every step, and all() takes three times as long.
        for modules, name, layer in self._places:
            if modules.get(name) is not layer or "forward" in layer.__dict__:
                return False
        for modules, size in self._sizes:
            if len(modules) != size:
                return False
        return not any(self._hooks)


def _hooks_of(module: nn.Module) -> tuple[dict[int, Any], ...]:
    return (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )


def _places_of(
    layers: Sequence[nn.Module], network: nn.Module
) -> list[tuple[dict[str, Any], str, nn.Module]]:
    """The submodules of the holder, the name among them, and what is held.

    Of the layers and of all that they are a part of, below the network.
    """
    found: list[tuple[dict[str, Any], str, nn.Module]] = []

    def holds_layers(module: nn.Module) -> bool:
        own = [
            (module._modules, name, child)
            for name, child in module._modules.items()
            if child is not None and (holds_layers(child) or child in wanted)
        ]
        found.extend(own)
        return bool(own)

    wanted = set(layers)
    holds_layers(network)
    return found
