"""Environments with one unusual structure each, and returns that are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.testing.probe_environments import ActionKind, action_reward, action_space

Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class _StructuredEnv(gymnasium.Env):
    """Counts the steps of the episode; the random numbers come from the seed alone."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        self._start()
        return self._observation(), {}

    def _start(self) -> None:
        """Draws what the episode needs."""

    def _observation(self) -> Any:
        raise NotImplementedError


@configurable
class CountingEnv(_StructuredEnv):
    """Observes 100 · episode + step, so that every transition can be recognised.

    The reward is 1, or with ``reward_is_time`` the number of the step. The info holds
    ``step`` at every step and ``episode`` at resets only.

    Args:
        episode_lengths: in steps, repeated over and over.
        truncates: whether episodes end by a time limit instead of a terminal state.
        reward_is_time: see above.
    """

    def __init__(
        self,
        episode_lengths: Sequence[int] = (3,),
        truncates: bool = False,
        reward_is_time: bool = False,
    ) -> None:
        if max(episode_lengths) >= 100:
            raise ValueError(f"lengths must be below 100, got {episode_lengths}")
        self.observation_space = spaces.Box(0.0, 1e6, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._lengths = tuple(episode_lengths)
        self._truncates = truncates
        self._reward_is_time = reward_is_time
        self._episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self._episode = -1
        observation, _ = super().reset(seed=seed)
        return observation, {"step": 0, "episode": self._episode}

    def _start(self) -> None:
        self._episode += 1

    def _observation(self) -> np.ndarray:
        return np.full(1, 100 * self._episode + self._num_steps, np.float32)

    def step(self, action: Any) -> Step:
        self._num_steps += 1
        is_end = self._num_steps >= self._lengths[self._episode % len(self._lengths)]
        reward = float(self._num_steps) if self._reward_is_time else 1.0
        return (
            self._observation(),
            reward,
            is_end and not self._truncates,
            is_end and self._truncates,
            {"step": self._num_steps},
        )


@configurable
class VectorRewardEnv(_StructuredEnv):
    """Rewards with several parts: action a earns 1 in part a and 0 in the others.

    A continuous action in [-1, 1] earns 1 in part a at the a-th of D numbers from -1 to
    1, and less with the distance from it, down to 0.

    Args:
        num_rewards: D, also the number of discrete actions.
        episode_length: steps, then the episode terminates.
        action_kind: discrete or continuous.
    """

    def __init__(
        self,
        num_rewards: int = 2,
        episode_length: int = 4,
        action_kind: ActionKind = "discrete",
    ) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = action_space(action_kind, num_rewards)
        self.reward_space = spaces.Box(0.0, 1.0, (num_rewards,), np.float32)
        self._best_actions = np.linspace(-1.0, 1.0, num_rewards, dtype=np.float32)
        self._episode_length = episode_length

    def _observation(self) -> np.ndarray:
        return np.full(1, self._num_steps / self._episode_length, np.float32)

    def step(self, action: Any) -> Step:
        self._num_steps += 1
        if isinstance(self.action_space, spaces.Discrete):
            reward = np.zeros(self.reward_space.shape, np.float32)
            reward[int(action)] = 1.0
        else:
            reward = 1.0 - abs(action - self._best_actions) / 2.0
        is_end = self._num_steps >= self._episode_length
        return self._observation(), reward, is_end, False, {}


@configurable
class ConstrainedEnv(_StructuredEnv):
    """An action a in [-1, 1] earns a, and costs a²: the reward is (a, -a²).

    The best policy with a mean cost of at most c² always takes a = c; it maximises
    a - a² / (2 c), in which the two parts have the weights 1 and 1 / (2 c).

    Args:
        episode_length: steps, then the episode terminates.
    """

    def __init__(self, episode_length: int = 8) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = action_space("continuous")
        self.reward_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._episode_length = episode_length

    def _observation(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> Step:
        self._num_steps += 1
        earned = float(action[0])
        reward: Any = np.array([earned, -(earned**2)], np.float32)
        is_end = self._num_steps >= self._episode_length
        return self._observation(), reward, is_end, False, {}


@configurable
class MemoryEnv(_StructuredEnv):
    """Shows a cue at the first step only and asks for it at the last one.

    The observation is [cue or 0, 1 if the answer is due]. The answer earns 1 if it is
    action 1 for cue +1 or action 0 for cue -1, else -1: V* = γ^delay at the start with
    memory; without it no policy expects more than 0. A continuous answer should be half
    of the cue; without memory no policy expects more than 0.5.

    Args:
        delay: steps between the cue and the question.
        action_kind: discrete or continuous.
    """

    def __init__(self, delay: int = 2, action_kind: ActionKind = "discrete") -> None:
        if delay < 1:
            raise ValueError(f"expected a delay of at least 1 step, got {delay}")
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = action_space(action_kind)
        self._delay = delay

    def _start(self) -> None:
        self._cue = float(self.np_random.choice([-1.0, 1.0]))

    def _observation(self) -> np.ndarray:
        cue = self._cue if self._num_steps == 0 else 0.0
        is_due = float(self._num_steps == self._delay)
        return np.array([cue, is_due], np.float32)

    def step(self, action: Any) -> Step:
        is_end = self._num_steps == self._delay
        self._num_steps += 1
        reward = action_reward(action, self._cue) if is_end else 0.0
        return self._observation(), reward, is_end, False, {}


@configurable
class NestedEnv(_StructuredEnv):
    """Observations and actions with several parts of different kinds.

    The reward is 1 minus the distances of the parts of the action to what the
    observation asks for, each at most 1/2, so the best return is ``episode_length``:
    ``move`` = ``target`` (each element in [-1, 1]) and ``grip`` = ``mode`` modulo 2.

    Args:
        episode_length: steps, then the episode terminates.
    """

    def __init__(self, episode_length: int = 4) -> None:
        self.observation_space = spaces.Dict(
            {
                "target": spaces.Box(-1.0, 1.0, (2,), np.float32),
                "state": spaces.Tuple(
                    (
                        spaces.Discrete(4, start=-1),
                        spaces.Dict({"flags": spaces.MultiBinary((2, 2))}),
                    )
                ),
            }
        )
        self.action_space = spaces.Dict(
            {
                "move": spaces.Box(-1.0, 1.0, (2,), np.float32),
                "grip": spaces.Tuple((spaces.Discrete(2),)),
            }
        )
        self._episode_length = episode_length

    def _start(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self._target = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        self._mode = int(self.np_random.integers(-1, 3))
        self._flags = self.np_random.integers(0, 2, (2, 2), dtype=np.int8)

    def _observation(self) -> dict[str, Any]:
        return {
            "target": self._target,
            "state": (self._mode, {"flags": self._flags}),
        }

    def step(self, action: Any) -> Step:
        distance = float(np.abs(action["move"] - self._target).mean()) / 4
        mistake = 0.5 * (int(action["grip"][0]) != self._mode % 2)
        self._num_steps += 1
        self._draw()
        is_end = self._num_steps >= self._episode_length
        return self._observation(), 1.0 - distance - mistake, is_end, False, {}


@configurable
class ImageEnv(_StructuredEnv):
    """Shows one bright quadrant in an image; its number is the action that earns 1.

    Other actions earn 0. The best return is ``episode_length``.

    Args:
        size: of the image, [size, size, 1] uint8.
        episode_length: steps, then the episode terminates.
    """

    def __init__(
        self, size: int = 16, episode_length: int = 4, render_mode: str | None = None
    ) -> None:
        self.observation_space = spaces.Box(0, 255, (size, size, 1), np.uint8)
        self.action_space = spaces.Discrete(4)
        self.metadata = {"render_modes": ["rgb_array"]}
        self.render_mode = render_mode
        self._half = size // 2
        self._episode_length = episode_length

    def _start(self) -> None:
        self._quadrant = int(self.np_random.integers(4))

    def _observation(self) -> np.ndarray:
        image = np.zeros(self.observation_space.shape or (), np.uint8)
        row, column = divmod(self._quadrant, 2)
        half = self._half
        image[row * half : (row + 1) * half, column * half : (column + 1) * half] = 255
        return image

    def step(self, action: Any) -> Step:
        reward = float(int(action) == self._quadrant)
        self._num_steps += 1
        self._start()
        is_end = self._num_steps >= self._episode_length
        return self._observation(), reward, is_end, False, {}

    def render(self) -> np.ndarray:
        """The observation as [size, size, 3]."""
        return np.repeat(self._observation(), 3, axis=2)
