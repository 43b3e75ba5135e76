"""Chains of linear layers and activations, there and back, without a graph.

Of large layers, products are most of the time, and next to them what torch does around
each node of its graph: memory that is not in the processor's cache, and gradients that
nobody needs. Here each member of an ensemble is evaluated by itself, layer by layer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite.fast.array_nodes import NODES, Activation, Place
from alf_lite.fast.chains import BuiltChain
from alf_lite.networks.critic_networks import ParallelMLP
from alf_lite.networks.parallel_layers import ParallelLinear

# For the gradients of weight [in, out] and bias [1, out] of each layer
Places = Sequence[Tensor]


class Layer(NamedTuple):
    """x W + b, with the activation that follows, or None."""

    weight: Tensor  # [in, out]
    transposed: Tensor
    bias: Tensor  # [out]
    activation: Activation | None


class Stack(BuiltChain):
    """The layers of a network, or of each member of an ensemble.

    Args:
        hidden: linear layers and activations in turn.
        last: one linear layer, or two side by side.
        network: that they belong to.
    """

    def __init__(
        self, hidden: Sequence[nn.Module], last: Sequence[Any], network: nn.Module
    ) -> None:
        kind = ParallelLinear if isinstance(network, ParallelMLP) else nn.Linear
        self._linear = [*hidden[::2], *last]
        nodes = [NODES.get(type(layer)) for layer in hidden[1::2]]
        self.activations: list[Any] = []
        layers: list[Any] = []
        if (
            len(hidden) % 2 == 0
            and all(type(layer) is kind for layer in self._linear)
            and all(node is not None and issubclass(node, Activation) for node in nodes)
        ):
            layers = [*hidden, *last]
            self.activations = [NODES[type(x)](x) for x in hidden[1::2]]
        self._is_ensemble, self._has_two = kind is ParallelLinear, len(last) == 2
        super().__init__(layers, layers, network)
        self._arrays: list[Tensor] = []
        self.members: list[list[Layer]] = []

    def is_ready(self) -> bool:
        if not super().is_ready():
            return False
        for activation in self.activations:
            if not activation.keeps_output:
                return False
        if self._has_two:
            weight, bias, other_weight, other_bias = self._arrays[-4:]
            joint = torch.cat([weight, other_weight])
            bias = torch.cat([bias, other_bias])
            self.members[0][-1] = Layer(joint.t(), joint, bias, None)
        return True

    def is_trained(self) -> bool:
        return all(p.requires_grad for p in self.parameters() if p is not None)

    def _finds_memory(self) -> bool:
        biases = [layer._parameters.get("bias") for layer in self._linear]
        return not any(bias is None for bias in biases) and super()._finds_memory()

    def _places(self, largest: int) -> list[Place]:
        places = [
            (layer._parameters, name)
            for layer in self._linear
            for name in ("weight", "bias")
        ]
        self._arrays = [held[name].detach() for held, name in places]
        self.members = self._find_members()
        return places

    def _find_members(self) -> list[list[Layer]]:
        weights, biases = self._arrays[::2], self._arrays[1::2]
        if not self._is_ensemble:
            parts: list[Any] = [([w.t() for w in weights], biases)]
        else:  # [n, in, out], [n, 1, out]
            of_members = zip(*[b.squeeze(1) for b in biases], strict=True)
            parts = [*zip(zip(*weights, strict=True), of_members, strict=True)]
        return [
            [
                Layer(weight, weight.t(), bias, activation)
                for weight, bias, activation in zip(*part, [*self.activations, None])  # noqa: B905 - of two last ones, there is one too many
            ]
            for part in parts
        ]

    def new_gradients(self) -> tuple[list[Tensor], list[Places]]:
        """Those of the parameters, and where in them those of a member's layers are.

        Nobody else keeps them, so that the parameters need no copy.
        """
        found = [*map(torch.empty_like, self._arrays)]
        if self._is_ensemble:
            return found, [*zip(*map(torch.unbind, found), strict=True)]
        joint = found
        if self._has_two:
            joint = [*found[:-4], torch.cat(found[-4::2]), torch.cat(found[-3::2])]
            (weight, other_weight), (bias, other_bias) = (
                x.chunk(2) for x in joint[-2:]
            )
            found[-4:] = weight, bias, other_weight, other_bias
        return found, [[x.unsqueeze(0) if x.ndim == 1 else x.t() for x in joint]]


def stack_of(
    network: Any, hidden: Iterable[nn.Module], last: Sequence[Any]
) -> Stack | None:
    """That of a network, which keeps it; None if it does more than such layers do."""
    stack = network.__dict__.get("_stack")
    if stack is None:
        stack = network.__dict__["_stack"] = Stack([*hidden], last, network)
    return stack if stack.is_ready() else None


class _Memory(threading.local):
    """What is forgotten when a loss is known: the next one finds it in the cache."""

    def __init__(self) -> None:
        self._tensors: dict[Any, Tensor] = {}

    def take(self, key: Any, num_rows: int, size: int) -> Tensor:
        found = self._tensors.get(key)
        if found is None or found.shape[1] != size or found.shape[0] < num_rows:
            found = self._tensors[key] = torch.empty(num_rows, size)
        return found if found.shape[0] == num_rows else found[:num_rows]


_memory = _Memory()


def run(
    layers: list[Layer], x: Tensor, key: Any, inputs: list[Tensor] | None = None
) -> Tensor:
    """What the layers make of x [B, in].

    Args:
        layers: of one member.
        x: [B, in].
        key: of memory for all that is made, which is valid until it is given again.
        inputs: where the input of each layer is put.
    """
    num_rows = x.shape[0]
    for i, (weight, transposed, bias, activation) in enumerate(layers):
        if inputs is not None:
            inputs.append(x)
        size = transposed.shape[0]
        if size == 1:  # in torch up to six times as long
            column = x.numpy().dot(transposed[0].numpy())
            x = torch.from_numpy(column).add_(bias).unsqueeze(1)
        else:
            out = _memory.take((key, i), num_rows, size)
            x = torch.addmm(bias, x, weight, out=out)
        if activation is not None:
            activation.forward_many(x, False)
    return x


def pull_back(
    layers: list[Layer],
    inputs: list[Tensor],
    gradient: Tensor,
    places: Places | None = None,
    columns: slice | None = None,
) -> Any:
    """From the gradient of the output to those of the parameters and the input.

    Args:
        layers: that were run.
        inputs: of each, from :func:`run`.
        gradient: [B, out].
        places: where those of weights and biases go; None: nowhere.
        columns: of the input, whose gradient is returned; None: nobody's.
    """
    for i in range(len(layers) - 1, -1, -1):
        x, transposed = inputs[i], layers[i].transposed
        if places is not None:
            torch.mm(x.t(), gradient, out=places[2 * i])
            torch.sum(gradient, 0, keepdim=True, out=places[2 * i + 1])
        if i == 0:
            if columns is None:
                return None
            narrow = transposed.numpy()[:, columns]
            return torch.from_numpy(gradient.numpy().dot(narrow))
        product = torch.mul if transposed.shape[0] == 1 else torch.mm
        out = _memory.take(("gradient", i), *x.shape)
        gradient = product(gradient, transposed, out=out)
        activation = layers[i - 1].activation
        assert activation is not None
        activation.pull_back_many(gradient, x)
    return None
