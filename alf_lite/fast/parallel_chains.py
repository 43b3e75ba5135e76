"""Ensembles of linear layers as one node of the graph, one member after the other.

Large ones do not fit into the caches of a processor: what torch keeps and copies for
each node of its graph takes a fifth of the time of ten critics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite.fast import Computation, Node, may_use_numpy
from alf_lite.fast.stacks import Stack, pull_back, run, stack_of
from alf_lite.networks.critic_networks import ParallelMLP

# Numbers that a layer of an ensemble makes, from which on it is worth it.
_MIN_OUTPUTS = 2**17


def values(network: ParallelMLP, x: Tensor, more: Tensor | None = None) -> Tensor:
    """See :meth:`ParallelMLP.values`.

    The results and gradients are those of torch but for rounding. There are none where
    a :class:`~alf_lite.fast.stacks.Stack` would give none, in several threads, and
    of small batches and layers, where torch is as fast.
    """
    if (
        x.ndim != 2
        or not may_use_numpy(x)
        or not (more is None or may_use_numpy(more))
        or torch.get_num_threads() > 1
        or network.is_only_first
    ):
        return NotImplemented
    stack = stack_of(network, network._hidden_layers, [network._output_layer])
    if stack is None:
        return NotImplemented
    num_outputs = len(stack.members) * stack.members[0][0].weight.shape[1]
    if len(x) * num_outputs < _MIN_OUTPUTS:
        return NotImplemented
    return Node.apply(_Pass(stack), x, more, *stack.parameters())


class _Pass(Computation):
    """Of x, ``more``, and weight and bias of each layer, there and back."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._members = stack, stack.members
        self._inputs: list[list[Tensor]] = [[] for _ in stack.members]

    def forward(self, x: Tensor, more: Tensor | None, *parameters: Tensor) -> Tensor:
        """[B, F] and [B, input_size − F] → [B, n, output_size]."""
        self._num_columns = x.shape[1]
        joint = x.detach() if more is None else torch.cat([x, more], dim=-1)
        members = zip(self._members, self._inputs, strict=True)
        return torch.stack(
            [run(layers, joint, None, own) for layers, own in members], 1
        )

    def backward(self, needs: Sequence[bool], gradient: Tensor) -> list[Tensor | None]:
        gradients: list[Any] = [None] * (len(needs) - 2)
        places: list[Any] = [None] * len(self._members)
        if any(needs[2:]):
            gradients, places = self._stack.new_gradients()
        columns = slice(0 if needs[0] else self._num_columns, None)
        to_inputs: Tensor | None = None
        for layers, own, place, to_values in zip(
            self._members, self._inputs, places, gradient.unbind(1), strict=True
        ):
            found = pull_back(
                *(layers, own, to_values.contiguous(), place),
                columns=columns if any(needs[:2]) else None,
            )
            to_inputs = found if to_inputs is None else to_inputs.add_(found)
        parts: list[Any] = [None, to_inputs]
        if to_inputs is not None and needs[0]:
            size = self._num_columns
            parts = [to_inputs[:, :size], to_inputs[:, size:]]
        found = [*parts, *gradients]
        return [
            x if is_needed else None for x, is_needed in zip(found, needs, strict=True)
        ]

    def in_torch(self, x: Tensor, more: Tensor | None, *parameters: Tensor) -> Tensor:
        values = x if more is None else torch.cat([x, more], dim=-1)
        values = values.expand(len(parameters[0]), *values.shape)
        activations = [*self._stack.activations, None]
        for weight, bias, activation in zip(
            parameters[::2], parameters[1::2], activations, strict=True
        ):
            values = torch.baddbmm(bias, values, weight)
            if activation is not None:
                values = activation.in_torch(values, iter(()))
        return values.transpose(0, 1)
