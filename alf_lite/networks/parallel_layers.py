"""Ensembles of layers, as batched matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.networks.batch_norm import BatchNorm
from alf_lite.networks.initializers import (
    HIDDEN_GAIN,
    Initializer,
    check_parameters,
    fill_bias,
    initialize_members,
)
from alf_lite.networks.lean_layers import LinearMap
from alf_lite.utils.checks import check_count


class ParallelLinear(LinearMap):
    """n linear layers of one shape: y_k = x_k W_k + b_k.

    Every member is initialised on its own, its bias with zeros by default.

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
        check_count(num_members=num_members)
        self.num_members = num_members
        shape = (num_members, input_size, output_size)
        check_parameters(f"{num_members} layers of {shape[1]} x {shape[2]}", *shape)
        # [n, in, out]: torch.nn.Linear's order makes the backward pass slower here.
        self.weight = nn.Parameter(torch.empty(num_members, input_size, output_size))
        self.bias = nn.Parameter(torch.empty(num_members, 1, output_size))
        initialize_members(self.weight, gain, initializer)
        fill_bias(self.bias, input_size, initializer)

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
