"""Ensembles of linear layers in numpy, as one node of the graph.

Large ones do not fit into the caches of a processor: what torch keeps and copies for
each node of its graph takes a fifth of the time of ten critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite.fast import Computation, Node, may_use_numpy
from alf_lite.networks import lean_layers
from alf_lite.networks.critic_networks import ParallelMLP
from alf_lite.networks.parallel_layers import ParallelLinear
from alf_lite.utils.threads import is_single_threaded

# Numbers that a layer of an ensemble makes, from which on it is worth it.
_MIN_OUTPUTS = 2**17
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


def values(network: ParallelMLP, x: Tensor, more: Tensor | None = None) -> Tensor:
    """See :meth:`ParallelMLP.values`.

    The results and gradients are those of torch but for rounding. There are none where
    :class:`~alf_lite.fast.chains.NumpyChain` would give none, in several threads, and
    of small batches and layers, where torch is as fast.
    """
    chain = network.__dict__.get("_chain") or _chain_of(network)
    if (
        x.ndim != 2
        or not may_use_numpy(x)
        or not (more is None or may_use_numpy(more))
        or len(x) * chain.num_outputs < _MIN_OUTPUTS
        or network.is_only_first
        or lean_layers.current_dtype is not torch.float32
        or torch.is_autocast_enabled("cpu")
    ):
        return NotImplemented
    parameters = chain.parameters()
    if parameters is None:
        return NotImplemented
    return Node.apply(_Pass(chain.is_relu), x, more, *parameters)


class _Chain(NamedTuple):
    """Parallel layers with ReLU or tanh between them, the last one linear."""

    layers: list[ParallelLinear]
    is_relu: list[bool]  # or tanh, after each but the last
    built: lean_layers.BuiltLayers
    num_outputs: int  # of the first one, per row; 0: torch shall compute

    def parameters(self) -> list[Tensor] | None:
        """Weight and bias of each, if they still are what the network was built of."""
        if not self.built.are_untouched():
            return None
        found: list[Any] = []
        for layer in self.layers:
            own = layer._parameters
            if type(layer) is not ParallelLinear or len(own) != 2:
                return None  # they are made of others at every call
            found += own["weight"], own["bias"]
        is_float32 = found[0].is_cpu and found[0].dtype is torch.float32
        return found if is_float32 else None


def _chain_of(network: ParallelMLP) -> _Chain:
    all_layers: list[Any] = [*network._hidden_layers, network._output_layer]
    layers, activations = all_layers[::2], all_layers[1::2]
    is_known = all(type(layer) is ParallelLinear for layer in layers) and all(
        type(activation) in (nn.ReLU, nn.Tanh) for activation in activations
    )
    num_outputs = 0
    if is_known and is_single_threaded():
        num_outputs = layers[0].num_members * layers[0].weight.shape[2]
    is_relu = [type(activation) is nn.ReLU for activation in activations]
    chain = _Chain(layers, is_relu, network._built, num_outputs)
    network.__dict__["_chain"] = chain
    return chain


class _Pass(Computation):
    """Of x, ``more``, and weight and bias of each layer, there and back.

    Products are numpy's; what is done to each number is faster in torch.
    """

    def __init__(self, is_relu: list[bool]) -> None:
        self._is_relu = is_relu
        self._inputs: list[np.ndarray] = []  # of each layer
        self._saved: tuple[Any, ...]

    def forward(self, x: Tensor, more: Tensor | None, *parameters: Tensor) -> Tensor:
        """[B, F] and [B, input_size − F] → [B, n, output_size]."""
        self._saved = x, more, *parameters
        joint = x if more is None else torch.cat([x, more], dim=-1)
        values = joint.detach().numpy()
        for weight, bias, is_relu in zip_longest(
            parameters[::2], parameters[1::2], self._is_relu
        ):
            self._inputs.append(values)
            values = np.matmul(values, weight.detach().numpy())
            outputs = torch.from_numpy(values)
            outputs.add_(bias)
            if is_relu:
                torch.relu_(outputs)
            elif is_relu is not None:
                np.tanh(values, out=values)
        return outputs.transpose(0, 1)

    def backward(self, needs: Sequence[bool], gradient: Tensor) -> list[Tensor | None]:
        gradient = gradient.transpose(0, 1).contiguous()
        found: list[Tensor | None] = [None] * len(self._saved)
        last = needs.index(True)  # where nothing before needs a gradient
        for i in range(len(self._inputs) - 1, -1, -1):
            inputs, values, at = self._inputs[i], gradient.numpy(), 2 + 2 * i
            if needs[at]:
                found[at] = torch.from_numpy(np.matmul(inputs.mT, values))
            if needs[at + 1]:
                found[at + 1] = gradient.sum(1, keepdim=True)
            if last >= at:
                return found
            if i == 0:
                break
            weight = self._saved[at].detach()
            if weight.shape[2] == 1:
                gradient = gradient * weight.mT
            else:
                gradient = torch.from_numpy(np.matmul(values, weight.numpy().mT))
            outputs = torch.from_numpy(inputs)
            if self._is_relu[i - 1]:
                _threshold_backward(gradient, outputs, 0, grad_input=gradient)
            else:
                gradient *= 1 - outputs * outputs
        size = self._saved[0].shape[1]
        weight = self._saved[2].detach().numpy()
        for k, columns in enumerate((slice(size), slice(size, None))):
            if needs[k]:
                product = np.matmul(gradient.numpy(), weight[:, columns].mT)
                found[k] = torch.from_numpy(product.sum(0))
        return found

    def in_torch(self, x: Tensor, more: Tensor | None, *parameters: Tensor) -> Tensor:
        values = x if more is None else torch.cat([x, more], dim=-1)
        values = values.expand(len(parameters[0]), *values.shape)
        for weight, bias, is_relu in zip_longest(
            parameters[::2], parameters[1::2], self._is_relu
        ):
            values = torch.baddbmm(bias, values, weight)
            if is_relu is not None:
                values = values.relu() if is_relu else values.tanh()
        return values.transpose(0, 1)
