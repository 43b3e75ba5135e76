"""A point that must go where it is told, and is rewarded for nothing else."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable

Step = tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]


@configurable
class PointGoalEnv(gymnasium.Env):
    """A point starts at the middle of a cube and must go to a random place in it.

    The observation is a dict as that of gymnasium-robotics' ``GoalEnv``: the position
    as ``observation`` and ``achieved_goal``, the place as ``desired_goal``. The reward
    is 0 within ``tolerance`` of the place and -1 elsewhere. Only the time limit ends an
    episode, so the point must stay there.

    With its defaults a random walk gets there in one of 1000 episodes: there is hardly
    anything to learn from but hindsight. Who goes straight there returns -3 on average,
    who never gets there -20.

    Args:
        num_dimensions: of the cube.
        step_size: how far an action of 1 moves the point along a dimension; the cube is
            2 wide.
        tolerance: the distance that is near enough.
        episode_length: steps until the time limit.
    """

    def __init__(
        self,
        num_dimensions: int = 3,
        step_size: float = 0.2,
        tolerance: float = 0.05,
        episode_length: int = 20,
    ) -> None:
        place = spaces.Box(-1.0, 1.0, (num_dimensions,), np.float32)
        self.observation_space = spaces.Dict(
            {"observation": place, "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (num_dimensions,), np.float32)
        self._num_dimensions = num_dimensions
        self._step_size = step_size
        self._tolerance = tolerance
        self._episode_length = episode_length

    def compute_reward(
        self,
        achieved_goal: np.ndarray,
        desired_goal: np.ndarray,
        info: Any = None,
    ) -> np.ndarray:
        """[...] rewards of [..., num_dimensions] places."""
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return np.where(distance <= self._tolerance, 0.0, -1.0).astype(np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        self._position = np.zeros(self._num_dimensions, np.float32)
        self._goal = self.np_random.uniform(-1.0, 1.0, self._num_dimensions).astype(
            np.float32
        )
        return self._observation(), {}

    def step(self, action: np.ndarray) -> Step:
        self._num_steps += 1
        move = self._step_size * np.clip(action, -1.0, 1.0)
        self._position = np.clip(self._position + move, -1.0, 1.0).astype(np.float32)
        reward = float(self.compute_reward(self._position, self._goal))
        info = {"is_success": reward == 0.0}
        is_end = self._num_steps >= self._episode_length
        return self._observation(), reward, False, is_end, info

    def _observation(self) -> dict[str, np.ndarray]:
        return {
            "observation": self._position.copy(),
            "achieved_goal": self._position.copy(),
            "desired_goal": self._goal.copy(),
        }
