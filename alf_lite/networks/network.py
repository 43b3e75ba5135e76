"""The base class of networks that may have a recurrent state."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from alf_lite import nest
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


class Network(nn.Module):
    """A module with ``forward(inputs, state=()) -> (output, new_state)``.

    The state is a nest of tensors [B, ...] that is zero at the start of every episode;
    whoever calls the network keeps it between steps and resets it. A network without
    memory has the state spec ``()`` and returns the state as it came.

    Args:
        input_spec: of one input, without the batch dimension.
        state_spec: of the recurrent state, without the batch dimension.
    """

    def __init__(
        self, input_spec: NestedTensorSpec, state_spec: NestedTensorSpec = ()
    ) -> None:
        super().__init__()
        self._input_spec = input_spec
        self._state_spec = state_spec

    @property
    def input_spec(self) -> NestedTensorSpec:
        return self._input_spec

    @property
    def state_spec(self) -> NestedTensorSpec:
        return self._state_spec

    def initial_state(self, batch_size: int) -> Nest:
        """The state [B, ...] at the start of an episode, on the network's device."""
        device = next((p.device for p in self.parameters()), None)
        zeros = nest.zeros(self._state_spec, (batch_size,))
        return nest.map_structure(lambda t: t.to(device), zeros)

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        """Maps inputs [B, ...] and the state [B, ...] to an output and a new state."""
        raise NotImplementedError


class _PlainNetwork(Network):
    """A module without state, written for its input alone.

    Args:
        input_spec: of one input.
        module: called with inputs [B, ...].
        output_shape: of one output; None for a nest of distributions.
        what: built the module, for messages.
    """

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        module: nn.Module,
        output_shape: tuple[int, ...] | None,
        what: str,
    ) -> None:
        super().__init__(input_spec)
        self._module = module
        self._output_shape = output_shape
        self._what = what

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        output = self._module(inputs)
        if self._output_shape is None:
            if isinstance(output, Tensor):
                raise ConfigError(
                    f"{self._what} must give distributions of actions, such as "
                    "torch.distributions.Categorical(logits=...), got a tensor "
                    f"{tuple(output.shape)}"
                )
            return output, state
        spec = nest.flatten(self._input_spec)[0]
        leaf = nest.flatten(inputs)[0]
        shape = (*leaf.shape[: leaf.ndim - spec.ndim], *self._output_shape)
        if not isinstance(output, Tensor) or output.numel() != math.prod(shape):
            given = getattr(output, "shape", type(output).__name__)
            raise ConfigError(f"{self._what} must give a tensor {shape}, got {given}")
        return output.reshape(shape), state


def as_network(
    built: Any,
    input_spec: NestedTensorSpec,
    what: str,
    output_shape: tuple[int, ...] | None = None,
) -> Any:
    """What a constructor built, as a network.

    A plain ``nn.Module``, from observations to outputs, is a network without state.

    Args:
        built: by the constructor.
        input_spec: of one input.
        what: the parameter that named the constructor.
        output_shape: of one output of a plain module; None for distributions.

    Raises:
        ConfigError: if it is no module.
    """
    if not isinstance(built, nn.Module):
        raise ConfigError(
            f"{what} must build a network or a torch.nn.Module, got "
            f"{type(built).__name__}"
        )
    if hasattr(built, "state_spec"):
        return built
    return _PlainNetwork(input_spec, built, output_shape, what)


def as_critic_network(built: Any, what: str) -> Any:
    """What a constructor built, if it can be used as a ``CriticNetwork``.

    Raises:
        ConfigError: naming what it lacks.
    """
    missing = [
        name
        for name in ("state_spec", "encode", "evaluate")
        if not hasattr(built, name)
    ]
    if missing:
        raise ConfigError(
            f"{what} must build a CriticNetwork, got a {type(built).__name__}, which "
            f"has no {', '.join(missing)}. Derive from CriticNetwork."
        )
    return built


def leaf_name(root: str, path: str) -> str:
    """What messages call the leaf at ``path`` of the nest ``root``."""
    if path == "<root>":
        return root
    return root + path if path.startswith("[") else f"{root}.{path}"
