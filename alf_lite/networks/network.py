"""The base class of networks that may have a recurrent state."""

from __future__ import annotations

from typing import Any

from torch import nn

from alf_lite import nest
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


def leaf_name(root: str, path: str) -> str:
    """What messages call the leaf at ``path`` of the nest ``root``."""
    if path == "<root>":
        return root
    return root + path if path.startswith("[") else f"{root}.{path}"
