"""gymnasium spaces as TensorSpecs, and what converts between the two sides.

    space                 observation                      action
    Box, floating point   float32, its bounds              float32 in [-1, 1], see below
    Box, integer          its dtype, its bounds            int64 from 0
    Discrete(n, start)    int64 in [0, n-1]                int64 in [0, n-1]
    MultiDiscrete         int64 from 0, maximum nvec - 1   the same
    MultiBinary           int8 in [0, 1]                   the same
    Dict, Tuple           dict, tuple                      the same

``start`` and the lower bounds of integer actions are taken off on the agent's side. An
action element with two finite bounds is rescaled from [-1, 1]; one without, or with one
only, is passed through, and clipped to the bound that it has.

Data sets hold what an environment itself returned and was given, the left side.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from alf_lite.environments.space_tree import SpaceLeaf, SpaceTree
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec

# Some environments write "no bound" as the largest number of a dtype.
_UNBOUNDED = 1e30
# torch cannot compute with these, so the next larger type that it has holds them.
_TORCH_DTYPES = {
    np.dtype(np.uint16): torch.int32,
    np.dtype(np.uint32): torch.int64,
    np.dtype(np.uint64): torch.int64,
}


def observation_spec(space: gymnasium.Space) -> NestedTensorSpec:
    """The specs of what agents see.

    Raises:
        ConfigError: naming the path and the space, if a part has no fixed shape.
    """
    tree = SpaceTree(space, "observation")
    return tree.join(list(map(observation_leaf_spec, tree.leaves)))


def action_spec(space: gymnasium.Space) -> NestedTensorSpec:
    """The specs of what agents choose.

    Raises:
        ConfigError: naming the path and the space, if a part has no fixed shape, or is
            an integer Box without bounds.
    """
    tree = SpaceTree(space, "action")
    return tree.join(list(map(action_leaf_spec, tree.leaves)))


def observation_leaf_spec(leaf: SpaceLeaf) -> TensorSpec:
    """The spec of one leaf of an observation space."""
    space = leaf.space
    if not isinstance(space, spaces.Box):
        return _integer_spec(leaf)
    dtype = _torch_dtype(leaf.dtype)
    if not dtype.is_floating_point:
        if (space.high > np.iinfo(np.int64).max).any():
            raise ConfigError(
                f"{leaf.path}: {space} has numbers above 2**63 - 1, which torch cannot "
                "hold. Bound the Box, or scale it with gymnasium.wrappers."
                "TransformObservation."
            )
        return BoundedTensorSpec(leaf.shape, dtype, space.low, space.high)
    low, high = float_bounds(space)
    if np.isinf(low).all() and np.isinf(high).all():
        return TensorSpec(leaf.shape, dtype)
    return BoundedTensorSpec(leaf.shape, dtype, low, high)


def action_leaf_spec(leaf: SpaceLeaf) -> TensorSpec:
    """The spec of one leaf of an action space."""
    space = leaf.space
    if not isinstance(space, spaces.Box):
        return _integer_spec(leaf)
    if leaf.dtype.kind in "iub":
        return _integer_action_spec(leaf)
    low, high = float_bounds(space)
    if np.isinf(low).all() and np.isinf(high).all():
        return TensorSpec(leaf.shape)
    bounded = is_rescaled(space)
    return BoundedTensorSpec(
        leaf.shape,
        torch.float32,
        np.where(bounded, -1.0, low),
        np.where(bounded, 1.0, high),
    )


def offset(space: gymnasium.Space) -> Any:
    """What the environment's integers have more than the agent's; None if nothing."""
    if isinstance(space, spaces.Discrete):
        return int(space.start) or None
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start, dtype=np.int64)
        return start if start.any() else None
    return None


def action_offset(space: gymnasium.Space) -> Any:
    """As :func:`offset`; the actions of an integer Box count from its lower bound."""
    return (
        space.low.astype(np.int64) if isinstance(space, spaces.Box) else offset(space)
    )


def is_rescaled(space: spaces.Box) -> np.ndarray:
    """Which elements of an action are rescaled from [-1, 1]."""
    low, high = float_bounds(space)
    return np.isfinite(low) & np.isfinite(high)


def rescaling(space: spaces.Box) -> tuple[np.ndarray, ...]:
    """What maps [-1, 1] to a Box: (scale, shift, low, high).

    The environment gets clip(scale · action + shift, low, high). In double precision,
    so that the ends are met exactly: float32 has no 0.1, but one above it.
    """
    low, high = _bounds(space)
    rescaled = is_rescaled(space)
    with np.errstate(invalid="ignore"):
        scale = np.where(rescaled, (high - low) / 2, 1.0)
        shift = np.where(rescaled, (high + low) / 2, 0.0)
    return scale, shift, low, high


def float_bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of specs, as float32; what is meant as no bound is infinite."""
    low, high = _bounds(space)
    return low.astype(np.float32), high.astype(np.float32)


