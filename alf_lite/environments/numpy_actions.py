"""Actions for vector environments that speak numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from alf_lite.environments import space_specs
from alf_lite.environments.observation_bounds import element_text
from alf_lite.environments.space_tree import SpaceLeaf
from alf_lite.errors import DivergedError


class ActionLeaf:
    """Converts one leaf of a batch of actions.

    Args:
        leaf: of the action space.
        batch_size: B.
    """

    def __init__(self, leaf: SpaceLeaf, batch_size: int) -> None:
        self._path = leaf.path
        spec = space_specs.action_leaf_spec(leaf)
        self.shape = torch.Size((batch_size, *leaf.shape))
        self._dtype = leaf.dtype
        self._is_continuous = spec.is_continuous
        if spec.is_continuous:
            assert isinstance(leaf.space, spaces.Box), leaf
            self._scale, self._shift, self._low, self._high = rescaling(leaf.space)
            # Most robots are driven in [-1, 1] anyway.
            self._is_rescaled = bool((self._scale != 1).any() or self._shift.any())
            if not self._is_rescaled:
                self._low = self._low.astype(np.float32)
                self._high = self._high.astype(np.float32)
        else:
            self._offset = space_specs.action_offset(leaf.space)

    def to_environment(self, action: Tensor, chosen: np.ndarray) -> np.ndarray:
        """What the environment is given for the agent's action, [B, ...].

        Args:
            action: [B, ...]; the caller may use the memory again.
            chosen: gets the action as the agent chose it.

        Raises:
            TypeError: if ``action`` is not a tensor of the spec's kind of dtype.
            ValueError: if its shape is not [B, ...].
            DivergedError: if it is not finite.
        """
        self._check(action)
        chosen[...] = action.numpy(force=True)
        if not self._is_continuous:
            shifted = chosen if self._offset is None else chosen + self._offset
            return shifted.astype(self._dtype)
        if not math.isfinite(np.vdot(chosen, chosen)):
            check_action_is_finite(self._path, chosen)
        if self._is_rescaled:
            chosen = chosen * self._scale + self._shift
        return np.minimum(np.maximum(chosen, self._low), self._high).astype(self._dtype)

    def _check(self, action: Any) -> None:
        if not isinstance(action, Tensor):
            raise TypeError(f"{self._path}: expected a tensor, got {type(action)}")
        if action.shape != self.shape:
            raise ValueError(
                f"{self._path}: expected shape {tuple(self.shape)} (batch first), got "
                f"{tuple(action.shape)}"
            )
        if action.dtype.is_floating_point and not self._is_continuous:
            raise TypeError(f"{self._path}: expected integers, got {action.dtype}")


def rescaling(space: spaces.Box) -> tuple[np.ndarray, ...]:
    """What maps [-1, 1] to a Box: (scale, shift, low, high).

    The environment gets clip(scale · action + shift, low, high). In double precision,
    so that the ends are met exactly.
    """
    low, high = (bound.astype(np.float64) for bound in space_specs.float_bounds(space))
    rescaled = space_specs.is_rescaled(space)
    with np.errstate(invalid="ignore"):
        scale = np.where(rescaled, (high - low) / 2, 1.0)
        shift = np.where(rescaled, (high + low) / 2, 0.0)
    return scale, shift, low, high


def check_action_is_finite(path: str, array: np.ndarray) -> None:
    """Raises DivergedError naming the first element that is NaN or infinite."""
    wrong = ~np.isfinite(array)
    if wrong.any():
        where = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise DivergedError(
            f"the policy chose {path}{element_text(where)} = {array[where]} for "
            f"environment {where[0]}: its parameters or its inputs are not finite any "
            "more"
        )
