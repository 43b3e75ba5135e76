"""Turns images of bytes into floating point numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.data_transformer import SingleStepTransformer
from alf_lite.data_transformers.observation_leaves import replace_specs, select_leaves
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec


@configurable
class ImageScaleTransformer(SingleStepTransformer):
    """Maps uint8 values 0 ... 255 to float32 values ``minimum`` ... ``maximum``.

    Replay buffers keep the bytes, a quarter of the memory.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        minimum: what 0 becomes.
        maximum: what 255 becomes.
        fields: names of the images, such as ``["camera"]``; None for all uint8 parts.

    Raises:
        ConfigError: if a field does not exist or is not uint8, or there is none.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        minimum: float = -1.0,
        maximum: float = 1.0,
        fields: Sequence[str] | None = None,
    ) -> None:
        if not minimum < maximum:
            raise ConfigError(
                "ImageScaleTransformer: minimum must be less than maximum, got "
                f"{minimum} and {maximum}"
            )
        positions = select_leaves(
            observation_spec, fields, lambda spec: spec.dtype == torch.uint8, "uint8"
        ).values()
        super().__init__(
            observation_spec,
            reward_spec,
            transformed_observation_spec=replace_specs(
                observation_spec,
                positions,
                lambda spec: BoundedTensorSpec(
                    spec.shape, torch.float32, minimum, maximum
                ),
            ),
        )
        self._positions = list(positions)
        self._minimum = minimum
        self._range = maximum - minimum

    def transform(self, time_step: TimeStep) -> TimeStep:
        observation = time_step.observation
        leaves = nest.flatten(observation)
        for i in self._positions:
            # Divided first: 255 becomes exactly 1, and so the exact maximum.
            leaves[i] = (leaves[i] / 255).mul_(self._range).add_(self._minimum)
        return time_step._replace(
            observation=nest.pack_sequence_as(observation, leaves)
        )
