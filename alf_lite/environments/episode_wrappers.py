"""Wrappers of any single environment: ends, rewards, and what the agent observes.

In a conf; evaluations may have other ones than the training::

    create_environment.wrappers = [@ActionObservation, @RandomFirstEpisodeLength]
    evaluation/create_environment.wrappers = [@ActionObservation]

What lasts longer than an episode, random numbers among it, is told by
``get_random_state``, so that a resumed run does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.environments import single_env
from alf_lite.errors import ConfigError

Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, Any, bool, bool, dict[str, Any]]


@configurable
class TimeLimitIsNoEnd(gymnasium.Wrapper):
    """Calls an end truncated that the environment calls terminated.

    For environments whose own time limit comes as ``terminated``: the value of what
    would have come afterwards is lost to the agent otherwise.

    Args:
        env: says ``terminated`` at its time limit.
        num_steps: of the limit; an earlier end stays what it is. 0: no end of any kind
            is terminal. :class:`IgnoreTermination` does that where no wrapper can be,
            and to recorded steps.
    """

    def __init__(self, env: gymnasium.Env, *, num_steps: int) -> None:
        super().__init__(env)
        if num_steps < 0:
            raise ConfigError(
                f"TimeLimitIsNoEnd: num_steps must be at least 0, got {num_steps}"
            )
        self._limit = num_steps
        self._num_steps = 0

    def reset(self, **kwargs: Any) -> Reset:
        self._num_steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._num_steps += 1
        if terminated and self._num_steps >= self._limit:
            terminated, truncated = False, True
        return observation, reward, terminated, truncated, info


class _RandomWrapper(gymnasium.Wrapper):
    """With random numbers of its own: LevelSeeds inside begins the environment's anew.

    Those of an episode depend on the latest seed and on how many began since then.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._begin(None)

    def _begin(self, seed: int | None) -> None:
        self._key, self._num_begun = np.random.SeedSequence(seed).entropy, 0

    def get_random_state(self) -> list[Any]:
        """The seed, and how many episodes have begun."""
        return [self._key, self._num_begun]

    def set_random_state(self, state: list[Any]) -> None:
        """What ``get_random_state`` returned."""
        self._key, self._num_begun = state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Reset:
        if seed is not None:
            self._begin(seed)
        spawn_key = (*type(self).__name__.encode(), self._num_begun)
        sequence = np.random.SeedSequence(self._key, spawn_key=spawn_key)
        self._random = np.random.default_rng(sequence)
        self._num_begun += 1
        return self.env.reset(seed=seed, options=options)


@configurable
class RandomFirstEpisodeLength(_RandomWrapper):
    """Cuts the first episodes off after a random number of steps.

    Environments whose episodes are all of one length would otherwise be at the same
    step for ever, and every unroll would show the same part of an episode. A reset with
    a seed begins anew, so leave this out of evaluations, which have one each.

    Args:
        env: any.
        max_length: of these episodes; the length is uniform between 1 and this.
        num_episodes: how many episodes after a reset with a seed are cut.
    """

    def __init__(
        self, env: gymnasium.Env, *, max_length: int, num_episodes: int = 1
    ) -> None:
        super().__init__(env)
        if max_length < 1 or num_episodes < 0:
            raise ConfigError(
                "RandomFirstEpisodeLength: max_length must be at least 1 and "
                f"num_episodes at least 0, got {max_length} and {num_episodes}"
            )
        self._max_length = max_length
        self._num_episodes = num_episodes
        self._num_steps = 0
        self._length: int | None = None  # of this episode; None: its own

    def reset(self, **kwargs: Any) -> Reset:
        result = super().reset(**kwargs)
        self._num_steps = 0
        self._length = None
        if self._num_begun <= self._num_episodes:
            self._length = int(self._random.integers(self._max_length)) + 1
        return result

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._num_steps += 1
        if self._num_steps == self._length and not terminated:
            truncated = True
        return observation, reward, terminated, truncated, info


class ExtraEntry(gymnasium.Wrapper):
    """Adds an entry to the observation, which is "observation" in a Dict if it is none.

    Args:
        env: any.
        key: of the entry.
        space: of the entry.
        advice: what to do if the observation has such an entry.

    Raises:
        ConfigError: if it has.
    """

    def __init__(
        self, env: gymnasium.Env, key: str, space: gymnasium.Space, advice: str
    ) -> None:
        super().__init__(env)
        self._key = key
        seen = env.observation_space
        self._is_dict = isinstance(seen, spaces.Dict)
        entries = dict(seen) if isinstance(seen, spaces.Dict) else {"observation": seen}
        if key in entries:
            raise ConfigError(
                f"{type(self).__name__}: the observation has an entry {key!r} already. "
                f"{advice}"
            )
        self.observation_space = spaces.Dict({**entries, key: space})

    def with_entry(self, observation: Any, entry: Any) -> dict[str, Any]:
        """The observation of ``env``, and the entry."""
        entries = observation if self._is_dict else {"observation": observation}
        return {**entries, self._key: entry}


