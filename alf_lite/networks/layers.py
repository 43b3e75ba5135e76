"""Layers as the networks want them, and what can be added to them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

from torch import Tensor, nn

from alf_lite.errors import did_you_mean
from alf_lite.networks.batch_norm import make_batch_norm
from alf_lite.networks.bodies import Body, make_body
from alf_lite.networks.initializers import (
    HIDDEN_GAIN,
    Initializer,
    check_parameters,
    initialized,
)
from alf_lite.networks.lean_layers import HiddenSequential
from alf_lite.networks.noisy_layers import NoisyLinear
from alf_lite.utils.checks import check_left_out

# A name, a module (copied for every use), a module class, or a function of a tensor.
Activation = str | nn.Module | type[nn.Module] | Callable[[Tensor], Tensor]

_MAX_SIZE = 1_000_000  # of a layer

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
            raise ValueError(
                f"activation: no activation {activation!r}, expected one of "
                f"{sorted(_ACTIVATIONS)} or a callable."
                f"{did_you_mean(activation, _ACTIVATIONS)}"
            )
        return _ACTIVATIONS[activation]()
    if isinstance(activation, nn.Module):
        return copy.deepcopy(activation)
    if isinstance(activation, type) and issubclass(activation, nn.Module):
        return activation()
    if callable(activation):
        return _FunctionActivation(cast(Callable[[Tensor], Tensor], activation))
    raise TypeError(f"activation: expected a name or a callable, got {activation!r}")


def linear(
    input_size: int,
    output_size: int,
    gain: float = HIDDEN_GAIN,
    initializer: Initializer | None = None,
) -> nn.Linear:
    """A linear layer with orthogonal weights times ``gain`` and zero bias by default.

    Args:
        input_size: number of input features.
        output_size: number of outputs.
        gain: of orthogonal weights.
        initializer: in place of these, see :func:`make_initializer`.
    """
    check_parameters(
        f"a layer of {input_size} x {output_size}", input_size, output_size
    )
    return initialized(nn.Linear(input_size, output_size), gain, initializer)


def mlp(
    input_size: int,
    layer_sizes: Sequence[int],
    activation: Activation,
    layer_norm: bool = False,
    *,
    batch_norm: bool | Callable[..., nn.Module] = False,
    dropout: float = 0.0,
    noise_std: float = 0.0,
    initializer: Initializer | None = None,
    body: str | Body | None = None,
) -> nn.Sequential:
    """Linear layers, each followed by the activation; the identity if there are none.

    Args:
        input_size: number of input features.
        layer_sizes: number of outputs of each layer.
        activation: see :func:`make_activation`.
        layer_norm: normalize the layers before their activation.
        batch_norm: normalize the input and what comes out of each activation, see
            :class:`BatchNorm`; or what builds such a layer, of a number of features.
        dropout: share of the units that are left out in training.
        noise_std: σ₀ of noise in the weights, see :class:`NoisyLinear`; 0: none.
        initializer: of the weights, see :func:`make_initializer`; None: orthogonal.
        body: in place of all that, see :mod:`~alf_lite.networks.bodies`.
    """
    if body is not None and layer_sizes:
        check_body_alone(layer_norm, batch_norm, dropout, noise_std, initializer)
        return HiddenSequential(*make_body(body, input_size, layer_sizes, None))
    sizes = [input_size, *check_sizes("fc_layer_params", layer_sizes)]
    if noise_std and initializer is not None:
        raise ValueError(
            "initializer: noisy layers start as their paper says, leave one of "
            "initializer and noise_std out"
        )
    layers = make_batch_norm(batch_norm, input_size) if layer_sizes else []
    for size, next_size in pairwise(sizes):
        if noise_std:
            layers.append(NoisyLinear(size, next_size, noise_std))
        else:
            layers.append(linear(size, next_size, initializer=initializer))
        layers += make_dropout(dropout)
        if layer_norm:
            layers.append(nn.LayerNorm(next_size))
        layers.append(make_activation(activation))
        layers += make_batch_norm(batch_norm, next_size)
    return HiddenSequential(*layers)


def check_body_alone(
    layer_norm: bool,
    batch_norm: object,
    dropout: float,
    noise_std: float,
    initializer: Initializer | None,
) -> None:
    """Refuses what a body, which has its own layers, would ignore."""
    check_left_out(
        "a body has its own layers (where an algorithm sets it for a network of its "
        "own: bind body to the others, not to EncodingNetwork, or, of PQN and CrossQ, "
        "name QNetwork or CriticNetwork in its place)",
        layer_norm=layer_norm or None,
        batch_norm=batch_norm or None,
        dropout=dropout or None,
        noise_std=noise_std or None,
        initializer=initializer,
    )


def make_dropout(share: float) -> list[nn.Module]:
    """The layer in a list, which is empty if nothing is left out."""
    if not 0 <= share < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {share}")
    return [nn.Dropout(share)] if share else []


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
