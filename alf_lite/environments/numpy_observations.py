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
        copy: whether the environment may change its arrays later.
    """

    def __init__(self, leaf: SpaceLeaf, batch_size: int, copy: bool) -> None:
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
        self._cast = None if target == leaf.dtype else target
        self._copy = copy
        self._bounds = ObservationBounds(leaf, spec, batch_size)

    def read(self, value: Any) -> np.ndarray:
        """``value`` as a fresh array [B, ...] of the spec's dtype, checked.

        Raises:
            EnvError: naming the path, the environment and the element.
        """
        array = value
        copy = self._copy
        if not (
            type(value) is np.ndarray
            and value.dtype == self._dtype
            and value.shape == self._shape
        ):
            array = self._column.convert(value)
            copy = True
        if self._cast is not None:
            with np.errstate(over="ignore"):  # what overflows is found below
                array = array.astype(self._cast)
        elif copy:
            array = array.copy()
        if self._offset is not None:
            array = array - self._offset
        self._bounds.check(array)
        return array
