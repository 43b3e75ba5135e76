"""Action masks: the part of an observation that says which actions are allowed now."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


class ActionMask:
    """Takes the mask out of a dict of observations; the rest is for the networks.

    The mask has one entry for every value of every discrete component, one component
    after the other, and rules out a value by 0 or False. At least one value of each
    component should be left; where none is, as may be in a terminal state, the choice
    does not matter.

    Args:
        observation_spec: a dict.
        key: of the mask; None: there is none.
        num_values: entries that the mask must have.

    Raises:
        ValueError: if there is no such entry, or it has another size.
    """

    def __init__(
        self, observation_spec: NestedTensorSpec, key: str | None, num_values: int
    ) -> None:
        self._key = key
        self.remaining_spec = observation_spec
        if key is None:
            return
        if not isinstance(observation_spec, dict) or key not in observation_spec:
            raise ValueError(
                f"action mask: expected a dict of observations with the key {key!r}, "
                f"got {observation_spec}"
            )
        spec = observation_spec[key]
        if not isinstance(spec, TensorSpec) or spec.numel != num_values:
            raise ValueError(
                f"action mask: observation[{key!r}] must have one entry for each of "
                f"the {num_values} values of the action, got {spec}"
            )
        self._num_dims = spec.ndim
        self.remaining_spec = self._without_mask(observation_spec)

    def split(self, observation: Nest) -> tuple[Nest, Tensor | None]:
        """Observations [B, ...] → (those for the networks, mask [B, num_values] bool).

        The mask is None if there is no key.
        """
        if self._key is None:
            return observation, None
        mask = observation[self._key].bool()
        if self._num_dims != 1:
            mask = mask.reshape(mask.shape[0], -1)
        return self._without_mask(observation), mask

    def _without_mask(self, entries: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in entries.items() if key != self._key}
