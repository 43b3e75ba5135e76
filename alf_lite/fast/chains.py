"""Chains of linear layers in numpy, on the parameters' own memory.

In training, a chain is one node of torch's graph with a backward pass in numpy, in
place of four nodes for each layer. Large ones gain too, where all is computed in one
thread: tanh takes a seventh of the time, and matrix products take half of it on
processors that torch's library was not made for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alf_lite.fast import Computation, Node, is_exactly, is_traced, may_make_node
from alf_lite.networks import continuous_projections, lean_layers, projections
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.containers import Sequential
from alf_lite.networks.encoding_networks import EncodedNetwork, EncodingNetwork
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

_ZERO = np.zeros((), np.float32)  # faster than a number of Python
_ONE = np.ones((), np.float32)


class _Activation(NamedTuple):
    """In numpy, in place, and in torch."""

    apply: Callable[[np.ndarray], Any]
    # (gradient of the output, output): makes it that of the input
    differentiate: Callable[[np.ndarray, np.ndarray], Any]
    torch: Callable[[Tensor], Tensor]


def _tanh_backward(gradient: np.ndarray, output: np.ndarray) -> None:
    slope = output * output
    np.subtract(_ONE, slope, out=slope)
    gradient *= slope


_RELU = _Activation(
    lambda x: np.maximum(x, _ZERO, out=x),
    lambda gradient, output: np.multiply(gradient, output > _ZERO, out=gradient),
    torch.relu,
)
_ACTIVATIONS: dict[type[nn.Module], _Activation] = {
    nn.ReLU: _RELU,
    nn.Tanh: _Activation(lambda x: np.tanh(x, out=x), _tanh_backward, torch.tanh),
}


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


def layers_of(encoder: Any) -> list[nn.Module] | None:
    """What it consists of, if one layer simply follows the other."""
    if is_exactly(encoder, EncodingNetwork):
        return list(encoder._mlp) if encoder._is_plain else None
    if not is_exactly(encoder, Sequential):
        return None
    found: list[nn.Module] = []
    for part in encoder._parts:
        layers = layers_of(part)
        if layers is None:
            return None
        found += layers
    return found


def _layers_after_encoder(network: EncodedNetwork) -> list[nn.Module] | None:
    if isinstance(network, QNetwork):
        return list(network._advantage) if network._value is None else None
    if not isinstance(network, ActorDistributionNetwork):
        return [network.get_submodule("_linear")]
    head = network._head
    layer = head.single_layer() if is_exactly(head, *_HEADS) else None
    return None if layer is None else [layer]


class NumpyChain:
    """Linear layers and activations, one after the other, the last one linear.

    The results and gradients are those of torch but for rounding. Where they are not
    wanted (in several threads, on a GPU, in a graph that is compiled or exported, in
    another precision) or cannot be had (other layers than ``nn.Linear``, ReLU and
    tanh, one that was put in the place of another, that has hooks, or a weight made
    of other parameters), there are none.

    Args:
        layers: parts of the network; none if it is no such chain.
        network: that they belong to.
    """

    def __init__(self, layers: Sequence[nn.Module], network: nn.Module) -> None:
        self._layers = _as_steps(layers)
        self._built = lean_layers.BuiltLayers(layers, network)
        self._arrays: list[Arrays] = []
        self._max_rows = 0

    def __call__(self, x: Tensor) -> Tensor | None:
        """[B, input_size] → [B, output_size]; None: ask torch."""
        arrays = self.arrays(x)
        if arrays is None:
            return None
        if not torch.is_grad_enabled():
            return None if x.requires_grad else torch.from_numpy(run(arrays, x))
        if not may_make_node():
            return None
        return Node.apply(_Pass(arrays), x, *self.parameters())

    def arrays(self, x: Tensor) -> list[Arrays] | None:
        """The layers' memory, for :func:`run` with x [B, input_size].

        None where torch is to be asked.
        """
        if not self._layers or is_traced():
            return None
        if not self._built.are_untouched():
            return None
        for arrays in self._arrays:
            # Not by attribute, which nn.Module looks up in Python. What arrays are made
            # of is kept, so that no address is used twice.
            get = arrays.parameters.get
            weight, bias = get("weight"), get("bias")
            if (
                weight is None
                or weight.data_ptr() != arrays.weight_address
                or (0 if bias is None else bias.data_ptr()) != arrays.bias_address
            ):
                self._arrays = []  # the parameters have moved
                break
        if not self._arrays:
            self._find_arrays()
        size = x.shape
        if len(size) != 2 or size[0] > self._max_rows or x.dtype != torch.float32:
            return None
        if not x.is_cpu or lean_layers.current_dtype is not torch.float32:
            return None
        return self._arrays

    def parameters(self) -> list[Tensor | None]:
        """Weight and bias of each layer whose memory was found."""
        found: list[Tensor | None] = []
        for arrays in self._arrays:
            own = arrays.parameters
            found += own["weight"], own["bias"]
        return found

    def _find_arrays(self) -> None:
        """Where the parameters are now."""
        self._max_rows = 0
        for layer, _ in self._layers:
            if type(layer) is not nn.Linear or len(layer._parameters) != 2:
                self._layers = []  # weights are made of others at every call
                return
        weights = [layer.weight for layer, _ in self._layers]
        if all(w.is_cpu and w.dtype == torch.float32 for w in weights):
            largest = max(weight.numel() for weight in weights)
            self._max_rows = min(_MAX_PRODUCTS // largest, _MAX_ROWS)
            if is_single_threaded():
                self._max_rows = _NO_LIMIT
        if self._max_rows:
            few = _MIN_PRODUCTS_OF_TORCH // max(largest, 1)
            self._arrays = [Arrays.of_layer(*step, few) for step in self._layers]

    def __getstate__(self) -> dict[str, Any]:
        # A copy has layers of its own in other memory.
        return {**vars(self), "_arrays": []}


class Arrays(NamedTuple):
    """The memory of one layer."""

    parameters: dict[str, Any]  # of the layer
    weight_address: int
    bias_address: int
    weight: np.ndarray  # [in, out]
    bias: np.ndarray | None  # [1, out]: of one row, nothing is broadcast
    activation: _Activation | None
    min_rows_of_torch: int  # of all layers together

    @classmethod
    def of_layer(cls, layer: nn.Linear, activation: Any, min_rows: int) -> Arrays:
        weight, bias = layer.weight, layer.bias
        return cls(
            layer._parameters,
            weight.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            weight.detach().numpy().T,
            None if bias is None else bias.detach().numpy()[None],
            _ACTIVATIONS.get(activation),
            min_rows,
        )


class _Pass(Computation):
    """Of x and of weight and bias of each layer, there and back."""

    def __init__(self, layers: list[Arrays]) -> None:
        self._layers = layers
        self._inputs: list[np.ndarray] = []  # of each layer

    def forward(self, x: Tensor, *parameters: Tensor | None) -> Tensor:
        return torch.from_numpy(run(self._layers, x.detach(), self._inputs))

    def backward(self, needs: Sequence[bool], gradient: Tensor) -> list[Tensor | None]:
        return pull_back(self._layers, self._inputs, gradient.numpy(), needs)

    def in_torch(self, x: Tensor, *parameters: Any) -> Tensor:
        for layer, weight, bias in zip(
            self._layers, parameters[::2], parameters[1::2], strict=True
        ):
            x = F.linear(x, weight, bias)
            if layer.activation is not None:
                x = layer.activation.torch(x)
        return x


def run(
    layers: list[Arrays], x: Tensor, inputs: list[np.ndarray] | None = None
) -> np.ndarray:
    """What the layers make of x; puts the input of each into ``inputs``."""
    if x.shape[0] >= layers[0].min_rows_of_torch:  # len() is a call of Python
        return _run_torch(layers, x, inputs)
    values = x.numpy()
    with np.errstate(all="ignore"):  # torch does not warn either
        for layer in layers:
            if inputs is not None:
                inputs.append(values)
            values = values.dot(layer.weight)
            if layer.bias is not None:
                np.add(values, layer.bias, out=values)
            if layer.activation is not None:
                layer.activation.apply(values)
    return values


def _run_torch(
    layers: list[Arrays], x: Tensor, inputs: list[np.ndarray] | None
) -> np.ndarray:
    """As :func:`run`, for many rows: torch adds the bias within the product."""
    for layer in layers:
        if inputs is not None:
            inputs.append(x.numpy())
        x = F.linear(x, layer.parameters["weight"], layer.parameters["bias"])
        if layer.activation is _RELU:
            torch.relu_(x)
        elif layer.activation is not None:
            layer.activation.apply(x.detach().numpy())
    return x.detach().numpy()


def pull_back(
    layers: list[Arrays],
    inputs: list[np.ndarray],
    gradient: np.ndarray,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """From the gradient of the output to those of x and of the parameters.

    Args:
        layers: see :meth:`NumpyChain.arrays`.
        inputs: of each layer, from :func:`run`.
        gradient: [B, output_size].
        needs: of which gradients are wanted: x, and weight and bias of each layer.
    """
    results: list[Tensor | None] = [None] * (1 + 2 * len(layers))
    last = needs.index(True)  # where nothing before needs a gradient
    for i in range(len(layers) - 1, -1, -1):
        if needs[1 + 2 * i]:
            results[1 + 2 * i] = torch.from_numpy(gradient.T.dot(inputs[i]))
        if needs[2 + 2 * i]:
            # Faster than a sum
            ones = np.ones(len(gradient), np.float32)
            results[2 + 2 * i] = torch.from_numpy(ones.dot(gradient))
        if last > 2 * i:
            break
        gradient = gradient.dot(layers[i].weight.T)
        activation = layers[i - 1].activation if i else None
        if activation is not None:
            activation.differentiate(gradient, inputs[i])
    if needs[0]:
        results[0] = torch.from_numpy(gradient)
    return results


def _as_steps(layers: Sequence[nn.Module]) -> list[tuple[nn.Linear, Any]]:
    """Each linear layer, and the type of its activation; empty if there are others."""
    steps: list[tuple[nn.Linear, Any]] = []
    for layer in layers:
        if type(layer) is nn.Linear:
            steps.append((layer, None))
        elif type(layer) in _ACTIVATIONS and steps and steps[-1][1] is None:
            steps[-1] = steps[-1][0], type(layer)
        else:
            return []
    return [] if steps and steps[-1][1] is not None else steps