@configurable
class ActionObservation(ExtraEntry):
    """Adds the action that led here to the observation.

    The observation becomes {"observation": what it was, "prev_action": the action}. If
    it is a Dict, the action becomes one more entry of it. At the begin of an episode it
    is 0, or the value of the space that is nearest to 0.

    Args:
        env: any.
        key: of the action in the observation.

    Raises:
        ConfigError: if the observation has such an entry.
    """

    def __init__(self, env: gymnasium.Env, *, key: str = "prev_action") -> None:
        super().__init__(env, key, env.action_space, "Set ActionObservation.key.")
        self._none = _nearest_to_zero(env.action_space)

    def reset(self, **kwargs: Any) -> Reset:
        observation, info = self.env.reset(**kwargs)
        return self.with_entry(observation, self._none), info

    def step(self, action: Any) -> Step:
        observation, *rest = self.env.step(action)
        return self.with_entry(observation, action), *rest  # type: ignore[return-value]


def _nearest_to_zero(space: gymnasium.Space) -> Any:
    """An element of ``space``."""
    if isinstance(space, spaces.Dict):
        return {name: _nearest_to_zero(part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_nearest_to_zero, space))
    if isinstance(space, spaces.Box):
        zeros = np.zeros(space.shape, space.dtype)
        return np.clip(zeros, space.low, space.high).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return np.clip(0, space.start, space.start + space.n - 1).astype(space.dtype)
    zeros = np.zeros(space.shape or (), space.dtype)
    return zeros + getattr(space, "start", 0)


@configurable
class ActionRepeat(gymnasium.Wrapper):
    """Does every action several times, as one step whose reward is their sum.

    γ and all counts are in these longer steps; a time limit of ``env`` is in its own,
    and so is ``create_environment.max_episode_steps``. What an info says is that of the
    last of them. For hindsight, ``compute_reward`` knows of one step only. Atari games
    have ``atari_preprocessing.frame_skip``; for a number of repetitions that the policy
    chooses, see ``DynamicActionRepeatAgent``.

    Args:
        env: of any kind.
        num_repeats: how often; fewer times if the episode ends before.

    Raises:
        ConfigError: if that is not a positive integer.
    """

    def __init__(self, env: gymnasium.Env, *, num_repeats: int) -> None:
        super().__init__(env)
        if not isinstance(num_repeats, int) or num_repeats < 1:
            raise ConfigError(
                f"ActionRepeat: num_repeats must be a positive integer, got "
                f"{num_repeats!r}"
            )
        self._num_repeats = num_repeats

    def step(self, action: Any) -> Step:
        total: Any
        observation, total, terminated, truncated, info = self.env.step(action)
        for _ in range(self._num_repeats - 1):
            if terminated or truncated:
                break
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward
        return observation, total, terminated, truncated, info


@configurable
class ScalarReward(gymnasium.Wrapper):
    """Makes one number of a reward of D parts: their weighted sum.

    Metrics then see this number, too. With ``reward_weights`` of the algorithm instead,
    the parts are learnt and logged for themselves.

    Args:
        env: its ``reward_space`` is a Box (D,).
        weights: [D]; None takes the first part alone.

    Raises:
        ConfigError: if the reward is a number already, or D is another.
    """

    def __init__(
        self, env: gymnasium.Env, *, weights: Sequence[float] | None = None
    ) -> None:
        super().__init__(env)
        shape = single_env.reward_space(env).shape
        if len(shape) != 1:
            raise ConfigError(
                f"ScalarReward: the reward of {env} has no parts: it is a number"
            )
        if weights is None:
            weights = [1.0] + [0.0] * (shape[0] - 1)
        self._weights = np.asarray(weights, np.float64)
        if self._weights.shape != shape or not np.isfinite(self._weights).all():
            raise ConfigError(
                f"ScalarReward: expected {shape[0]} finite weights, got {weights!r}"
            )
        self.reward_space = spaces.Box(-np.inf, np.inf, (), np.float64)

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return (
            observation,
            float(np.dot(np.asarray(reward), self._weights)),
            terminated,
            truncated,
            info,
        )


@configurable
class CorrelatedActionNoise(_RandomWrapper):
    """Disturbs the actions, each step a little as the one before.

    What is done is a_t + ε_t + w ε_{t−1}, within the bounds, with normal ε of zero mean
    and deviation ``std`` times half of the range (Swamy et al. 2022, arXiv:2202.01312).
    The agent does not see what was done.

    Args:
        env: its actions are a Box with finite bounds.
        std: in units of half of the range of an element.
        past_weight: w.

    Raises:
        ConfigError: if the actions are others.
    """

    def __init__(
        self, env: gymnasium.Env, *, std: float = 0.5, past_weight: float = 1.0
    ) -> None:
        super().__init__(env)
        space = env.action_space
        if not (isinstance(space, spaces.Box) and space.is_bounded()):
            raise ConfigError(
                "CorrelatedActionNoise: expected actions of a Box with finite bounds, "
                f"got {space}"
            )
        if not (std >= 0 and past_weight >= 0):
            raise ConfigError(
                "CorrelatedActionNoise: std and past_weight must be at least 0, got "
                f"{std} and {past_weight}"
            )
        self._box = space
        self._scale = std * (space.high.astype(np.float64) - space.low) / 2
        self._past_weight = past_weight
        self._past = np.zeros(space.shape)

    def reset(self, **kwargs: Any) -> Reset:
        self._past = np.zeros(self._box.shape)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Step:
        noise = self._scale * self._random.standard_normal(self._box.shape)
        noisy = action + noise + self._past_weight * self._past
        self._past = noise
        box = self._box
        return self.env.step(np.clip(noisy, box.low, box.high).astype(box.dtype))
