"""A few steps of all environments, on their way to the rings of a replay buffer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite.replay_buffers.batch_flattener import Leaves
from alf_lite.replay_buffers.row_layout import RowLayout

_MAX_STEPS = 64
_MAX_BYTES = 2**20


class _Place(NamedTuple):
    """The leaves of some rows, [T, E, ...] each, as two kinds of views."""

    tensors: list[Tensor]
    arrays: list[np.ndarray]  # none if the rows are not on the CPU


class StagedSteps:
    """Rows [T, E] in one small block.

    Steps that come one by one or a few at a time are collected here and moved to the
    rings together: storing them costs little more than the copies of their leaves.

    Args:
        layout: of a row.
        num_environments: E.
        max_steps: hold no more than so many.
        device: where the rows are.

    Attributes:
        rows: uint8 [max, E, row_bytes], of which the first ``num_steps`` are in use.
        num_steps: T.
    """

    def __init__(
        self,
        layout: RowLayout,
        num_environments: int,
        max_steps: int,
        device: torch.device,
    ) -> None:
        self._layout = layout
        num_that_fit = _MAX_BYTES // (num_environments * layout.row_bytes)
        self._max_steps = min(max(num_that_fit, 1), _MAX_STEPS, max_steps)
        shape = (self._max_steps, num_environments, layout.row_bytes)
        self.rows = torch.empty(shape, dtype=torch.uint8, device=device)
        self.num_steps = 0
        # (first, number of steps) -> the leaves of the rows there.
        self._places: dict[tuple[int, int], _Place] = {}

    def add(self, leaves: Leaves, num_steps: int) -> bool:
        """Copies some steps behind those that are here, if there is room.

        Args:
            leaves: [num_steps, E, ...] each, or [E, ...] for one step; arrays only if
                the rows are on the CPU.
            num_steps: how many.
        """
        first = self.num_steps
        if first + num_steps > self._max_steps:
            return False
        place = self._places.get((first, num_steps))
        if place is None:
            place = self._find_place(first, num_steps)
        if type(leaves[0]) is np.ndarray:
            for array, leaf in zip(place.arrays, leaves, strict=True):
                array[...] = leaf
        else:
            torch._foreach_copy_(place.tensors, leaves)
        self.num_steps = first + num_steps
        return True

    def _find_place(self, first: int, num_steps: int) -> _Place:
        steps = slice(first, first + num_steps)
        # Ordinary tensors, whoever writes them first.
        with torch.inference_mode(False):
            tensors = [leaf[steps] for leaf in self._layout.views(self.rows)]
        arrays = []
        if self.rows.device.type == "cpu":
            arrays = [leaf[steps] for leaf in self._layout.fields(self.rows)]
        place = self._places[first, num_steps] = _Place(tensors, arrays)
        return place
