"""Layers as the networks want them; linear ones have orthogonal weights."""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from alf_lite.networks.lean_layers import HiddenSequential
from alf_lite.utils.free_memory import check_ram

# A name, a module (copied for every use), a module class, or a function of a tensor.
Activation = str | nn.Module | type[nn.Module] | Callable[[Tensor], Tensor]

_BYTES_PER_PARAMETER = 16  # itself, its gradient and two moments of Adam
_SMALL = 1_000_000
_MAX_SIZE = 1_000_000  # of a layer

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)

HIDDEN_GAIN = math.sqrt(2.0)

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "leaky_relu": nn.LeakyReLU,
    "mish": nn.Mish,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}


class _FunctionActivation(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x)

    def extra_repr(self) -> str:
        return getattr(self._function, "__name__", repr(self._function))


def make_activation(activation: Activation) -> nn.Module:
    """A new module for an activation.

    Raises:
        ValueError: if there is no activation of this name.
        TypeError: if it is neither a name nor callable.
    """
    if isinstance(activation, str):
        if activation not in _ACTIVATIONS:
            near = difflib.get_close_matches(activation, _ACTIVATIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"activation: no activation {activation!r}, expected one of "
                f"{sorted(_ACTIVATIONS)} or a callable.{hint}"
            )
        return _ACTIVATIONS[activation]()
    if isinstance(activation, nn.Module):
        return copy.deepcopy(activation)
    if isinstance(activation, type) and issubclass(activation, nn.Module):
        return activation()
    if callable(activation):
        return _FunctionActivation(cast(Callable[[Tensor], Tensor], activation))
    raise TypeError(f"activation: expected a name or a callable, got {activation!r}")


def linear(input_size: int, output_size: int, gain: float = HIDDEN_GAIN) -> nn.Linear:
    """A linear layer with orthogonal weights times ``gain`` and zero bias."""
    check_parameters(
        f"a layer of {input_size} x {output_size}", input_size, output_size
    )
    return orthogonal(nn.Linear(input_size, output_size), gain)


def check_parameters(what: str, *shape: int) -> None:
    """Refuses parameters that cannot be trained in the memory there is.

    Args:
        what: has them.
        *shape: of the parameters.
    """
    if math.prod(shape) > _SMALL:  # asking for the free memory takes long
        advice = "Make it smaller, or look for a number with too many zeros."
        check_ram(
            math.prod(shape) * _BYTES_PER_PARAMETER,
            f"{what}, with gradient and optimizer,",
            advice,
        )


def orthogonal(layer: _Layer, gain: float = HIDDEN_GAIN) -> _Layer:
    """``layer`` itself, with orthogonal weights times ``gain`` and zero bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(
    input_size: int,
    layer_sizes: Sequence[int],
    activation: Activation,
    layer_norm: bool = False,
) -> nn.Sequential:
    """Linear layers, each followed by the activation; the identity if there are none.

    Args:
        input_size: number of input features.
        layer_sizes: number of outputs of each layer.
        activation: see :func:`make_activation`.
        layer_norm: normalize the layers before their activation.
    """
    sizes = [input_size, *check_sizes("fc_layer_params", layer_sizes)]
    layers: list[nn.Module] = []
    for size, next_size in pairwise(sizes):
        layers.append(linear(size, next_size))
        if layer_norm:
            layers.append(nn.LayerNorm(next_size))
        layers.append(make_activation(activation))
    return HiddenSequential(*layers)


def check_sizes(name: str, sizes: Any) -> tuple[int, ...]:
    """``sizes`` as a tuple, if it is a sequence of positive integers."""
    is_valid = isinstance(sizes, Sequence) and all(
        isinstance(size, int) and 0 < size <= _MAX_SIZE for size in sizes
    )
    if not is_valid:
        raise ValueError(
            f"{name}: expected a sequence of positive integers such as (64, 64), at "
            f"most {_MAX_SIZE:,}, got {sizes!r}"
        )
    return tuple(sizes)
