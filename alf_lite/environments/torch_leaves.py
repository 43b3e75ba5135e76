"""Observations and actions of vector environments that speak torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from alf_lite.environments import space_specs
from alf_lite.environments.numpy_actions import check_action_is_finite, rescaling
from alf_lite.environments.observation_bounds import ObservationBounds
from alf_lite.environments.space_tree import SpaceLeaf
from alf_lite.errors import EnvError


class TorchObservationLeaf:
    """Reads and checks one leaf of a batch of observations."""

    def __init__(self, leaf: SpaceLeaf, batch_size: int, device: torch.device) -> None:
        self.leaf = leaf
        self._spec = space_specs.observation_leaf_spec(leaf)
        self._shape = (batch_size, *leaf.shape)
        self._bounds = ObservationBounds(leaf, self._spec, batch_size)
        self._offset = _constant(space_specs.offset(leaf.space), device)
        self.bad = torch.zeros(batch_size, dtype=torch.bool, device=device)

    def read(self, value: Any, copy: bool, check: bool) -> Tensor:
        """A tensor [B, ...] of the spec's dtype; ``bad`` collects what is not valid."""
        path, dtype = self.leaf.path, self._spec.dtype
        if not isinstance(value, Tensor):
            raise EnvError(f"{path}: expected a torch tensor, got {type(value)}")
        fits = value.is_floating_point() == dtype.is_floating_point
        if value.shape != self._shape or not fits:
            raise EnvError(
                f"{path}: expected {dtype} of shape {self._shape}, got {value.dtype} "
                f"of shape {tuple(value.shape)}"
            )
        tensor = value.to(dtype)
        if self._offset is not None:
            tensor = tensor - self._offset
        elif copy and tensor is value:
            tensor = value.clone()
        if dtype.is_floating_point:
            finite = tensor.isfinite().reshape(self._shape[0], -1).all(1)
            self.bad = self.bad | ~finite
        if check:
            self._bounds.check(tensor.numpy(force=True))
        return tensor


class TorchActionLeaf:
    """Converts one leaf of a batch of actions."""

    def __init__(self, leaf: SpaceLeaf, batch_size: int, device: torch.device) -> None:
        self._path = leaf.path
        self._spec = space_specs.action_leaf_spec(leaf)
        self._shape = (batch_size, *leaf.shape)
        self._device = device
        self._dtype = torch.from_numpy(np.empty(0, leaf.dtype)).dtype
        if self._spec.is_continuous:
            assert isinstance(leaf.space, spaces.Box), leaf
            # Not every device has double precision.
            dtype = torch.float32 if device.type == "mps" else torch.float64
            constants = (
                torch.as_tensor(c, dtype=dtype, device=device)
                for c in rescaling(leaf.space)
            )
            self._scale, self._shift, self._low, self._high = constants
        else:
            self._offset = _constant(space_specs.action_offset(leaf.space), device)

    def zeros(self) -> Tensor:
        return torch.zeros(self._shape, dtype=self._spec.dtype, device=self._device)

    def read(self, action: Any) -> Tensor:
        """A fresh tensor [B, ...] of the action as the agent chose it."""
        if not isinstance(action, Tensor):
            raise TypeError(f"{self._path}: expected a tensor, got {type(action)}")
        if action.shape != self._shape:
            raise ValueError(
                f"{self._path}: expected shape {self._shape} (batch first), got "
                f"{tuple(action.shape)}"
            )
        if action.is_floating_point() and self._spec.is_discrete:
            raise TypeError(f"{self._path}: expected integers, got {action.dtype}")
        return action.detach().to(self._device, self._spec.dtype, copy=True)

    def check(self, action: Tensor) -> None:
        """Raises DivergedError, if ``action`` is not finite."""
        if self._spec.is_continuous:
            check_action_is_finite(self._path, action.numpy(force=True))

    def to_environment(self, action: Tensor) -> Tensor:
        """What the environment is given for the agent's action, [B, ...]."""
        if self._spec.is_discrete:
            shifted = action if self._offset is None else action + self._offset
            return shifted.to(self._dtype, copy=True)
        scaled = action * self._scale + self._shift
        return scaled.maximum(self._low).minimum(self._high).to(self._dtype)


def _constant(value: Any, device: torch.device) -> Any:
    return None if value is None else torch.as_tensor(value, device=device)


def expand_mask(mask: Tensor, tensor: Tensor) -> Tensor:
    """``mask`` [B] with as many dimensions as ``tensor`` [B, ...]."""
    return mask.reshape(-1, *[1] * (tensor.ndim - 1))
