"""Whether a network still has the layers that it was built with.

A shortcut computes what layers would, and does not call them. It has to ask first:
anybody may put another layer in the place of one, watch one by a hook, or have its
weight made of other parameters (``torch.nn.utils.parametrizations``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn


class BuiltLayers:
    """The layers of a network, and where they are in it.

    Args:
        layers: all of them below ``network``.
        network: that was built with them.
    """

    def __init__(self, layers: Sequence[nn.Module], network: nn.Module) -> None:
        self._places = _places_of(layers, network)
        self._hooks = [
            hooks for _, _, layer in self._places for hooks in _hooks_of(layer)
        ]

    def are_untouched(self) -> bool:
        """Whether each is where it was and computes what its class does, unwatched."""
        # Asked at every step, and all() takes three times as long.
        for modules, name, layer in self._places:
            if modules.get(name) is not layer or "forward" in layer.__dict__:
                return False
        return not any(self._hooks)


def has_own_parameters(layer: nn.Module, kind: type) -> bool:
    """Whether weight and bias of a layer of this kind are its own parameters.

    With parametrizations they are made of others at every call.
    """
    return type(layer) is kind and layer._parameters.keys() >= {"weight", "bias"}


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
            if child is not None and (child in wanted or holds_layers(child))
        ]
        found.extend(own)
        return bool(own)

    wanted = set(layers)
    holds_layers(network)
    return found
