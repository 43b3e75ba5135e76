"""Small networks evaluated in numpy, for acting on a CPU.

A call of torch takes three times as long as one of numpy, and the layers of a small
network that is asked about a few observations are little more than their calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite.networks.layers import is_full_precision

# With more rows, or products of numbers in a layer, torch is as fast.
_MAX_ROWS = 64
_MAX_PRODUCTS = 2**18

_ZERO = np.zeros((), np.float32)  # faster than a number of Python


def _relu(x: np.ndarray) -> None:
    np.maximum(x, _ZERO, out=x)


def _tanh(x: np.ndarray) -> None:
    np.tanh(x, out=x)


_IN_PLACE: dict[type[nn.Module], Callable[[np.ndarray], None]] = {
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
            parameter = layer._parameters["weight"]
            if parameter is not arrays.of or parameter.data_ptr() != arrays.address:
                self._arrays = []  # the parameters have moved
                break
        if not self._arrays:
            self._find_arrays()
        shape = x.shape
        if len(shape) != 2 or shape[0] > self._max_rows or x.dtype != torch.float32:
            return None
        if not is_full_precision():
            return None
        values = x.numpy()
        with np.errstate(all="ignore"):  # torch does not warn either
            for weight, bias, activate, _, _ in self._arrays:
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
    of: Tensor
    address: int

    @classmethod
    def of_layer(cls, layer: nn.Linear, activate: Any) -> _Arrays:
        weight, bias = layer.weight, layer.bias
        return cls(
            weight.detach().numpy().T,
            None if bias is None else bias.detach().numpy(),
            activate,
            weight,
            weight.data_ptr(),
        )


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _as_steps(layers: list[nn.Module]) -> list[tuple[nn.Linear, Any]]:
    """Each linear layer with its activation, or None; empty if there are others."""
    steps: list[tuple[nn.Linear, Any]] = []
    for layer in layers:
        if type(layer) is nn.Linear:
            steps.append((layer, None))
        elif type(layer) in _IN_PLACE and steps and steps[-1][1] is None:
            steps[-1] = steps[-1][0], _IN_PLACE[type(layer)]
        else:
            return []
    return steps
