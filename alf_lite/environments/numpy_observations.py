"""Observations of vector environments that speak numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from alf_lite.environments import space_specs
from alf_lite.environments.observation_bounds import ObservationBounds
from alf_lite.environments.row_stacking import Column
from alf_lite.environments.space_tree import SpaceLeaf


class ObservationLeaf:
    """Reads one leaf of a batch of observations.

    Args:
        leaf: of the observation space.
        batch_size: B.
    """

    def __init__(self, leaf: SpaceLeaf, batch_size: int) -> None:
        self._path = leaf.path
        self._shape = (batch_size, *leaf.shape)
        self._dtype = leaf.dtype
        self._column = Column(
            leaf.path,
            self._shape,
            leaf.dtype,
            f"{leaf.dtype} of shape {self._shape} for {batch_size} x {leaf.space}",
        )
        spec = space_specs.observation_leaf_spec(leaf)
        self._offset = space_specs.offset(leaf.space)
        target = torch.empty(0, dtype=spec.dtype).numpy().dtype
        self._is_cast = target != leaf.dtype
        self._bounds = ObservationBounds(leaf, spec, batch_size)

    def write(self, value: Any, out: np.ndarray) -> None:
        """Copies ``value`` [B, ...] to ``out``, which has the spec's dtype, and checks.

        Raises:
            EnvError: naming the path, the environment and the element.
        """
        if not (
            type(value) is np.ndarray
            and value.dtype == self._dtype
            and value.shape == self._shape
        ):
            value = self._column.convert(value)
        if self._is_cast:
            with np.errstate(over="ignore"):  # what overflows is found below
                out[:] = value
        else:
            out[:] = value
        if self._offset is not None:
            out -= self._offset
        self._bounds.check(out)
