"""Wrappers for MiniGrid and BabyAI, whose observations have texts and names.

What the agent sees of the cells before it, or all that there is to know, in few numbers
and for little work, of one level or of some::

    create_environment:
      env_name = "minigrid:BabyAI-GoToLocal-v0"
      wrappers = [@MiniGridObservation]

    create_environment:
      env_name = "minigrid:MiniGrid-UnlockPickup-v0"
      wrappers = [@LevelSeeds, @MiniGridState]
    LevelSeeds.num_levels = 1
    MiniGridState.num_objects = 3  # the door, the key and the box
    MiniGridState.mission = False  # there is one box
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Box

from alf_lite.config import configurable
from alf_lite.errors import ConfigError, did_you_mean

Observation = dict[str, Any]

_WORDS = """
a after and at avoid ball behind blue box door end fetch find from front get go goal
green grey hallway in key lava left matching maze must near next object of on open
opening or pick purple put reach red right room rooms square the then to traverse unlock
up use yellow you your
"""
# All words of the missions of MiniGrid and BabyAI.
MISSION_WORDS = tuple(_WORDS.split())


class _MissionWrapper(gymnasium.ObservationWrapper):
    """Puts the words of the mission beside a vector, where there are several missions.

    Args:
        env: its observation is a Dict with a text, ``mission``.
        mission: whether the mission is observed; None: if the environment does not say
            that it is the same in all episodes. With it the observation is a Dict of
            the vector, ``view``, and ``mission``: for each word its place in the
            vocabulary, counted from 1, then zeros.
        max_mission_words: so many places; a longer mission is an error, because what
            would be cut off is part of the task. 72 are enough for all of BabyAI.
        vocabulary: a word that is not in it is an error.

    Raises:
        ConfigError: at a reset, see there; and if a mission that was left out changes.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        *,
        mission: bool | None = None,
        max_mission_words: int = 20,
        vocabulary: Sequence[str] = MISSION_WORDS,
    ) -> None:
        super().__init__(env)
        text = _entries(env).get("mission")
        if mission and text is None:
            raise ConfigError(
                f"{self._name}: there is no mission in the observation, "
                f"{env.observation_space}. Leave out {self._name}.mission."
            )
        # Of other classes, as that of BabyAI, the space does not tell.
        is_known = type(text).__name__ == "MissionSpace"
        only = is_known and not cast(Any, text).ordered_placeholders
        self._has_mission = mission or (mission is None and text is not None)
        self._only_mission: str | None = None
        if only and mission is None:
            self._has_mission = False
            self._only_mission = cast(Any, text).mission_func()
        self._num_words = max_mission_words
        self._ids = {word: i for i, word in enumerate(vocabulary, start=1)}
        self._text: str | None = None
        self._words = np.zeros(0, np.int64)  # of that text

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _set_view(self, size: int) -> None:
        """The view is a vector of so many numbers in [0, 1]."""
        self.observation_space = view = Box(0.0, 1.0, (size,), np.float32)
        if self._has_mission:
            words = Box(0, len(self._ids), (self._num_words,), np.int64)
            self.observation_space = spaces.Dict({"view": view, "mission": words})

    def view(self, observation: Any) -> np.ndarray:
        """The vector for what the environment has returned."""
        raise NotImplementedError

    def observation(self, observation: Any) -> Any:
        view = self.view(observation)
        if self._has_mission:
            return {"view": view, "mission": self._words_of(observation["mission"])}
        if self._only_mission is not None:
            self._check_is_only(observation["mission"])
        return view

    def _check_is_only(self, mission: str) -> None:
        if mission != self._only_mission:
            raise ConfigError(
                f"{self._name}: the mission is {mission!r}, and not always "
                f"{self._only_mission!r}, as the environment says. Set "
                f"{self._name}.mission = True, or False if it does not matter."
            )

    def _words_of(self, mission: str) -> np.ndarray:
        if mission != self._text:
            self._text, self._words = mission, self._read(mission)
        return self._words.copy()

    def _read(self, mission: str) -> np.ndarray:
        words = re.findall(r"\w+", mission.lower())
        unknown = [word for word in words if word not in self._ids]
        if unknown:
            raise ConfigError(
                f"{self._name}.vocabulary has no {unknown[0]!r}, which is in the "
                f"mission {mission!r}.{did_you_mean(unknown[0], self._ids)} Give all "
                "words that there are."
            )
        if len(words) > self._num_words:
            raise ConfigError(
                f"{self._name}.max_mission_words is {self._num_words}, but the mission "
                f"has {len(words)}: {mission!r}. 72 are enough for all of BabyAI."
            )
        padding = [0] * (self._num_words - len(words))
        return np.array([*(self._ids[word] for word in words), *padding], np.int64)


def _entries(env: gymnasium.Env) -> dict[str, gymnasium.Space]:
    space = env.observation_space
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {}


@configurable
class MiniGridObservation(_MissionWrapper):
    """What a MiniGrid agent sees and where it looks, as a vector of zeros and ones.

    A cell of the image is an object (of 11), a colour (of 6) and a state (of 4). Each
    becomes one-hot, as does the direction (of 4). Where episodes have missions of their
    own, as in BabyAI, the words of the mission come with it.

    Args:
        env: its observation is a Dict with an ``image`` [H, W, 3] and a ``direction``.
        **kwargs: ``mission``, whether it is observed (None: if it may change),
            ``max_mission_words``, ``vocabulary``; see the page on environments.

    Raises:
        ConfigError: if it is another.
    """

    _sizes = (11, 6, 4)  # of what the channels of a cell name

    def __init__(self, env: gymnasium.Env, **kwargs: Any) -> None:
        super().__init__(env, **kwargs)
        entries = _entries(env)
        image = entries.get("image")
        shape: tuple[int, ...] = getattr(image, "shape", None) or ()
        if len(shape) != 3 or shape[-1] != 3 or "direction" not in entries:
            raise ConfigError(
                "MiniGridObservation: expected the observation of a MiniGrid "
                "environment, a Dict with image [H, W, 3] and direction, got "
                f"{env.observation_space}"
            )
        self._tables = [np.eye(n, dtype=np.float32) for n in (*self._sizes, 4)]
        self._set_view(shape[0] * shape[1] * sum(self._sizes) + 4)

    def view(self, observation: Observation) -> np.ndarray:
        *tables, directions = self._tables
        image = np.asarray(observation["image"])
        cells = [table[image[..., i]].ravel() for i, table in enumerate(tables)]
        return np.concatenate([*cells, directions[observation["direction"]]])


@configurable
class MiniGridState(_MissionWrapper):
    """Where a MiniGrid agent is and how things are, as a vector of numbers in [0, 1].

    The column (of W), the row (of H) and the direction (of 4) of the agent are one-hot.
    Of each thing that can change, a door or what can be carried, there are five
    numbers: whether it is carried, open, locked, and its column / W and row / H, which
    are 0 where it is not in the grid. Things are in the order of their first places,
    row by row, what is in a box after it. Walls, goals and lava are left out: they are
    the same whenever a level is played. The mission comes with it as in
    :class:`MiniGridObservation`.

    Args:
        env: a MiniGrid.
        num_objects: of things; where a level has fewer, the others are 0.
        **kwargs: see :class:`MiniGridObservation`.

    Raises:
        ConfigError: if it is another environment or there are more things.
    """

    _num_features = 5

    def __init__(self, env: gymnasium.Env, *, num_objects: int, **kwargs: Any) -> None:
        super().__init__(env, **kwargs)
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
        self._set_view(self._length)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
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
        return self.observation(observation), info

    def view(self, observation: Any) -> np.ndarray:
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
