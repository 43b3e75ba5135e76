"""Recorded observations and actions of an environment as agents see and choose them.

Data sets hold what an environment itself returned and was given: actions between the
bounds of its Box, integers that begin at ``start``. See ``space_specs`` for the other
side.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.environments import space_specs
from alf_lite.environments.space_tree import SpaceLeaf, SpaceTree


class RecordedLeaf:
    """One leaf of recorded values.

    Args:
        leaf: of the space.
        offset: what the recorded integers have more than those of the agent.
        box: the bounds that recorded actions were clipped to and rescaled from.

    Attributes:
        dtype: of the space.
    """

    def __init__(
        self, leaf: SpaceLeaf, offset: Any, box: spaces.Box | None = None
    ) -> None:
        self.dtype = leaf.dtype
        self._offset = offset
        self._rescaling = None if box is None else space_specs.rescaling(box)

    def to_agent(self, array: np.ndarray) -> np.ndarray:
        """[N, ...] as recorded → [N, ...] as the agent's spec describes it.

        Continuous actions are clipped to the bounds of the Box first, as the
        environment does it; the result is float64 then.
        """
        if self._rescaling is not None:
            scale, shift, low, high = self._rescaling
            clipped = np.clip(array.astype(np.float64), low, high)
            # A Box may be a single point.
            action = (clipped - shift) / np.where(scale == 0, 1.0, scale)
            # What is infinite was never executed.
            return np.where(np.isfinite(array), action, array)
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
            _keys(leaf): RecordedLeaf(leaf, space_specs.offset(leaf.space))
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
    if (
        isinstance(space, spaces.Box)
        and space_specs.action_leaf_spec(leaf).is_continuous
    ):
        return RecordedLeaf(leaf, None, space)
    return RecordedLeaf(leaf, space_specs.action_offset(space))
