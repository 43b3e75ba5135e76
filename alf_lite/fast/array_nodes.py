"""What layers do to arrays [B, n], there and back: the nodes that networks consist of.

A node is made of a layer, on the memory of its parameters. Products and what is done to
each number are numpy's: of a small batch, a call of it takes a fifth of one of torch,
and tanh of a large one a seventh of the time. Where one call of torch is faster than
the calls that numpy needs (layer normalization, erf, ReLU of many numbers), it works on
the memory of the arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Holds something by a name, and the name
Place = tuple[dict[str, Any], str]
# Of the input, and of each parameter, if it is needed
Gradients = list[Any]

_ZERO = np.zeros((), np.float32)  # faster than a number of Python
_ONE = np.ones((), np.float32)
_HALF = np.float32(0.5)
_MANY = 2**13  # from so many numbers on, a call of torch is faster than one of numpy
# Overloads: to find the one that is meant takes longer than small arrays do
_aten = torch.ops.aten
_relu_backward = _aten.threshold_backward.grad_input
_norm_backward = _aten.native_layer_norm_backward.default
_elu_backward = _aten.elu_backward.default
_gelu_backward = _aten.gelu_backward.default
_leaky_backward = _aten.leaky_relu_backward.default


@functools.lru_cache(maxsize=16)
def _ones(size: int) -> np.ndarray:
    """That nobody writes to."""
    return np.ones(size, np.float32)


class ArrayNode:
    """One step from x [B, n] to y [B, m]; its arrays are float32."""

    parameters: tuple[Place, ...] = ()
    # Of a chain that begins with it: from so many rows on, torch multiplies
    min_rows_of_torch = 2**62

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        """What comes out, and what :meth:`pull_back` wants."""
        raise NotImplementedError

    def forward_many(self, x: Tensor, keeps: bool) -> tuple[Tensor, Any]:
        """As ``forward``, of so many rows that torch multiplies them."""
        y, kept = self.forward(x.numpy())
        return torch.from_numpy(y), kept

    def pull_back(
        self, gradient: np.ndarray, kept: Any, needs: Sequence[bool]
    ) -> Gradients:
        """From that of y [B, m]: that of x, an array, and of parameters, tensors.

        Args:
            gradient: of y; an activation, which is not the last node, overwrites it.
            kept: from ``forward``.
            needs: of x, and of each parameter.
        """
        raise NotImplementedError

    def in_torch(self, x: Tensor, parameters: Iterator[Tensor | None]) -> Tensor:
        """As ``forward``, with a graph."""
        raise NotImplementedError


class Linear(ArrayNode):
    """y = x Wᵀ + b."""

    def __init__(self, layer: nn.Linear) -> None:
        own: dict[str, Any] = layer._parameters
        self.parameters = (own, "weight"), (own, "bias")
        weight, bias = own["weight"].detach(), own["bias"]
        self._of_torch = weight, None if bias is None else bias.detach()
        self._weight = weight.numpy().T  # [in, out]
        # [1, out]: of one row, nothing is broadcast
        self._bias = None if bias is None else bias.detach().numpy()[None]

    def forward_many(self, x: Tensor, keeps: bool) -> tuple[Tensor, Any]:
        # Adds the bias within the product
        y = F.linear(x, *self._of_torch)
        return y, x.numpy() if keeps else None

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = x.dot(self._weight)
        if self._bias is not None:
            np.add(y, self._bias, out=y)
        return y, x

    def pull_back(
        self, gradient: np.ndarray, kept: np.ndarray, needs: Sequence[bool]
    ) -> Gradients:
        found: Gradients = [None, None, None]
        if needs[0]:
            found[0] = gradient.dot(self._weight.T)
        if needs[1]:
            found[1] = torch.from_numpy(gradient.T.dot(kept))
        if needs[2]:  # faster than a sum
            found[2] = torch.from_numpy(_ones(gradient.shape[0]).dot(gradient))
        return found

    def in_torch(self, x: Tensor, parameters: Iterator[Any]) -> Tensor:
        return F.linear(x, next(parameters), next(parameters))


class LayerNorm(ArrayNode):
    """(x − mean) / deviation, of each row, times a gain, plus a bias."""

    def __init__(self, layer: nn.LayerNorm) -> None:
        own: dict[str, Any] = layer._parameters
        self.parameters = (own, "weight"), (own, "bias")
        self._own, self._layer = own, layer

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        values, shape = torch.from_numpy(x), self._layer.normalized_shape
        weight, bias = self._own["weight"], self._own["bias"]
        y, mean, inverse = torch.native_layer_norm(
            values, shape, weight, bias, self._layer.eps
        )
        return y.detach().numpy(), (values, shape, mean, inverse, weight, bias)

    def pull_back(
        self, gradient: np.ndarray, kept: Any, needs: Sequence[bool]
    ) -> Gradients:
        to_x, *found = _norm_backward(torch.from_numpy(gradient), *kept, needs)
        return [None if to_x is None else to_x.numpy(), *found]

    def in_torch(self, x: Tensor, parameters: Iterator[Any]) -> Tensor:
        own = self._layer
        weight, bias = next(parameters), next(parameters)
        return F.layer_norm(x, own.normalized_shape, weight, bias, own.eps)


class Activation(ArrayNode):
    """The same function of every number.

    It is numpy's if there is a subclass, and torch's for settings that this does not
    know; keeps x as a tensor then.
    """

    # Whether y, which overwrites x, is all that the gradient needs
    keeps_output = False

    def __init__(self, layer: nn.Module) -> None:
        self._layer: Any = layer

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        values = torch.from_numpy(x)
        return self._layer.forward(values.clone()).numpy(), values

    def pull_back(
        self, gradient: np.ndarray, kept: Any, needs: Sequence[bool]
    ) -> Gradients:
        if isinstance(kept, Tensor):
            differentiate = _BACKWARD[type(self._layer)]
            values = torch.from_numpy(gradient)
            return [differentiate(self._layer, values, kept).numpy()]
        gradient *= self.slope(kept)
        return [gradient]

    def pull_back_many(self, gradient: Tensor, y: Tensor) -> None:
        """Overwrites the gradient, if y is all that is kept."""
        self.pull_back(gradient.numpy(), y.numpy(), ())

    def slope(self, kept: Any) -> np.ndarray:
        """The derivative; from y, of those that overwrite x."""
        raise NotImplementedError

    def in_torch(self, x: Tensor, parameters: Iterator[Any]) -> Tensor:
        return self._layer.forward(x)


# Of the layer, the gradient of y, and x
_BACKWARD: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.ELU: lambda own, g, x: _elu_backward(g, own.alpha, 1, 1, False, x),
    nn.GELU: lambda own, g, x: _gelu_backward(g, x, approximate=own.approximate),
    nn.LeakyReLU: lambda own, g, x: _leaky_backward(g, x, own.negative_slope, False),
}


class Relu(Activation):
    """max(x, 0)."""

    keeps_output = True

    def forward_many(self, x: Tensor, keeps: bool) -> tuple[Tensor, Any]:
        torch.relu_(x)
        return x, x.numpy() if keeps else None

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        if x.size < _MANY:
            np.maximum(x, _ZERO, out=x)
        else:
            torch.relu_(torch.from_numpy(x))
        return x, x

    def pull_back(
        self, gradient: np.ndarray, kept: np.ndarray, needs: Sequence[bool]
    ) -> Gradients:
        if kept.size < _MANY:
            np.multiply(gradient, kept > _ZERO, out=gradient)
        else:
            self.pull_back_many(torch.from_numpy(gradient), torch.from_numpy(kept))
        return [gradient]

    def pull_back_many(self, gradient: Tensor, y: Tensor) -> None:
        _relu_backward(gradient, y, 0, grad_input=gradient)


class Tanh(Activation):
    """tanh x."""

    keeps_output = True

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        np.tanh(x, out=x)
        return x, x

    def slope(self, kept: np.ndarray) -> np.ndarray:
        slope = kept * kept
        return np.subtract(_ONE, slope, out=slope)


class Elu(Activation):
    """exp(x) − 1, if it is less than x."""

    @property
    def keeps_output(self) -> bool:  # type: ignore[override]
        return self._layer.alpha == 1.0

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        if not self.keeps_output:
            return super().forward(x)
        if x.size >= _MANY:
            F.elu_(torch.from_numpy(x))
            return x, x
        negative = np.minimum(x, _ZERO)
        np.expm1(negative, out=negative)
        return np.maximum(x, negative, out=x), x

    def slope(self, kept: np.ndarray) -> np.ndarray:
        slope = np.minimum(kept, _ZERO)
        slope += _ONE
        return slope


class LeakyRelu(Activation):
    """max(x, c x)."""

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        if not 0.0 < self._layer.negative_slope <= 1.0:
            return super().forward(x)
        slope = np.float32(self._layer.negative_slope)
        return np.maximum(x, x * slope, out=x), (x, slope)

    def slope(self, kept: Any) -> np.ndarray:
        y, slope = kept
        return np.maximum(y > _ZERO, slope, dtype=np.float32)


class Silu(Activation):
    """x σ(x)."""

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        gate = np.negative(x)
        np.exp(gate, out=gate)
        gate += _ONE
        np.divide(_ONE, gate, out=gate)
        x *= gate
        return x, (gate, x)

    def slope(self, kept: Any) -> np.ndarray:
        gate, y = kept
        slope = _ONE - gate  # σ' = σ (1 − σ)
        slope *= y
        slope += gate
        return slope


class Gelu(Activation):
    """x Φ(x)."""

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        if self._layer.approximate != "none":
            return super().forward(x)
        share = x * np.float32(math.sqrt(0.5))
        torch.erf_(torch.from_numpy(share))
        share += _ONE
        share *= _HALF
        return x * share, (share, x)

    def slope(self, kept: Any) -> np.ndarray:
        share, x = kept
        slope = x * x
        slope *= -_HALF
        np.exp(slope, out=slope)
        slope *= x
        slope *= np.float32(1 / math.sqrt(2 * math.pi))
        slope += share
        return slope


class Dueling(ArrayNode):
    """A − mean A + V, of two chains of nodes with the same input.

    Args:
        advantage: to A [B, C·A·N].
        value: to V [B, N].
        network: a QNetwork.
    """

    def __init__(
        self, advantage: list[ArrayNode], value: list[ArrayNode], network: Any
    ) -> None:
        self._advantage, self._value, self._network = advantage, value, network
        self._num_own = sum(len(node.parameters) for node in advantage)
        for node in (*advantage, *value):
            self.parameters += node.parameters
        size, num_values, num_outputs = self._shape = network._shape  # C, A, N
        one = np.eye(size * num_outputs, dtype=np.float32)
        apart = one.reshape(size, 1, num_outputs, -1)
        weights = network._mean_weights.numpy()[..., None]  # [C, A, 1, 1]
        # [C·A·N, C·N] both
        self._to_mean = (weights * apart).reshape(-1, size * num_outputs)
        self._to_sum = np.repeat(apart, num_values, 1).reshape(self._to_mean.shape)

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        kept: tuple[list[Any], list[Any]] = [], []
        y = run(self._advantage, x, kept[0])
        value = run(self._value, x, kept[1])
        size, num_values, num_outputs = self._shape
        mean = y.dot(self._to_mean)
        rows = y.reshape(-1, size, num_values, num_outputs)
        rows -= mean.reshape(-1, size, 1, num_outputs)
        rows += value.reshape(-1, 1, 1, num_outputs)
        return y, kept

    def pull_back(
        self, gradient: np.ndarray, kept: Any, needs: Sequence[bool]
    ) -> Gradients:
        total = gradient.dot(self._to_sum)
        to_value = total
        if self._shape[0] > 1:
            to_value = total.reshape(-1, self._shape[0], self._shape[2]).sum(1)
        to_advantage = gradient - total.dot(self._to_mean.T)
        end = 1 + self._num_own
        first, *own = pull_back(self._advantage, kept[0], to_advantage, needs[:end])
        of_value = needs[0], *needs[end:]
        second, *others = pull_back(self._value, kept[1], to_value, of_value)
        if needs[0]:
            first += second
        return [first, *own, *others]

    def in_torch(self, x: Tensor, parameters: Iterator[Any]) -> Tensor:
        streams = [in_torch(n, x, parameters) for n in (self._advantage, self._value)]
        return self._network.combined(*streams).flatten(1)


NODES: dict[type[nn.Module], type[Any]] = {
    nn.ELU: Elu,
    nn.GELU: Gelu,
    nn.LayerNorm: LayerNorm,
    nn.LeakyReLU: LeakyRelu,
    nn.Linear: Linear,
    nn.ReLU: Relu,
    nn.SiLU: Silu,
    nn.Tanh: Tanh,
}


def run(
    nodes: Sequence[ArrayNode], x: np.ndarray, kept: list[Any] | None = None
) -> np.ndarray:
    """What nodes, one after the other, make of x [B, n].

    Puts into ``kept`` what :func:`pull_back` wants of each.
    """
    if x.shape[0] < nodes[0].min_rows_of_torch:
        for node in nodes:
            x, own = node.forward(x)
            if kept is not None:
                kept.append(own)
        return x
    many, keeps = torch.from_numpy(x), kept is not None
    for node in nodes:
        many, own = node.forward_many(many, keeps)
        if kept is not None:
            kept.append(own)
    return many.numpy()


def pull_back(
    nodes: Sequence[ArrayNode],
    kept: Sequence[Any],
    gradient: np.ndarray,
    needs: Sequence[bool],
) -> Gradients:
    """From the gradient of the output: those of x, an array, and of all parameters.

    Args:
        nodes: in their order.
        kept: of each, from :func:`run`.
        gradient: [B, m].
        needs: of x, and of the parameters of all nodes.
    """
    found: Gradients = [None] * len(needs)
    if True not in needs:
        return found
    first, end = needs.index(True), len(needs)
    for node, own in zip(reversed(nodes), reversed(kept), strict=True):
        begin = end - len(node.parameters)
        is_needed = first < begin  # something before it is
        gradient, *found[begin:end] = node.pull_back(
            gradient, own, (is_needed, *needs[begin:end])
        )
        if not is_needed:
            return found
        end = begin
    found[0] = gradient
    return found


def in_torch(
    nodes: Sequence[ArrayNode], x: Tensor, parameters: Iterator[Tensor | None]
) -> Tensor:
    """As :func:`run`, with a graph."""
    for node in nodes:
        x = node.in_torch(x, parameters)
    return x
