"""Ensembles of linear layers in numpy, as one node of the graph.

Large ones do not fit into the caches of a processor: what torch keeps and copies for
each node of its graph takes a fifth of the time of ten critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite.fast import may_use_numpy
from alf_lite.fast.nodes import Backward, node
from alf_lite.networks.built_layers import BuiltLayers, has_own_parameters
from alf_lite.networks.critic_networks import ParallelMLP
from alf_lite.networks.lean_layers import is_full_precision
from alf_lite.networks.parallel_layers import ParallelLinear
from alf_lite.utils.threads import is_single_threaded

# Numbers that a layer of an ensemble makes, from which on it is worth it.
_MIN_OUTPUTS = 2**17
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


def values(network: ParallelMLP, x: Tensor, more: Tensor | None = None) -> Tensor:
    """See :meth:`ParallelMLP.values`."""
    if network.is_only_first:
        return NotImplemented
    chain = network.__dict__.get("_chain")
    if chain is None:
        layers = [*network._hidden_layers, network._output_layer]
        chain = network.__dict__["_chain"] = ParallelChain(layers, network._built)
    outputs = chain(x, more)
    return NotImplemented if outputs is None else outputs


class ParallelChain:
    """Parallel layers with ReLU or tanh between them, the last one linear.

    The results and gradients are those of torch but for rounding. There are none where
    :class:`~alf_lite.fast.chains.NumpyChain` would give none, in several threads, and
    of small batches and layers, where torch is as fast.

    Args:
        layers: of the ensemble. Where one has another kind, torch computes.
        built: the same layers, as the network has been built with them.
    """

    def __init__(self, layers: Sequence[nn.Module], built: BuiltLayers) -> None:
        self._built = built
        self._layers: list[ParallelLinear] = []
        self._is_relu: list[bool] = []  # or tanh, after each but the last
        for linear, activation in zip_longest(layers[::2], layers[1::2]):
            is_last = activation is None
            if type(linear) is not ParallelLinear or not (
                is_last or type(activation) in (nn.ReLU, nn.Tanh)
            ):
                self._layers = []
                break
            self._layers.append(linear)
            if not is_last:
                self._is_relu.append(type(activation) is nn.ReLU)

    def __call__(self, x: Tensor, more: Tensor | None) -> Tensor | None:
        """[B, F] and [B, input_size − F] → [B, n, output_size]; None: ask torch."""
        if not self._layers or x.ndim != 2 or not may_use_numpy(x):
            return None
        first = self._layers[0].weight
        if (
            len(x) * first.shape[0] * first.shape[2] < _MIN_OUTPUTS
            or not (first.is_cpu and first.dtype is torch.float32)
            or not is_full_precision()
            or not (more is None or may_use_numpy(more))
            or torch.is_autocast_enabled("cpu")
        ):
            return None
        if not is_single_threaded() or not self._built.are_untouched():
            return None
        parameters: list[Any] = []
        for layer in self._layers:
            if not has_own_parameters(layer, ParallelLinear):
                return None
            own = layer._parameters
            parameters += own["weight"], own["bias"]
        return self._as_node(x, more, parameters)

    def _as_node(
        self, x: Tensor, more: Tensor | None, parameters: list[Tensor]
    ) -> Tensor:
        is_relu, saved = self._is_relu, (x, more, *parameters)

        def compute() -> tuple[Tensor, Backward]:
            outputs, inputs = _outputs_and_inputs(is_relu, x, more, parameters)

            def backward(needs: Any, gradient: Tensor) -> list[Tensor | None]:
                gradient = gradient.transpose(0, 1).contiguous()
                return _gradients(is_relu, inputs, saved, gradient, needs)

            return outputs, backward

        def in_torch(x: Tensor, more: Tensor | None, *parameters: Tensor) -> Tensor:
            values = x if more is None else torch.cat([x, more], dim=-1)
            values = values.expand(len(parameters[0]), *values.shape)
            for i, weight in enumerate(parameters[::2]):
                values = torch.baddbmm(parameters[2 * i + 1], values, weight)
                if i < len(is_relu):
                    values = values.relu() if is_relu[i] else values.tanh()
            return values.transpose(0, 1)

        return node(compute, in_torch, *saved)


def _outputs_and_inputs(
    is_relu: list[bool], x: Tensor, more: Tensor | None, parameters: list[Tensor]
) -> tuple[Tensor, list[np.ndarray]]:
    """[B, n, output_size], and the input of each layer.

    Products are numpy's; what is done to each number is faster in torch.
    """
    values = (x if more is None else torch.cat([x, more], dim=-1)).detach().numpy()
    inputs = []
    for i, (weight, bias) in enumerate(
        zip(parameters[::2], parameters[1::2], strict=True)
    ):
        inputs.append(values)
        values = np.matmul(values, weight.detach().numpy())
        outputs = torch.from_numpy(values)
        outputs.add_(bias)
        if i < len(is_relu):
            if is_relu[i]:
                torch.relu_(outputs)
            else:
                np.tanh(values, out=values)
    return outputs.transpose(0, 1), inputs


def _gradients(
    is_relu: list[bool],
    layer_inputs: list[np.ndarray],
    saved: tuple[Any, ...],
    gradient: Tensor,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Those of x, ``more`` and the parameters, where they are needed.

    Args:
        is_relu: or tanh, after each layer but the last.
        layer_inputs: what each layer got.
        saved: x, ``more`` and the parameters.
        gradient: [n, B, output_size].
        needs: which of them are needed.
    """
    found: list[Tensor | None] = [None] * len(saved)
    last = needs.index(True)  # where nothing before needs a gradient
    for i in range(len(layer_inputs) - 1, -1, -1):
        inputs, values, at = layer_inputs[i], gradient.numpy(), 2 + 2 * i
        if needs[at]:
            found[at] = torch.from_numpy(np.matmul(inputs.mT, values))
        if needs[at + 1]:
            found[at + 1] = gradient.sum(1, keepdim=True)
        if last >= at:
            return found
        if i == 0:
            break
        weight = saved[at].detach()
        if weight.shape[2] == 1:
            gradient = gradient * weight.mT
        else:
            gradient = torch.from_numpy(np.matmul(values, weight.numpy().mT))
        outputs = torch.from_numpy(inputs)
        if is_relu[i - 1]:
            _threshold_backward(gradient, outputs, 0, grad_input=gradient)
        else:
            gradient *= 1 - outputs * outputs
    size = saved[0].shape[1]
    weight = saved[2].detach().numpy()
    for k, columns in enumerate((slice(size), slice(size, None))):
        if needs[k]:
            product = np.matmul(gradient.numpy(), weight[:, columns].mT)
            found[k] = torch.from_numpy(product.sum(0))
    return found
