"""Ensembles of layers, as batched matrix products, and chains of linear ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.networks.batch_norm import BatchNorm
from alf_lite.networks.built_layers import BuiltLayers, has_own_parameters
from alf_lite.networks.initializers import (
    HIDDEN_GAIN,
    Initializer,
    check_parameters,
    initialize_members,
)
from alf_lite.networks.lean_layers import LinearMap, is_full_precision
from alf_lite.utils.numpy_function import is_quick
from alf_lite.utils.threads import is_single_threaded


class ParallelLinear(LinearMap):
    """n linear layers of one shape: y_k = x_k W_k + b_k.

    Every member is initialised on its own, its bias with zeros.

    Args:
        num_members: n.
        input_size: features of one input.
        output_size: features of one output.
        gain: of orthogonal weights.
        initializer: in place of these.
    """

    def __init__(
        self,
        num_members: int,
        input_size: int,
        output_size: int,
        gain: float = HIDDEN_GAIN,
        initializer: Initializer | None = None,
    ) -> None:
        super().__init__()
        if num_members < 1:
            raise ValueError(f"num_members must be at least 1, got {num_members}")
        self.num_members = num_members
        shape = (num_members, input_size, output_size)
        check_parameters(f"{num_members} layers of {shape[1]} x {shape[2]}", *shape)
        # [n, in, out]: torch.nn.Linear's order makes the backward pass slower here.
        self.weight = nn.Parameter(torch.empty(num_members, input_size, output_size))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, output_size))
        initialize_members(self.weight, gain, initializer)

    def forward(self, x: Tensor) -> Tensor:
        """Applies all members.

        Args:
            x: [B, input_size], the same for all members, or [n, B, input_size].

        Returns:
            [n, B, output_size].
        """
        if x.ndim == 2:
            x = x.expand(self.num_members, *x.shape)
        elif x.ndim != 3 or x.shape[0] != self.num_members:
            raise ValueError(
                f"expected an input [B, features] or [{self.num_members}, B, features],"
                f" got {tuple(x.shape)}"
            )
        if type(self) is ParallelLinear:
            # Not by attribute, which nn.Module looks up in Python.
            parameters: dict[str, Any] = self._parameters
            weight, bias = parameters["weight"], parameters["bias"]
        else:  # a subclass may make them of others
            weight, bias = self.weight, self.bias
        if weight.shape[2] == 1:
            # Products of matrices are slow, there and back, where one has one column.
            return (x * weight.mT).sum(-1, keepdim=True) + bias
        return torch.baddbmm(bias, x, weight)

    def forward_first(self, x: Tensor) -> Tensor:
        """What the first member alone makes of x: [B, in] → [B, out]."""
        return torch.addmm(self.bias[0], x, self.weight[0])

    def extra_repr(self) -> str:
        num_members, input_size, output_size = self.weight.shape
        return f"{num_members} x ({input_size} -> {output_size})"


class ParallelLayerNorm(LinearMap):
    """n layer normalizations (Ba et al. 2016), each with a gain and a bias of its own.

    Args:
        num_members: n.
        size: features of one input.
    """

    def __init__(self, num_members: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, 1, size))
        self.bias = nn.Parameter(torch.zeros(num_members, 1, size))

    def forward(self, x: Tensor) -> Tensor:
        """[n, B, size] → the same shape."""
        normalized = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(self.bias, normalized, self.weight)

    def forward_first(self, x: Tensor) -> Tensor:
        """As that of :class:`ParallelLinear`."""
        return F.layer_norm(x, x.shape[-1:], self.weight[0, 0], self.bias[0, 0])

    def extra_repr(self) -> str:
        num_members, _, size = self.weight.shape
        return f"{num_members} x {size}"


class FirstMember(LinearMap):
    """The first member of an ensemble of layers, which keeps the parameters."""

    def __init__(self, layers: ParallelLinear | ParallelLayerNorm | BatchNorm) -> None:
        super().__init__()
        self._layers = (layers,)  # in a tuple: no part of this module

    def forward(self, x: Tensor) -> Tensor:
        return self._layers[0].forward_first(x)


# Linear ones as one node of the graph

# Numbers that a layer of an ensemble makes, from which on it is worth it.
_MIN_OUTPUTS = 2**17
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


class ParallelChain:
    """Parallel layers with ReLU or tanh between them, the last one linear.

    The results and gradients are those of torch but for rounding. There are none where
    :class:`~alf_lite.networks.numpy_layers.NumpyChain` would give none, in several
    threads, and of small batches and layers, where torch is as fast. Large ones do not
    fit into the caches of a processor: what torch keeps and copies for each node of its
    graph takes a fifth of the time of ten critics.

    Args:
        layers: of the ensemble. Where one has another kind, torch computes.
        built: the same layers, as the network has been built with them.
    """

    def __init__(self, layers: Sequence[nn.Module], built: BuiltLayers) -> None:
        self._built = built
        self._is_single_threaded: bool | None = None  # not known yet
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
        if not self._layers or x.ndim != 2 or not is_quick(x):
            return None
        first = self._layers[0].weight
        if (
            len(x) * first.shape[0] * first.shape[2] < _MIN_OUTPUTS
            or not (first.is_cpu and first.dtype is torch.float32)
            or not is_full_precision()
            or not (more is None or is_quick(more))
            or torch.is_autocast_enabled("cpu")
        ):
            return None
        if self._is_single_threaded is None:
            self._is_single_threaded = is_single_threaded()
        if not self._is_single_threaded:
            return None
        if not self._built.are_there() or self._built.are_watched():
            return None
        parameters: list[Any] = []
        for layer in self._layers:
            if not has_own_parameters(layer, ParallelLinear):
                return None
            own = layer._parameters
            parameters += own["weight"], own["bias"]
        return _ParallelLayers.apply(self._is_relu, x, more, *parameters)


class _ParallelLayers(torch.autograd.Function):
    """Products are numpy's; what is done to each number is faster in torch."""

    @staticmethod
    def forward(
        ctx: Any,
        is_relu: list[bool],
        x: Tensor,
        more: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        inputs = x if more is None else torch.cat([x, more], dim=-1)
        values = inputs.detach().numpy()
        ctx.inputs = []
        for i, (weight, bias) in enumerate(
            zip(parameters[::2], parameters[1::2], strict=True)
        ):
            ctx.inputs.append(values)
            values = np.matmul(values, weight.detach().numpy())
            outputs = torch.from_numpy(values)
            outputs.add_(bias)
            if i < len(is_relu):
                if is_relu[i]:
                    torch.relu_(outputs)
                else:
                    np.tanh(values, out=values)
        ctx.is_relu = is_relu
        ctx.save_for_backward(x, more, *parameters)  # notices when they are changed
        return outputs.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        gradient = gradients[0].transpose(0, 1)
        needs = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *_parallel_gradients_by_torch(
                ctx.is_relu, saved, gradient, needs
            )
        return None, *_parallel_gradients(ctx, saved, gradient.contiguous(), needs)


def _parallel_gradients(
    ctx: Any, saved: tuple[Any, ...], gradient: Tensor, needs: tuple[bool, ...]
) -> list[Tensor | None]:
    """Those of x, ``more`` and the parameters, where they are needed.

    Args:
        ctx: of the node.
        saved: x, ``more`` and the parameters.
        gradient: [n, B, output_size].
        needs: which of them are needed.
    """
    found: list[Tensor | None] = [None] * len(saved)
    last = needs.index(True)  # where nothing before needs a gradient
    for i in range(len(ctx.inputs) - 1, -1, -1):
        inputs, values, at = ctx.inputs[i], gradient.numpy(), 2 + 2 * i
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
        if ctx.is_relu[i - 1]:
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


def _parallel_gradients_by_torch(
    is_relu: list[bool],
    saved: tuple[Any, ...],
    gradient: Tensor,
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """As :func:`_parallel_gradients`, for gradients of gradients."""
    x, more, *parameters = saved
    values = x if more is None else torch.cat([x, more], dim=-1)
    values = values.expand(len(parameters[0]), *values.shape)
    for i, weight in enumerate(parameters[::2]):
        values = torch.baddbmm(parameters[2 * i + 1], values, weight)
        if i < len(is_relu):
            values = values.relu() if is_relu[i] else values.tanh()
    wanted = [t for t, is_needed in zip(saved, needs, strict=True) if is_needed]
    found = iter(torch.autograd.grad(values, wanted, gradient, create_graph=True))
    return [next(found) if is_needed else None for is_needed in needs]
