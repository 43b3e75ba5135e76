"""How the weights of layers start; orthogonal ones, if nothing else is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.errors import did_you_mean
from alf_lite.utils.checks import check_choice, check_positive
from alf_lite.utils.free_memory import check_ram

# A name, or what fills weights [outputs, inputs, …] in place.
Initializer = str | Callable[[Tensor], Any]

HIDDEN_GAIN = math.sqrt(2.0)

_BYTES_PER_PARAMETER = 16  # itself, its gradient and two moments of Adam
_SMALL = 1_000_000

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)

Fan = Literal["fan_in", "fan_out", "fan_avg"]
RandomWeights = Literal["uniform", "normal", "truncated_normal"]
# The deviation of a standard normal variable cut off at ± 2
_STD_OF_TRUNCATED = 0.87962566103423978


@configurable
class Orthogonal:
    """Orthogonal rows or columns, whichever are fewer, times ``gain``.

    Saxe et al. 2014, arXiv:1312.6120.
    """

    def __init__(self, gain: float = 1.0) -> None:
        self._gain = gain

    def __call__(self, weight: Tensor) -> None:
        nn.init.orthogonal_(weight, self._gain)


@configurable
class VarianceScaling:
    """Independent weights with mean 0 and variance ``scale`` / fan.

    Args:
        scale: 1 for linear units, 2 for those with ReLU (He et al. 2015).
        mode: the fan: "fan_in", the inputs of a unit, "fan_out", the units that an
            input goes to, or "fan_avg", the mean of both (Glorot and Bengio 2010).
        distribution: "uniform", "normal" or "truncated_normal", cut off at two
            deviations.
        bias: draw biases, too, within ± 1 / √inputs, as torch's own layers do.
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: Fan = "fan_in",
        distribution: RandomWeights = "uniform",
        *,
        bias: bool = False,
    ) -> None:
        check_positive(scale=scale)
        check_choice(Fan, mode=mode)
        check_choice(RandomWeights, distribution=distribution)
        self._scale = scale
        self._mode = mode
        self._distribution = distribution
        self.bias = bias

    def __call__(self, weight: Tensor) -> None:
        kernel = weight[0, 0].numel()
        fan_in, fan_out = weight.shape[1] * kernel, weight.shape[0] * kernel
        fan = {
            "fan_in": fan_in,
            "fan_out": fan_out,
            "fan_avg": (fan_in + fan_out) / 2,
        }[self._mode]
        std = math.sqrt(self._scale / fan)
        if self._distribution == "uniform":
            bound = math.sqrt(3) * std
            nn.init.uniform_(weight, -bound, bound)
        elif self._distribution == "normal":
            nn.init.normal_(weight, std=std)
        else:
            std /= _STD_OF_TRUNCATED
            nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


_INITIALIZERS: dict[str, Callable[[Tensor], Any]] = {
    "glorot_normal": VarianceScaling(1.0, "fan_avg", "truncated_normal"),
    "glorot_uniform": VarianceScaling(1.0, "fan_avg", "uniform"),
    "he_normal": VarianceScaling(2.0, "fan_in", "truncated_normal"),
    "he_uniform": VarianceScaling(2.0, "fan_in", "uniform"),
    "lecun_normal": VarianceScaling(1.0, "fan_in", "truncated_normal"),
    "lecun_uniform": VarianceScaling(1.0, "fan_in", "uniform"),
    "orthogonal": Orthogonal(),
    "torch": VarianceScaling(1 / 3),  # of nn.Linear and nn.Conv2d
    "torch_with_bias": VarianceScaling(1 / 3, bias=True),
    "zeros": nn.init.zeros_,
}


def make_initializer(initializer: Initializer) -> Callable[[Tensor], Any]:
    """What fills a weight, from its name.

    Raises:
        ValueError: if there is none of this name.
        TypeError: if it is neither a name nor callable.
    """
    if isinstance(initializer, str):
        if initializer not in _INITIALIZERS:
            raise ValueError(
                f"initializer: no initializer {initializer!r}, expected one of "
                f"{sorted(_INITIALIZERS)} or a callable."
                f"{did_you_mean(initializer, _INITIALIZERS)}"
            )
        return _INITIALIZERS[initializer]
    if callable(initializer) and not isinstance(initializer, type):
        return initializer
    raise TypeError(
        "initializer: expected a name, or a function of a weight such as "
        f"VarianceScaling(2.0), got {initializer!r}"
    )


def initialized(
    layer: _Layer, gain: float = HIDDEN_GAIN, initializer: Initializer | None = None
) -> _Layer:
    """``layer`` itself with new weights, and zero bias unless the initializer has one.

    Args:
        layer: linear or a convolution.
        gain: of orthogonal weights.
        initializer: in place of these.
    """
    if initializer is None:
        nn.init.orthogonal_(layer.weight, gain)
    else:
        make_initializer(initializer)(layer.weight.data)
    if layer.bias is not None:
        fill_bias(layer.bias, layer.weight[0].numel(), initializer)
    return layer


def fill_bias(bias: Tensor, fan_in: int, initializer: Initializer | None) -> None:
    """Fills biases in place: zeros, if the initializer is not one of biases, too.

    Args:
        bias: of any shape.
        fan_in: inputs of a unit.
        initializer: of the weights.
    """
    nn.init.zeros_(bias)
    fill = None if initializer is None else make_initializer(initializer)
    if getattr(fill, "bias", False):
        bound = 1 / math.sqrt(fan_in)
        nn.init.uniform_(bias, -bound, bound)


def initialize_members(
    weight: Tensor, gain: float, initializer: Initializer | None
) -> None:
    """Fills weights [n, inputs, outputs] of an ensemble, each member on its own."""
    if initializer is None:
        for member in weight:
            nn.init.orthogonal_(member, gain)
        return
    fill = make_initializer(initializer)
    for member in weight.data:
        # Contiguous, as those of a layer are, which some initializers need
        transposed = torch.empty_like(member.mT, memory_format=torch.contiguous_format)
        fill(transposed)
        member.copy_(transposed.mT)


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
