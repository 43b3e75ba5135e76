"""Evaluating layers at as little cost as there can be: small networks in numpy.

Parameters, gradients, outputs and losses are float32 always. What is large, the matrix
products of hidden layers, can be done in bfloat16, twice as fast or more on processors
with units for it. Micikevicius et al. 2018, "Mixed Precision Training".

A call of torch takes three times as long as one of numpy, and the layers of a small
network that is asked about a few observations are little more than their calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

_dtype = torch.float32
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


class LinearMap(nn.Module):
    """A layer whose own gradient does not need its output, such as a linear one."""


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


# In numpy, for acting on a CPU

# With more rows, or products of numbers in a layer, torch is as fast.
_MAX_ROWS = 64
_MAX_PRODUCTS = 2**18

_ZERO = np.zeros((), np.float32)  # faster than a number of Python


def _relu(x: np.ndarray) -> None:
    np.maximum(x, _ZERO, out=x)


def _tanh(x: np.ndarray) -> None:
    np.tanh(x, out=x)


_NUMPY_IN_PLACE: dict[type[nn.Module], Callable[[np.ndarray], None]] = {
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
}


class NumpyChain:
    """Linear layers and activations, one after the other, on the parameters' memory.

    The results are those of torch but for rounding. Where they are not wanted (with
    gradient, in large batches, on a GPU, in a graph that is compiled or exported) or
    cannot be had (other layers than ``nn.Linear``, ReLU and tanh), there are none.

    Args:
        layers: parts of the network that asks; None if it is no such chain.
    """

    def __init__(self, layers: Iterable[nn.Module] | None) -> None:
        self._layers = _as_steps([] if layers is None else list(layers))
        self._arrays: list[_Arrays] = []
        self._max_rows = 0

    def __call__(self, x: Tensor) -> Tensor | None:
        """[B, input_size] → [B, output_size]; None: ask torch."""
        if torch.is_grad_enabled() or not self._layers or _is_traced():
            return None
        for (layer, _), arrays in zip(self._layers, self._arrays, strict=False):
            if arrays.addresses != _addresses(layer):
                self._arrays = []  # the parameters have moved
                break
        if not self._arrays:
            self._find_arrays()
        shape = x.shape
        if len(shape) != 2 or shape[0] > self._max_rows or x.dtype != torch.float32:
            return None
        if x.requires_grad or not x.is_cpu or not is_full_precision():
            return None
        values = x.numpy()
        with np.errstate(all="ignore"):  # torch does not warn either
            for weight, bias, activate, _ in self._arrays:
                values = values.dot(weight)
                if bias is not None:
                    values += bias
                if activate is not None:
                    activate(values)
        return torch.from_numpy(values)

    def _find_arrays(self) -> None:
        """Where the parameters are now."""
        weights = [layer.weight for layer, _ in self._layers]
        self._max_rows = 0
        if all(w.is_cpu and w.dtype == torch.float32 for w in weights):
            largest = max(weight.numel() for weight in weights)
            self._max_rows = min(_MAX_PRODUCTS // largest, _MAX_ROWS)
        if self._max_rows:
            self._arrays = [_Arrays.of_layer(*step) for step in self._layers]

    def __getstate__(self) -> dict[str, Any]:
        # A copy has layers of its own in other memory.
        return {**vars(self), "_arrays": []}


class _Arrays(NamedTuple):
    """The memory of one layer."""

    weight: np.ndarray  # [in, out]
    bias: np.ndarray | None  # [out]
    activate: Callable[[np.ndarray], None] | None
    addresses: tuple[int, int]

    @classmethod
    def of_layer(cls, layer: nn.Linear, activate: Any) -> _Arrays:
        weight, bias = layer.weight, layer.bias
        return cls(
            weight.detach().numpy().T,
            None if bias is None else bias.detach().numpy(),
            activate,
            _addresses(layer),
        )


def _addresses(layer: nn.Linear) -> tuple[int, int]:
    """Of weight and bias. What arrays are made of is kept, so none is used twice."""
    parameters: dict[str, Any] = layer._parameters  # not by attribute, as above
    bias = parameters["bias"]
    return parameters["weight"].data_ptr(), 0 if bias is None else bias.data_ptr()


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _as_steps(layers: list[nn.Module]) -> list[tuple[nn.Linear, Any]]:
    """Each linear layer with its activation, or None; empty if there are others."""
    steps: list[tuple[nn.Linear, Any]] = []
    for layer in layers:
        if type(layer) is nn.Linear:
            steps.append((layer, None))
        elif type(layer) in _NUMPY_IN_PLACE and steps and steps[-1][1] is None:
            steps[-1] = steps[-1][0], _NUMPY_IN_PLACE[type(layer)]
        else:
            return []
    return steps
