"""An environment that nobody survives without looking at the action mask."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.environments.space_tree import SpaceLeaf, SpaceTree

Step = tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]


@configurable
class ForbiddenActionEnv(gymnasium.Env):
    """At every step, about half of the values of each component are forbidden.

    The observation is {"action_mask": [num_values], "observation": [1]}, where only the
    mask says something. A forbidden value ends the episode with reward −100. Otherwise
    the reward is the share of components with the largest value that is allowed, so
    that the undiscounted return of the best policy is ``episode_length``. In terminal
    states nothing is allowed.

    Args:
        space: of the actions; what is continuous in it has no effect.
        episode_length: steps, then the episode terminates.
    """

    def __init__(
        self, space: gymnasium.Space | None = None, episode_length: int = 4
    ) -> None:
        self.action_space = spaces.Discrete(4) if space is None else space
        self._tree = SpaceTree(self.action_space, "action")
        sizes = [size for leaf in self._tree.leaves for size in _sizes(leaf)]
        self._ends = np.cumsum(np.array(sizes, np.int64))
        self._starts = self._ends - np.array(sizes, np.int64)
        self.observation_space = spaces.Dict(
            {
                "action_mask": spaces.MultiBinary(int(self._ends[-1])),
                "observation": spaces.Box(-1.0, 1.0, (1,), np.float32),
            }
        )
        self._episode_length = episode_length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        self._mask = self._random_mask()
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        chosen = self._starts + np.concatenate(
            [
                np.reshape(value, -1)
                for value, leaf in zip(
                    self._tree.split(action), self._tree.leaves, strict=True
                )
                if _sizes(leaf)
            ]
        )
        is_forbidden = not self._mask[chosen].all()
        is_best = [
            not self._mask[value + 1 : end].any()
            for value, end in zip(chosen, self._ends, strict=True)
        ]
        self._num_steps += 1
        is_end = is_forbidden or self._num_steps >= self._episode_length
        self._mask = np.zeros_like(self._mask) if is_end else self._random_mask()
        reward = -100.0 if is_forbidden else float(np.mean(is_best))
        return self._observation(), reward, is_end, False, {}

    def _random_mask(self) -> np.ndarray:
        mask = self.np_random.integers(0, 2, self._ends[-1], np.int8)
        mask[self.np_random.integers(self._starts, self._ends)] = 1
        return mask

    def _observation(self) -> dict[str, np.ndarray]:
        return {
            "action_mask": self._mask.copy(),
            "observation": np.zeros(1, np.float32),
        }


def _sizes(leaf: SpaceLeaf) -> list[int]:
    """How many values each component takes; nothing if the leaf is continuous."""
    if isinstance(leaf.space, spaces.Discrete):
        return [int(leaf.space.n)]
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return leaf.space.nvec.reshape(-1).tolist()
    if isinstance(leaf.space, spaces.MultiBinary):
        return [2] * int(np.prod(leaf.shape))
    return []
