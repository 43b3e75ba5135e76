"""Wrappers for MiniGrid, whose observation has a text and numbers that are names.

What the agent sees of the cells before it, or all that there is to know, in few numbers
and for little work, of one level or of some::

    create_environment:
      env_name = "minigrid:MiniGrid-DoorKey-5x5-v0"
      wrappers = [@MiniGridObservation]

    create_environment:
      env_name = "minigrid:MiniGrid-UnlockPickup-v0"
      wrappers = [@LevelSeeds, @MiniGridState]
    LevelSeeds.num_levels = 1
    MiniGridState.num_objects = 3  # the door, the key and the box
"""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box

from alf_lite.config import configurable
from alf_lite.errors import ConfigError

Observation = dict[str, Any]


@configurable
class MiniGridObservation(gymnasium.ObservationWrapper):
    """What a MiniGrid agent sees and where it looks, as a vector of zeros and ones.

    A cell of the image is an object (of 11), a colour (of 6) and a state (of 4). Each
    becomes one-hot, as does the direction (of 4). The text of the mission is left out:
    it is the same in all episodes of most tasks.

    Args:
        env: its observation is a Dict with an ``image`` [H, W, 3] and a ``direction``.

    Raises:
        ConfigError: if it is another.
    """

    _sizes = (11, 6, 4)  # of what the channels of a cell name

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        entries = space.spaces if isinstance(space, spaces.Dict) else {}
        image = entries.get("image")
        shape: tuple[int, ...] = getattr(image, "shape", None) or ()
        if len(shape) != 3 or shape[-1] != 3 or "direction" not in entries:
            raise ConfigError(
                "MiniGridObservation: expected the observation of a MiniGrid "
                f"environment, a Dict with image [H, W, 3] and direction, got {space}"
            )
        self._tables = [np.eye(n, dtype=np.float32) for n in (*self._sizes, 4)]
        size = shape[0] * shape[1] * sum(self._sizes) + 4
        self.observation_space = Box(0.0, 1.0, (size,), np.float32)

    def observation(self, observation: Observation) -> np.ndarray:
        *tables, directions = self._tables
        image = np.asarray(observation["image"])
        cells = [table[image[..., i]].ravel() for i, table in enumerate(tables)]
        return np.concatenate([*cells, directions[observation["direction"]]])


@configurable
class MiniGridState(gymnasium.ObservationWrapper):
    """Where a MiniGrid agent is and how things are, as a vector of numbers in [0, 1].

    The column (of W), the row (of H) and the direction (of 4) of the agent are one-hot.
    Of each thing that can change, a door or what can be carried, there are five
    numbers: whether it is carried, open, locked, and its column / W and row / H, which
    are 0 where it is not in the grid. Things are in the order of their first places,
    row by row, what is in a box after it. Walls, goals and lava are left out: they are
    the same whenever a level is played.

    Args:
        env: a MiniGrid.
        num_objects: of things; where a level has fewer, the others are 0.

    Raises:
        ConfigError: if it is another environment or there are more things.
    """

    _num_features = 5

    def __init__(self, env: gymnasium.Env, *, num_objects: int) -> None:
        super().__init__(env)
        if num_objects < 0:
            raise ConfigError(
                f"MiniGridState: num_objects must be at least 0, got {num_objects}"
            )
        self._grid_env = cast(Any, env.unwrapped)
        if not all(hasattr(env.unwrapped, name) for name in ("width", "carrying")):
            raise ConfigError(
                "MiniGridState: expected a MiniGrid environment, which has a width and "
                f"a carried object, got {type(env.unwrapped).__name__}"
            )
        self._size = (self._grid_env.width, self._grid_env.height)
        self._num_objects = num_objects
        self._objects: list[tuple[Any, tuple[int, int]]] = []  # and their first places
        self._length = sum(self._size) + 4 + self._num_features * num_objects
        self.observation_space = Box(0.0, 1.0, (self._length,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        _, info = self.env.reset(**kwargs)
        width = self._size[0]
        self._objects = []
        for i, thing in enumerate(self._grid_env.grid.grid):
            while thing is not None and (thing.type == "door" or thing.can_pickup()):
                self._objects.append((thing, (i % width, i // width)))
                thing = thing.contains
        if len(self._objects) > self._num_objects:
            names = ", ".join(thing.type for thing, _ in self._objects)
            raise ConfigError(
                f"MiniGridState: num_objects is {self._num_objects}, but this level of "
                f"{self._grid_env.spec.id} has {len(self._objects)}: {names}"
            )
        return self.observation(None), info

    def observation(self, observation: Any) -> np.ndarray:
        env, (width, height) = self._grid_env, self._size
        vector = np.zeros(self._length, np.float32)
        column, row = env.agent_pos
        vector[[column, width + row, width + height + env.agent_dir]] = 1.0
        begin = width + height + 4
        for thing, place in self._objects:
            if thing.type != "door":
                place = thing.cur_pos
            numbers = vector[begin : begin + self._num_features]
            numbers[0] = thing is env.carrying
            numbers[1] = getattr(thing, "is_open", False)
            numbers[2] = getattr(thing, "is_locked", False)
            if place is not None and not numbers[0] and env.grid.get(*place) is thing:
                numbers[3:] = place[0] / width, place[1] / height
            begin += self._num_features
        return vector
