"""Networks as chains of array nodes, on the parameters' own memory.

In training, a chain is one node of torch's graph with a backward pass in numpy, in
place of several nodes for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from alf_lite import fast, nest
from alf_lite.fast import array_nodes, is_exactly
from alf_lite.fast.array_nodes import NODES, Activation, ArrayNode, Dueling, Place
from alf_lite.networks import continuous_projections, lean_layers, projections
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.containers import Sequential
from alf_lite.networks.encoding_networks import EncodedNetwork, EncodingNetwork
from alf_lite.networks.input_encoders import CategoryEncoder, NumberEncoder
from alf_lite.networks.input_preprocessors import COMBINERS, concat
from alf_lite.networks.parallel_layers import ParallelLinear
from alf_lite.networks.value_networks import QNetwork
from alf_lite.utils.threads import is_single_threaded

# Of which a chain knows what follows their layer
_HEADS = [
    kind
    for module in (continuous_projections, projections)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, projections.Projection)
]

# With more rows, or products of numbers in a layer, numpy uses several threads, if it
# may.
_MAX_ROWS = 64
_MAX_PRODUCTS = 2**18
_NO_LIMIT = 2**62
# From so many on, the products of torch are as fast or faster, and so is all else: from
# 128 rows on for layers of 64x64, and from 8 on for layers of 256x256.
_MIN_PRODUCTS_OF_TORCH = 2**19


def forward(network: EncodedNetwork, inputs: Any, state: Any = ()) -> tuple[Any, Any]:
    """See the ``forward`` of the network."""
    chain = network.__dict__.get("_chain") or chain_of(network)
    outputs = chain(inputs) if chain._layers else None
    if outputs is None:
        return NotImplemented
    return network.from_outputs(outputs), state


def chain_of(network: EncodedNetwork) -> NumpyChain:
    """All layers up to where the network goes on itself; of none, if it has others."""
    chain = network.__dict__.get("_chain")
    if chain is None:
        layers = layers_of(network._encoder)
        following = _layers_after_encoder(network)
        known = [] if layers is None or following is None else [*layers, *following]
        chain = network.__dict__["_chain"] = NumpyChain(known, network)
    return chain


def layers_of(encoder: Any) -> list[Any] | None:
    """What it consists of, if one layer simply follows the other.

    An encoder stands before its layers.
    """
    if is_exactly(encoder, EncodingNetwork):
        return [encoder, *encoder._mlp] if _reads_numbers(encoder) else None
    if not is_exactly(encoder, Sequential):
        return None
    found: list[Any] = []
    for part in encoder._parts:
        layers = layers_of(part)
        if layers is None:
            return None
        found += layers
    return found


def _reads_numbers(encoder: EncodingNetwork) -> bool:
    """Whether there is nothing to learn, draw or remember before its layers."""
    return encoder._is_plain or (
        encoder._combine in COMBINERS.values()
        and all(
            is_exactly(each, NumberEncoder)
            or (is_exactly(each, CategoryEncoder) and each._embedding is None)
            for each in encoder._encoders
        )
    )


class _Streams(NamedTuple):
    """The layers of the two parts of a dueling network."""

    advantage: list[nn.Module]
    value: list[nn.Module]
    network: QNetwork


def _layers_after_encoder(network: EncodedNetwork) -> list[Any] | None:
    if isinstance(network, QNetwork):
        advantage: list[Any] = list(network._advantage)
        if network._value is None:
            return advantage
        return [_Streams(advantage, list(network._value), network)]
    if not isinstance(network, ActorDistributionNetwork):
        return [network._linear]
    head = network._head
    layer = head.single_layer() if is_exactly(head, *_HEADS) else None
    return None if layer is None else [layer]


class BuiltChain:
    """Layers one after the other, and where the memory of their parameters is.

    Where they are not wanted (in a graph that is compiled or exported, in another
    precision) or cannot be had (other layers, one that was put in the place of another,
    that has hooks, or a weight made of other parameters), it is not ready.

    Args:
        layers: that are known; none if there are others.
        modules: all that are asked whether they are as they were.
        network: that they belong to.
    """

    def __init__(
        self, layers: Sequence[Any], modules: Sequence[nn.Module], network: nn.Module
    ) -> None:
        self._layers = layers
        self._built = lean_layers.BuiltLayers(modules, network)
        # What it is made of, and where it is. It is kept, so that no address is used
        # twice.
        self._memory: list[tuple[dict[str, Any], str, int, Any]] = []

    def is_ready(self) -> bool:
        """Whether the layers are as they were; finds where their parameters are now."""
        if not self._layers or fast.is_traced() or not self._built.are_untouched():
            return False
        # Not by attribute, which nn.Module looks up in Python; any() takes longer.
        for held, name, address, _ in self._memory:
            tensor = held.get(name)
            if (0 if tensor is None else tensor.data_ptr()) != address:
                self._memory = []  # the parameters have moved
                break
        if not self._memory and not self._finds_memory():
            return False
        return (
            lean_layers.current_dtype is torch.float32
            and not torch.is_autocast_enabled("cpu")
        )

    def _finds_memory(self) -> bool:
        """Remembers it, and has what is made of it built."""
        modules = _modules_of(self._layers)
        if not all(map(_is_known, modules)):
            self._layers = []  # weights are made of others at every call
            return False
        tensors = [t for m in modules for t in m._parameters.values() if t is not None]
        if not all(t.is_cpu and t.dtype == torch.float32 for t in tensors):
            return False
        self._memory = [
            (held, name, 0, None)
            if (tensor := held[name]) is None
            else (held, name, tensor.data_ptr(), tensor.detach())
            for held, name in self._places(max(t.numel() for t in tensors))
        ]
        return True

    def _places(self, largest: int) -> list[Place]:
        """Builds all that stands on the parameters, of which it says the order."""
        raise NotImplementedError

    def parameters(self) -> list[Any]:
        """Of all layers, in their order."""
        return [held[name] for held, name, *_ in self._memory]

    def __getstate__(self) -> dict[str, Any]:
        # A copy has layers of its own in other memory.
        return {**vars(self), "_memory": []}


class NumpyChain(BuiltChain):
    """Layers that ``array_nodes`` knows, one after the other, the last one linear.

    The results and gradients are those of torch but for rounding. There are none where
    it is not ready, in several threads and on a GPU.

    Args:
        layers: parts of the network, see :func:`layers_of`; none if it is no chain.
        network: that they belong to.
    """

    def __init__(self, layers: Sequence[Any], network: nn.Module) -> None:
        encoders = [layer for layer in layers if type(layer) is EncodingNetwork]
        modules = _modules_of(layers)
        self._reader = next((each for each in encoders if not each._is_plain), None)
        if self._reader is not None:
            modules += self._reader._encoders
            self._joins_vectors = self._reader._combine is concat and all(
                spec.ndim == 1 and spec.dtype == torch.float32
                for spec in nest.flatten(self._reader.input_spec)
            )
        layers = [layer for layer in layers if layer not in encoders]
        super().__init__(layers if _is_chain(layers) else [], modules, network)
        self._nodes: list[ArrayNode] = []
        self._max_rows = 0

    def __call__(self, inputs: Any) -> Tensor | None:
        """[B, ...] → [B, output_size]; None: ask torch."""
        x = self.prepared(inputs)
        if x is None:
            return None
        if not torch.is_grad_enabled():
            if x.requires_grad:
                return None
            with quiet():
                return torch.from_numpy(self.run(x))
        if not fast.may_make_node():
            return None
        return fast.Node.apply(_Pass(self._nodes), x, *self.parameters())

    def prepared(self, inputs: Any) -> Tensor | None:
        """[B, ...] → [B, n], which can be run through it; None: ask torch."""
        return self.read(inputs) if self.is_ready() else None

    def read(self, inputs: Any) -> Tensor | None:
        """As ``prepared``, of a chain that is ready."""
        x = inputs if self._reader is None else self._joined(inputs)
        size = x.shape
        if len(size) != 2 or size[0] > self._max_rows or x.dtype != torch.float32:
            return None
        return x if x.is_cpu else None

    def run(self, x: Tensor, kept: list[Any] | None = None) -> np.ndarray:
        """[B, output_size] of what was prepared, without a graph; see ``run`` of nodes.

        To be called within :func:`quiet`.
        """
        return array_nodes.run(self._nodes, x.detach().numpy(), kept)

    def pull_back(
        self, gradient: np.ndarray, kept: list[Any], num_rows: int
    ) -> list[Tensor | None]:
        """That of each parameter that is trained, from those of the first outputs."""
        if len(gradient) < num_rows:
            first, shape = gradient, (num_rows, gradient.shape[1])
            gradient = np.zeros(shape, np.float32)
            gradient[: len(first)] = first
        needs = [p is not None and p.requires_grad for p in self.parameters()]
        return array_nodes.pull_back(self._nodes, kept, gradient, (False, *needs))[1:]

    def _joined(self, inputs: Any) -> Tensor:
        """What the encoder makes of the parts of an observation."""
        assert self._reader is not None
        if self._joins_vectors:
            try:  # three calls less for each of them
                arrays = list(map(Tensor.numpy, nest.flatten(inputs)))
            except (RuntimeError, TypeError):  # with a gradient, or on a GPU
                return self._reader.joined(inputs)
            return torch.from_numpy(np.concatenate(arrays, axis=-1))
        return self._reader.joined(inputs)

    def _places(self, largest: int) -> list[Place]:
        self._nodes = _nodes_of(self._layers, _MIN_PRODUCTS_OF_TORCH // max(largest, 1))
        self._max_rows = min(_MAX_PRODUCTS // max(largest, 1), _MAX_ROWS)
        if is_single_threaded():
            self._max_rows = _NO_LIMIT
        return [place for node in self._nodes for place in node.parameters]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_nodes": []}


def quiet() -> Any:
    """In which numpy does not warn of what is not finite, as torch does not."""
    return np.errstate(all="ignore")


class _Pass(fast.Computation):
    """Of x and of the parameters of all nodes, there and back."""

    def __init__(self, nodes: list[ArrayNode]) -> None:
        self._nodes = nodes
        self._kept: list[Any] = []

    def forward(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        return torch.from_numpy(
            array_nodes.run(self._nodes, x.detach().numpy(), self._kept)
        )

    def backward(self, needs: Sequence[bool], gradient: Tensor) -> list[Tensor | None]:
        to_x, *found = array_nodes.pull_back(
            self._nodes, self._kept, gradient.numpy(), needs
        )
        return [None if to_x is None else torch.from_numpy(to_x), *found]

    def in_torch(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        return array_nodes.in_torch(self._nodes, x, iter(parameters))


def _is_chain(layers: Sequence[Any]) -> bool:
    """Whether activations may overwrite what comes before them, and none is the last.

    Of linear layers and normalizations that is new memory, which they do not need.
    """
    follows_memory = False
    for layer in layers:
        if type(layer) is _Streams:
            return all(map(_is_chain, layer[:2]))
        if type(layer) not in NODES or not _is_known(layer):
            return False
        is_activation = issubclass(NODES[type(layer)], Activation)
        if is_activation and not follows_memory:
            return False
        follows_memory = not is_activation
    return follows_memory


def _is_known(layer: nn.Module) -> bool:
    if type(layer) is nn.LayerNorm:
        return len(layer.normalized_shape) == 1
    # A weight that is made of others is no parameter
    is_of_known_type = type(layer) in NODES or type(layer) is ParallelLinear
    return is_of_known_type and len(layer._parameters) in (0, 2)


def _modules_of(layers: Sequence[Any]) -> list[nn.Module]:
    modules: list[nn.Module] = []
    for layer in layers:
        modules += layer[0] + layer[1] if type(layer) is _Streams else [layer]
    return modules


def _nodes_of(layers: Sequence[Any], min_rows_of_torch: int) -> list[ArrayNode]:
    """Of layers that are known, one after the other."""
    nodes: list[ArrayNode] = []
    for layer in layers:
        if type(layer) is _Streams:
            advantage, value = (_nodes_of(x, min_rows_of_torch) for x in layer[:2])
            nodes.append(Dueling(advantage, value, layer.network))
        else:
            nodes.append(NODES[type(layer)](layer))
        nodes[-1].min_rows_of_torch = min_rows_of_torch
    return nodes
