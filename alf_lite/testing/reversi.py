"""Reversi on a small board: in most states most actions are illegal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.errors import ConfigError

Step = tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]


class ReversiBoard:
    """The rules, on sets of cells: an integer with one bit for each.

    A row has one bit more than cells. That column is never occupied, so that no line of
    discs goes on from one edge to the other.

    Args:
        size: of the board, even.
    """

    def __init__(self, size: int) -> None:
        width = size + 1
        self.cells = [
            1 << (row * width + i) for row in range(size) for i in range(size)
        ]
        self._full = sum(self.cells)
        self._directions = (1, -1, width, -width, width + 1, -width - 1, size, -size)
        middle = size * size // 2 + size // 2  # the right one of the lower two
        corners = [
            self.cells[middle - size * up - left] for up in (1, 0) for left in (1, 0)
        ]
        self.start = (corners[1] | corners[2], corners[0] | corners[3])

    def legal(self, own: int, other: int) -> int:
        """The empty cells from which own discs are reached over the other's alone."""
        empty = self._full & ~(own | other)
        found = 0
        for direction in self._directions:
            line = _shift(own, direction) & other
            while line:
                line = _shift(line, direction)
                found |= line & empty
                line &= other
        return found

    def play(self, own: int, other: int, move: int) -> tuple[int, int]:
        """Both sets after ``own`` has put a disc on the cell ``move``."""
        turned = 0
        for direction in self._directions:
            passed, cell = 0, _shift(move, direction)
            while cell & other:
                passed |= cell
                cell = _shift(cell, direction)
            if cell & own:
                turned |= passed
        return own | move | turned, other & ~turned


def _shift(cells: int, direction: int) -> int:
    return cells << direction if direction > 0 else cells >> -direction


@configurable
class ReversiEnv(gymnasium.Env):
    """Reversi (Othello) against an opponent that takes any legal move.

    An action is a cell, row by row; most of them are illegal, five or six of 36 are
    not. An illegal move loses the game. Who has no legal move is passed over. The
    reward is 0 until the end, and then 1 for more discs than the opponent has, 0 for as
    many and -1 for fewer. A coin decides who begins.

    The observation is {"action_mask": [size²], "observation": [2 size²]}: what is
    legal, then one's own discs and those of the opponent.

    Args:
        size: rows and columns of the board, even and at least 4.

    Raises:
        ConfigError: if there is no such board.
    """

    def __init__(self, size: int = 6) -> None:
        if size < 4 or size % 2:
            raise ConfigError(f"ReversiEnv: size must be 4, 6, 8, …, got {size}")
        self._board = ReversiBoard(size)
        num_cells = size * size
        self.action_space = spaces.Discrete(num_cells)
        self.observation_space = spaces.Dict(
            {
                "action_mask": spaces.MultiBinary(num_cells),
                "observation": spaces.Box(0.0, 1.0, (2 * num_cells,), np.float32),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self._own, self._other = self._board.start
        self._legal = self._board.legal(self._own, self._other)
        if self.np_random.integers(2):
            self._let_opponent_play()
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        move = self._board.cells[int(action)]
        if not move & self._legal:
            self._legal = 0
            return self._observation(), -1.0, True, False, {}
        self._own, self._other = self._board.play(self._own, self._other, move)
        self._legal = self._board.legal(self._own, self._other)
        self._let_opponent_play()
        is_end = not self._legal
        reward = float(np.sign(self.lead)) if is_end else 0.0
        return self._observation(), reward, is_end, False, {}

    @property
    def lead(self) -> int:
        """How many discs more than the opponent."""
        return self._own.bit_count() - self._other.bit_count()

    def _let_opponent_play(self) -> None:
        """Once, and again as long as there is no answer to it."""
        board = self._board
        while moves := board.legal(self._other, self._own):
            choice = [cell for cell in board.cells if cell & moves]
            move = choice[self.np_random.integers(len(choice))]
            self._other, self._own = board.play(self._other, self._own, move)
            self._legal = board.legal(self._own, self._other)
            if self._legal:
                return

    def _observation(self) -> dict[str, np.ndarray]:
        cells = self._board.cells
        sets = (self._own, self._other)
        return {
            "action_mask": np.array(
                [cell & self._legal != 0 for cell in cells], np.int8
            ),
            "observation": np.array(
                [cell & discs != 0 for discs in sets for cell in cells], np.float32
            ),
        }
