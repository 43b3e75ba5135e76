"""A maze that is another one with every seed."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]
_MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])


@configurable
class MazeEnv(gymnasium.Env):
    """Find the goal in a square with walls at random places.

    The walls are few in some mazes and many in others; the goal is any cell that can be
    reached. The reward is 1 − 0.9 t / T at the goal, after t of at most T steps, and 0
    elsewhere.

    The observation has three maps of the square around the agent: walls, what is
    outside of the maze among them, the goal if it is in sight, and where the agent was
    before. Then come the two signs of the direction of the goal.

    Args:
        size: rows and columns of the maze.
        view: rows and columns of what is seen, odd.
        max_steps: T.
        max_walls: the largest share of cells that are walls.
    """

    def __init__(
        self,
        size: int = 9,
        view: int = 5,
        max_steps: int = 60,
        max_walls: float = 0.45,
    ) -> None:
        self.observation_space = spaces.Box(
            -1.0, 1.0, (3 * view * view + 2,), np.float32
        )
        self.action_space = spaces.Discrete(4)
        self._size = size
        self._radius = view // 2
        self._max_steps = max_steps
        self._max_walls = max_walls

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        rng, size, radius = self.np_random, self._size, self._radius
        reached: list[tuple[int, int]] = []
        while len(reached) < 2:
            share = rng.uniform(0, self._max_walls)
            walls = np.pad(
                rng.random((size, size)) < share, radius, constant_values=True
            )
            start = tuple((rng.integers(size, size=2) + radius).tolist())
            reached = _reachable(walls, start)
        self._cell = np.array(start)
        self._goal = np.array(reached[rng.integers(1, len(reached))])
        # [3, H, W]: walls, the goal, where the agent was
        self._maps = np.zeros((3, *walls.shape), np.float32)
        self._maps[0] = walls
        self._maps[1][tuple(self._goal)] = 1
        self._num_steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        self._maps[2][tuple(self._cell)] = 1
        cell = self._cell + _MOVES[int(action)]
        if not self._maps[0][tuple(cell)]:
            self._cell = cell
        self._num_steps += 1
        is_there = bool((self._cell == self._goal).all())
        reward = 1 - 0.9 * self._num_steps / self._max_steps if is_there else 0.0
        is_late = self._num_steps >= self._max_steps and not is_there
        return self._observation(), reward, is_there, is_late, {}

    def _observation(self) -> np.ndarray:
        (row, column), radius = self._cell, self._radius
        seen = self._maps[
            :, row - radius : row + radius + 1, column - radius : column + radius + 1
        ]
        direction = np.sign(self._goal - self._cell)
        return np.concatenate([seen.ravel(), direction]).astype(np.float32)


def _reachable(walls: np.ndarray, start: tuple[int, ...]) -> list[tuple[int, int]]:
    """The cells to which there is a way, ``start`` first; none from within a wall."""
    if walls[start]:
        return []
    found = {start: None}  # in this order
    pending = deque(found)
    while pending:
        cell = pending.popleft()
        for move in _MOVES.tolist():
            other = (cell[0] + move[0], cell[1] + move[1])
            if not walls[other] and other not in found:
                found[other] = None
                pending.append(other)
    return list(found)  # type: ignore[arg-type]
