"""Environments of many levels: every episode is one of them, drawn by weights.

A level is a seed of one environment, :class:`LevelSeeds`, or one of several
environments, :class:`TaskMixture`. The infos say which one it is; in a conf::

    create_environment.wrappers = [@LevelSeeds]
    create_environment.env_info_keys = ["level"]
    LevelSeeds.num_levels = 200
    evaluation/LevelSeeds.first_level = 1000

The weights are equal until someone sets others by ``set_level_weights``, such as the
hook ``LevelReplay``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.environments import env_ids, single_env
from alf_lite.environments.episode_wrappers import RandomFirstEpisodeLength
from alf_lite.errors import ConfigError

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class LevelDraws:
    """Which level comes next.

    What is drawn depends on a key, the number of levels so far and the weights alone.
    The next level is known beforehand, so that its state says it even if the weights
    become others: an episode can be brought back when they have.

    Args:
        num_levels: N.
    """

    def __init__(self, num_levels: int) -> None:
        self._ends = np.arange(1, num_levels + 1) / num_levels
        self.begin(None)

    def begin(self, seed: int | None) -> None:
        """Begins anew; the first level is drawn by equal weights."""
        entropy = np.random.SeedSequence(seed).entropy
        self._key, self._num_drawn = int(entropy), 0  # type: ignore[arg-type]
        self._next = int(self._uniform() * len(self._ends))

    def take(self) -> int:
        """The next level."""
        level, self._next = self._next, -1
        self._num_drawn += 1
        self._draw()
        return level

    def set_weights(self, weights: Sequence[float] | np.ndarray) -> None:
        """Draws by these weights [N] from the next level on.

        Raises:
            ConfigError: if they are more or fewer, negative, or all 0.
        """
        array = np.asarray(weights, np.float64)
        if array.shape != self._ends.shape:
            raise ConfigError(
                f"level weights: there are {len(self._ends)} levels, got weights of "
                f"shape {array.shape}"
            )
        total = array.sum()
        if not (np.isfinite(total) and total > 0 and (array >= 0).all()):
            raise ConfigError(
                "level weights must be finite, at least 0 and not all 0, got "
                f"{array.min()} to {array.max()}"
            )
        self._ends = np.cumsum(array) / total
        if self._num_drawn:
            self._draw()

    def _draw(self) -> None:
        # What is 0 wide is never hit from the right.
        found = np.searchsorted(self._ends, self._uniform(), side="right")
        self._next = min(int(found), len(self._ends) - 1)

    def _uniform(self) -> float:
        """In [0, 1)."""
        sequence = np.random.SeedSequence(self._key, spawn_key=(self._num_drawn,))
        return int(sequence.generate_state(1, np.uint64)[0]) / 2**64

    @property
    def state(self) -> list[int]:
        """All but the weights."""
        return [self._key, self._num_drawn, self._next]

    def set_state(self, state: list[int]) -> None:
        """Goes on where ``state`` was read."""
        self._key, self._num_drawn, self._next = state


@configurable
class LevelSeeds(gymnasium.Wrapper):
    """Plays N levels of an environment, each of them one seed of it.

    The info of every step has ``level``, a number from 0 to N-1.

    Args:
        env: whatever is random in it is as its seed says.
        num_levels: N.
        first_level: the seed of level 0; those of the others follow.

    Raises:
        ConfigError: if one of them is out of range, or all episodes of ``env`` would be
            cut off as first ones.
    """

    def __init__(
        self, env: gymnasium.Env, *, num_levels: int, first_level: int = 0
    ) -> None:
        super().__init__(env)
        if num_levels < 1 or first_level < 0:
            raise ConfigError(
                "LevelSeeds: num_levels must be at least 1 and first_level at least 0, "
                f"got {num_levels} and {first_level}"
            )
        _check_first_episodes("LevelSeeds", env)
        self._first_level = first_level
        self._draws = LevelDraws(num_levels)
        self._level = 0

    def set_level_weights(self, weights: Sequence[float] | np.ndarray) -> None:
        """How often each level [N] comes, from the next one on."""
        self._draws.set_weights(weights)

    def get_random_state(self) -> list[int]:
        """See :class:`LevelDraws`."""
        return self._draws.state

    def set_random_state(self, state: list[int]) -> None:
        """What ``get_random_state`` returned."""
        self._draws.set_state(state)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Reset:
        if seed is not None:
            self._draws.begin(seed)
        self._level = self._draws.take()
        observation, info = self.env.reset(
            seed=self._first_level + self._level, options=options
        )
        return observation, {**info, "level": self._level}

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "level": self._level}
        return observation, reward, terminated, truncated, info


@configurable
class TaskMixture(gymnasium.Env):
    """Several environments, of which every episode plays one.

    The info of every step has ``level``, the number of the task. In a conf::

        create_environment.env_ctor = @TaskMixture
        TaskMixture.tasks = ["CartPole-v1", @my_module.LongPole]

    Args:
        tasks: ids of environments, or what returns one when it is called. All have the
            same spaces.
        observe_task: observe {"observation": that of the task, "task": its number}.
        render_mode: of all of them, as far as they are given by their ids.

    Raises:
        ConfigError: if there is none, or their spaces differ, or all episodes of one
            would be cut off as first ones.
    """

    def __init__(
        self,
        tasks: Sequence[str | Callable[[], gymnasium.Env]],
        *,
        observe_task: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if not tasks or isinstance(tasks, str):
            raise ConfigError(
                f"TaskMixture: tasks must be a list of environments, got {tasks!r}"
            )
        self._envs = [_make(task, render_mode) for task in tasks]
        for env in self._envs:
            _check_first_episodes("TaskMixture", env)
        descriptions = [single_env.describe_env(env) for env in self._envs]
        single_env.check_same_spaces(descriptions)
        first = descriptions[0]
        self.observation_space = first.observation_space
        self.action_space = first.action_space
        self.reward_space = first.reward_space
        self.metadata = first.metadata
        self.render_mode = first.render_mode
        self._observe_task = observe_task
        if observe_task:
            self.observation_space = spaces.Dict(
                {
                    "observation": first.observation_space,
                    "task": spaces.Discrete(len(self._envs)),
                }
            )
        self._draws = LevelDraws(len(self._envs))
        self._task = 0

    def set_level_weights(self, weights: Sequence[float] | np.ndarray) -> None:
        """How often each task comes, from the next episode on."""
        self._draws.set_weights(weights)

    def get_random_state(self) -> list[int]:
        """See :class:`LevelDraws`."""
        return self._draws.state

    def set_random_state(self, state: list[int]) -> None:
        """What ``get_random_state`` returned."""
        self._draws.set_state(state)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Reset:
        super().reset(seed=seed)
        if seed is not None:
            self._draws.begin(seed)
        self._task = self._draws.take()
        # Of its own random stream nothing is remembered where a run is resumed.
        episode_seed = int(self.np_random.integers(2**31))
        observation, info = self._envs[self._task].reset(
            seed=episode_seed, options=options
        )
        return self._with_task(observation), {**info, "level": self._task}

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self._envs[self._task].step(
            action
        )
        info = {**info, "level": self._task}
        return self._with_task(observation), reward, terminated, truncated, info

    def _with_task(self, observation: Any) -> Any:
        if not self._observe_task:
            return observation
        return {"observation": observation, "task": np.int64(self._task)}

    def render(self) -> Any:
        return self._envs[self._task].render()

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _make(task: str | Callable[[], gymnasium.Env], render_mode: str | None) -> Any:
    if callable(task):
        return task()
    return gymnasium.make(env_ids.find_spec(task), render_mode=render_mode)


def _check_first_episodes(owner: str, env: gymnasium.Env) -> None:
    """Raises ConfigError if what begins anew with a seed were reset with one always."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, RandomFirstEpisodeLength):
            raise ConfigError(
                f"{owner} also resets RandomFirstEpisodeLength with a seed: "
                f"every episode would be cut off. Put it around {owner}: "
                "create_environment.wrappers has the innermost first."
            )
        env = env.env