def _bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    low = np.where(low < -_UNBOUNDED, -np.inf, low)
    return low, np.where(high > _UNBOUNDED, np.inf, high)


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    if dtype.kind == "f":
        return torch.float32
    if dtype in _TORCH_DTYPES:
        return _TORCH_DTYPES[dtype]
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _integer_spec(leaf: SpaceLeaf) -> BoundedTensorSpec:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return BoundedTensorSpec((), torch.int64, 0, int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        maximum = np.asarray(space.nvec, dtype=np.int64) - 1
        return BoundedTensorSpec(leaf.shape, torch.int64, 0, maximum)
    assert isinstance(space, spaces.MultiBinary), space
    return BoundedTensorSpec(leaf.shape, torch.int8, 0, 1)


def _integer_action_spec(leaf: SpaceLeaf) -> BoundedTensorSpec:
    space = leaf.space
    assert isinstance(space, spaces.Box)
    # As Python's integers: differences of int64 and uint64 overflow.
    low, high = space.low.astype(object), space.high.astype(object)
    if np.greater(high - low, 1 << 16).any():
        raise ConfigError(
            f"{leaf.path}: {space} has too many values to choose from. Bound the Box, "
            "or make it a floating point Box with gymnasium.wrappers.TransformAction."
        )
    count = np.asarray(high - low, np.int64)
    return BoundedTensorSpec(leaf.shape, torch.int64, 0, count)


# Recorded observations and actions


class RecordedLeaf:
    """One leaf of recorded values.

    Args:
        leaf: of the space.
        offset: what the recorded integers have more than those of the agent.
        box: the bounds that recorded actions were rescaled from.

    Attributes:
        dtype: of the space.
    """

    def __init__(
        self, leaf: SpaceLeaf, offset: Any, box: spaces.Box | None = None
    ) -> None:
        self.dtype = leaf.dtype
        self._space = leaf.space
        self._offset = offset
        # Of an image, say: nothing can be wrong.
        self._has_whole_dtype = isinstance(leaf.space, spaces.Box) and bool(
            leaf.dtype.kind == "b"
            or (leaf.dtype.kind in "iu" and _is_whole(leaf.space, leaf.dtype))
        )
        self._rescaling = None if box is None else rescaling(box)

    def is_read_as(self, other: RecordedLeaf) -> bool:
        """Whether recorded numbers are the same to an agent as those of another."""
        shape = self._space.shape or ()
        if shape != other._space.shape:
            return False
        # Two points tell a line.
        points = np.stack([np.zeros(shape), np.ones(shape)])
        return np.allclose(self.to_agent(points), other.to_agent(points))

    def check_range(self, name: str, array: np.ndarray) -> None:
        """Raises ValueError, if recorded integers cannot be of this space.

        Args:
            name: for the message.
            array: [N, ...], numbers.
        """
        if self.dtype.kind == "f":
            return
        if self._has_whole_dtype and array.dtype == self.dtype:
            return
        low, high = _integer_range(self._space)
        wrong = (array < low) | (array > high)
        if wrong.any():
            where = np.unravel_index(int(wrong.argmax()), wrong.shape)
            ends = [np.broadcast_to(end, array.shape)[where] for end in (low, high)]
            element = "".join(f"[{i}]" for i in where[1:])
            raise ValueError(
                f"{name}{element}: expected an integer from {ends[0]} to {ends[1]}, as "
                f"in {self._space}, got {array[where]}"
            )

    def to_agent(self, array: np.ndarray) -> np.ndarray:
        """[N, ...] as recorded → [N, ...] as the agent's spec describes it.

        Continuous actions become float64. Beyond the bounds of the Box they are beyond
        those of the spec.
        """
        if self._rescaling is not None:
            scale, shift, _, _ = self._rescaling
            # A Box may be a single point.
            return (array - shift) / np.where(scale == 0, 1.0, scale)
        if self._offset is not None:
            return array.astype(np.int64) - self._offset
        return array

    def to_environment(self, array: np.ndarray) -> np.ndarray:
        """The reverse: what the environment returned or was given, of its dtype."""
        if self._rescaling is not None:
            scale, shift, low, high = self._rescaling
            array = np.clip(array * scale + shift, low, high)
        elif self._offset is not None:
            array = array + self._offset
        return array.astype(self.dtype)


def _integer_range(space: gymnasium.Space) -> tuple[Any, Any]:
    """The least and the largest integers of a space."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start, np.int64)
        return start, start + np.asarray(space.nvec, np.int64) - 1
    if isinstance(space, spaces.Box) and space.dtype != np.bool_:
        return space.low, space.high
    return 0, 1


def _is_whole(space: spaces.Box, dtype: np.dtype) -> bool:
    info = np.iinfo(dtype)
    return bool((space.low == info.min).all() and (space.high == info.max).all())


class RecordedValues:
    """The leaves of observations and actions by their keys.

    Args:
        observation_space: of a single environment.
        action_space: of a single environment.

    Attributes:
        observation_space: as given.
        action_space: as given.
        observations: ``("arm", "0")`` → the leaf; ``()`` if there is only one.
        actions: likewise.
    """

    def __init__(
        self, observation_space: gymnasium.Space, action_space: gymnasium.Space
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.observations = {
            _keys(leaf): RecordedLeaf(leaf, offset(leaf.space))
            for leaf in SpaceTree(observation_space, "observation").leaves
        }
        self.actions = {
            _keys(leaf): _action_leaf(leaf)
            for leaf in SpaceTree(action_space, "action").leaves
        }


def _keys(leaf: SpaceLeaf) -> tuple[str, ...]:
    return tuple(map(str, leaf.keys))


def _action_leaf(leaf: SpaceLeaf) -> RecordedLeaf:
    space = leaf.space
    if isinstance(space, spaces.Box) and action_leaf_spec(leaf).is_continuous:
        return RecordedLeaf(leaf, None, space)
    return RecordedLeaf(leaf, action_offset(space))
