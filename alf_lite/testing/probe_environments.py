"""Environments whose values are known, each of which isolates one thing.

If an agent fails on one of them, its docstring says which part to look at. They are
single ``gymnasium.Env``s: ``create_environment(env_ctor=ObservationValueEnv, ...)``.
The first five follow the idea of the probe environments of rejax.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable

ActionKind = Literal["discrete", "continuous"]
Step = tuple[Any, float, bool, bool, dict[str, Any]]


def action_space(kind: ActionKind, num_actions: int = 2) -> gymnasium.Space:
    """So many actions, or one number in [-1, 1]."""
    if kind == "discrete":
        return spaces.Discrete(num_actions)
    return spaces.Box(-1.0, 1.0, (1,), np.float32)


class _ProbeEnv(gymnasium.Env):
    """An observation of one number; subclasses say what happens."""

    def __init__(self, action_kind: ActionKind = "discrete") -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = action_space(action_kind)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._first_observation(), {}

    def _first_observation(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def _random_sign(self) -> np.ndarray:
        return np.full(1, self.np_random.choice([-1.0, 1.0]), np.float32)


@configurable
class ValueEnv(_ProbeEnv):
    """One step, reward 1: V = 1. Fails if the value loss or its optimizer is wrong."""

    def step(self, action: Any) -> Step:
        return np.zeros(1, np.float32), 1.0, True, False, {}


@configurable
class ObservationValueEnv(_ProbeEnv):
    """One step, reward = the observation, ±1: V(o) = o.

    Fails (and ValueEnv does not) if the observation does not reach the value, as when
    batches are mixed up.
    """

    def _first_observation(self) -> np.ndarray:
        self._sign = self._random_sign()
        return self._sign.copy()

    def step(self, action: Any) -> Step:
        return np.zeros(1, np.float32), float(self._sign[0]), True, False, {}


@configurable
class DiscountEnv(_ProbeEnv):
    """Two steps, observations 0 and 1, reward 1 at the end: V(0) = γ, V(1) = 1.

    Fails (and ObservationValueEnv does not) if values are not discounted or not carried
    from step to step.
    """

    def _first_observation(self) -> np.ndarray:
        self._num_steps = 0
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Step:
        self._num_steps += 1
        is_end = self._num_steps == 2
        return np.ones(1, np.float32), float(is_end), is_end, False, {}


@configurable
class PolicyEnv(_ProbeEnv):
    """One step, reward +1 for action 1 (or 1 - |a - 0.5|): V* = 1.

    Fails (and ValueEnv does not) if the policy is not improved, as when the sign of the
    advantage is wrong.
    """

    def step(self, action: Any) -> Step:
        return np.zeros(1, np.float32), action_reward(action, 1.0), True, False, {}


@configurable
class ObservationPolicyEnv(_ProbeEnv):
    """One step; observation +1 asks for action 1 (0.5), -1 for action 0 (-0.5): V* = 1.

    Fails (and PolicyEnv does not) if the policy does not see the observation that its
    action belongs to.
    """

    def _first_observation(self) -> np.ndarray:
        self._sign = self._random_sign()
        return self._sign.copy()

    def step(self, action: Any) -> Step:
        reward = action_reward(action, float(self._sign[0]))
        return np.zeros(1, np.float32), reward, True, False, {}


def action_reward(action: Any, sign: float) -> float:
    """1 for the action that ``sign`` asks for, less for every other one."""
    if np.ndim(action) == 0:
        return 1.0 if int(action) == int(sign > 0) else -1.0
    return 1.0 - abs(float(action[0]) - 0.5 * sign)


@configurable
class TwoAnswersEnv(_ProbeEnv):
    """The answer is near -0.6 or near +0.6, and nobody tells which.

    A right one earns 1 and ends the episode; there are ``num_tries``. A policy with two
    peaks earns 1 - 2 ** -num_tries, 0.94; with one peak it sticks to one answer and
    earns 0.5, or is so wide that most tries are lost between and beside them.
    """

    _TOLERANCE = 0.15

    def __init__(self, num_tries: int = 4) -> None:
        super().__init__("continuous")
        self._num_tries = num_tries

    def _first_observation(self) -> np.ndarray:
        self._num_steps = 0
        self._answer = 0.6 * self._random_sign()[0]
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Step:
        self._num_steps += 1
        is_right = bool(abs(float(action[0]) - self._answer) < self._TOLERANCE)
        is_end = is_right or self._num_steps == self._num_tries
        return np.zeros(1, np.float32), float(is_right), is_end, False, {}


@configurable
class TimeLimitEnv(_ProbeEnv):
    """Reward 1 for ever, cut by a time limit that is not observed: V = 1 / (1 - γ).

    Fails if a time limit is taken for a terminal state: V is then smaller.
    """

    def __init__(
        self, action_kind: ActionKind = "discrete", episode_length: int = 8
    ) -> None:
        super().__init__(action_kind)
        self._episode_length = episode_length

    def _first_observation(self) -> np.ndarray:
        self._num_steps = 0
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Step:
        self._num_steps += 1
        is_cut = self._num_steps >= self._episode_length
        return np.zeros(1, np.float32), 1.0, False, is_cut, {}


@configurable
class IdentityEnv(gymnasium.Env):
    """The observation is the action that is asked for, in any kind of action space.

    The reward is 1 for the action itself: per part of the space the fraction of equal
    integers, or 1 - the mean distance relative to the size of the Box; on average over
    the parts. The undiscounted return of the best policy is ``episode_length``.

    Args:
        space: of observations and actions.
        episode_length: steps, then the episode terminates.
    """

    def __init__(self, space: gymnasium.Space, episode_length: int = 4) -> None:
        self.observation_space = space
        self.action_space = space
        self._episode_length = episode_length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._num_steps = 0
        self._asked = self.observation_space.sample()
        return self._asked, {}

    def step(self, action: Any) -> Step:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        scores = list(_scores(self.action_space, action, self._asked))
        self._num_steps += 1
        self._asked = self.observation_space.sample()
        is_end = self._num_steps >= self._episode_length
        return self._asked, float(np.mean(scores)), is_end, False, {}


def _scores(space: gymnasium.Space, action: Any, asked: Any) -> list[float]:
    if isinstance(space, spaces.Dict):
        parts = [_scores(space[key], action[key], asked[key]) for key in space]
        return [score for part in parts for score in part]
    if isinstance(space, spaces.Tuple):
        triples = zip(space.spaces, action, asked, strict=True)
        return [score for triple in triples for score in _scores(*triple)]
    if isinstance(space, spaces.Box):
        return [1.0 - float(np.mean(np.abs(action - asked) / (space.high - space.low)))]
    return [float(np.mean(np.equal(action, asked)))]
