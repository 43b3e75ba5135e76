"""Nests of continuous actions between finite bounds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.distributions.continuous import ActionBounds
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec

Nest = Any


class BoxActions:
    """A nest of boxes and the affine maps between them and [-1, 1].

    Args:
        action_spec: nest of float specs with finite bounds, minimum < maximum.

    Raises:
        ValueError: if a leaf is no such box; the message names its path.
    """

    def __init__(self, action_spec: NestedTensorSpec) -> None:
        self._action_spec = action_spec
        leaves = nest.flatten_with_path(action_spec)
        if not leaves:
            raise ValueError("action_spec: expected at least one TensorSpec, got none")
        self._bounds = [_bounds(path, spec) for path, spec in leaves]
        self.numel = sum(bounds.spec.numel for bounds in self._bounds)

    @property
    def log_scale(self) -> float:
        """Logarithm of the volume of the box over that of the box [-1, 1].

        A density of actions has this much more entropy than that of their vectors.
        """
        unit = self.numel * math.log(2.0)
        return sum(bounds.log_volume for bounds in self._bounds) - unit

    def to_vector(self, action: Nest) -> Tensor:
        """Nest of [B, *spec.shape] in their bounds → [B, numel] in [-1, 1]."""
        columns = [
            bounds.to_symmetric(leaf).reshape(leaf.shape[0], bounds.spec.numel)
            for bounds, leaf in zip(self._bounds, nest.flatten(action), strict=True)
        ]
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def to_action(self, vector: Tensor) -> Nest:
        """[B, numel] in [-1, 1] → nest of [B, *spec.shape] in their bounds."""
        columns = vector.split([bounds.spec.numel for bounds in self._bounds], dim=1)
        leaves = [
            bounds.from_symmetric(column.reshape(-1, *bounds.spec.shape))
            for bounds, column in zip(self._bounds, columns, strict=True)
        ]
        return nest.pack_sequence_as(self._action_spec, leaves)


def _bounds(path: str, spec: Any) -> ActionBounds:
    if not isinstance(spec, TensorSpec) or spec.is_discrete:
        raise ValueError(f"{path}: expected a continuous action, got {spec}")
    if not isinstance(spec, BoundedTensorSpec):
        raise ValueError(
            f"{path}: expected finite bounds for a continuous action, got {spec}"
        )
    try:
        return ActionBounds(spec)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
