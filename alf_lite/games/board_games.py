"""Board games: lines of discs, and Nim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.games.game import Game, Rng

_SEATS = np.arange(2)
_DISC = np.int16


class LineState(NamedTuple):
    """N games of :class:`LineGame`."""

    cells: np.ndarray  # [N, rows · columns] int16: which disc, from 1 on; 0 empty
    num_moves: np.ndarray  # [N] int64
    winner: np.ndarray  # [N] int64, -1 where there is none


@configurable
class LineGame(Game):
    """Two seats put discs on a board in turn; who has a line of them wins.

    A seat sees two planes [2, rows, columns]: its own discs, and those of the other.

    Args:
        rows: of the board.
        columns: of the board.
        length: of a line, along rows, columns and diagonals.
        falls: whether an action is a column, to whose lowest empty cell the disc falls;
            otherwise it is a cell, row by row.
        name: of the game with these numbers.

    Raises:
        ConfigError: if no line fits onto the board, or it has more than 32,767 cells.
    """

    is_board_game = True

    def __init__(
        self,
        rows: int,
        columns: int,
        length: int,
        *,
        falls: bool = False,
        name: str | None = None,
    ) -> None:
        name = name or f"LineGame({rows}, {columns}, {length}, falls={falls})"
        if min(rows, columns, length) < 1 or length > max(rows, columns):
            raise ConfigError(
                f"{name}: no line of {length} fits onto {rows} x {columns} cells"
            )
        if rows * columns > np.iinfo(_DISC).max:
            raise ConfigError(
                f"{name}: discs are numbered up to {np.iinfo(_DISC).max}, got "
                f"{rows * columns} cells. Take a smaller board."
            )
        self.name = name
        self._shape = (rows, columns)
        self._falls = falls
        self._lines = _lines(rows, columns, length)
        self.max_length = rows * columns
        self.num_actions = columns if falls else rows * columns
        shape = (2, rows, columns)
        self.observation_space = spaces.Box(0.0, 1.0, shape)

    def initial(self, number: int, rng: Rng) -> LineState:
        return LineState(
            np.zeros((number, self.max_length), _DISC),
            np.zeros(number, np.int64),
            np.full(number, -1),
        )

    def moves(self, state: LineState) -> np.ndarray:
        goes_on = (state.winner < 0) & (state.num_moves < self.max_length)
        return goes_on[:, None] & (state.num_moves[:, None] % 2 == _SEATS)

    def play(self, state: LineState, actions: np.ndarray, rng: Rng) -> LineState:
        games = np.arange(len(actions))
        mover = state.num_moves % 2
        cell = actions[games, mover]
        if self._falls:
            board = state.cells.reshape(-1, *self._shape)
            num_discs = np.count_nonzero(board[games, :, cell], axis=1)
            cell = (self._shape[0] - 1 - num_discs) * self._shape[1] + cell
        cells = state.cells.copy()
        cells[games, cell] = state.num_moves + 1
        own = _discs(cells, mover)
        has_won = np.any(own[:, self._lines].all(2), 1)
        return LineState(cells, state.num_moves + 1, np.where(has_won, mover, -1))

    def legal(self, state: LineState, seats: np.ndarray) -> np.ndarray:
        moves = self.moves(state)[np.arange(len(seats)), seats]
        # The top of a column is in the first row
        return (state.cells[:, : self.num_actions] == 0) & moves[:, None]

    def observe(self, state: LineState, seats: np.ndarray) -> np.ndarray:
        planes = np.stack([_discs(state.cells, s) for s in (seats, 1 - seats)], 1)
        return planes.astype(np.float32).reshape(-1, 2, *self._shape)

    def returns(self, state: LineState) -> np.ndarray:
        is_won = (state.winner >= 0)[:, None]
        sign = np.where(state.winner[:, None] == _SEATS, 1, -1)
        return (is_won * sign).astype(np.float32)

    def state_of(self, observation: np.ndarray) -> LineState:
        """In one of the orders in which the discs may have been put."""
        own, other = observation.reshape(-1, 2, self.max_length).swapaxes(0, 1) > 0
        # The second seat moves where it has fewer discs
        is_second = (own.sum(1) < other.sum(1))[:, None]
        first = np.where(is_second, other, own)
        second = np.where(is_second, own, other)
        cells = first * (2 * first.cumsum(1) - 1) + second * 2 * second.cumsum(1)
        winner = np.full(len(cells), -1)
        for seat, discs in enumerate((first, second)):
            winner[discs[:, self._lines].all(2).any(1)] = seat
        return LineState(cells.astype(_DISC), (cells > 0).sum(1), winner)

    def unpack(self, arrays: Sequence[np.ndarray]) -> LineState:
        # It was int8 in earlier checkpoints
        return LineState(arrays[0].astype(_DISC), *arrays[1:])

    def symmetries(self) -> list[tuple[np.ndarray, np.ndarray]]:
        board = np.arange(self.max_length).reshape(self._shape)
        boards = [np.rot90(b, k) for b in (board, board[:, ::-1]) for k in range(4)]
        if self._falls:
            boards = [board, board[:, ::-1]]
        cells = [b.ravel() for b in boards if b.shape == self._shape]
        # The second plane is behind the first
        seen = [np.concatenate([c, self.max_length + c]) for c in cells]
        return list(zip(seen, [c[: self.num_actions] for c in cells], strict=True))

    def describe(self, state: LineState, row: int) -> str:
        disc = state.cells[row].astype(int)
        marks = np.where(disc == 0, ".", np.where(disc % 2 == 1, "x", "o"))
        return "\n".join(map(" ".join, marks.reshape(self._shape)))

    def describe_to(self, state: LineState, row: int, seat: int) -> str:
        """Empty cells, or the columns, have the numbers of their actions."""
        width = len(str(self.num_actions - 1))
        cells = self.describe(state, row).split()
        if not self._falls:
            cells = [str(i) if c == "." else c for i, c in enumerate(cells)]
        else:
            cells = [str(i) for i in range(self._shape[1])] + cells
        lines = np.array([cell.rjust(width) for cell in cells])
        board = "\n".join(map(" ".join, lines.reshape(-1, self._shape[1])))
        return f"{board}\nYou are {'xo'[seat]}."

    def history(self, state: LineState, row: int) -> list[int]:
        """The actions that led to a game."""
        cells = np.argsort(state.cells[row], kind="stable")
        played = cells[self.max_length - state.num_moves[row] :]
        return (played % self._shape[1] if self._falls else played).tolist()


def _discs(cells: np.ndarray, seats: np.ndarray) -> np.ndarray:
    """[N, cells] bool: those of ``seats`` [N]; the discs of seat 0 are odd."""
    return (cells > 0) & (cells % 2 != seats[:, None])


def _lines(rows: int, columns: int, length: int) -> np.ndarray:
    """The cells of each line, [lines, length]."""
    found = []
    steps = np.arange(length)
    for start in range(rows * columns):
        row, column = divmod(start, columns)
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            last_row = row + down * (length - 1)
            last_column = column + right * (length - 1)
            if last_row < rows and 0 <= last_column < columns:
                found.append(start + (down * columns + right) * steps)
    return np.array(found)


@configurable
class TicTacToe(LineGame):
    """Three in a line on 3 x 3 cells; a draw, if both play well."""

    def __init__(self) -> None:
        super().__init__(3, 3, 3, name="TicTacToe")


@configurable
class ConnectFour(LineGame):
    """Four in a line on 6 x 7 cells, into whose columns discs fall."""

    def __init__(self) -> None:
        super().__init__(6, 7, 4, falls=True, name="ConnectFour")


class NimState(NamedTuple):
    """N games of :class:`Nim`."""

    piles: np.ndarray  # [N, number of piles] int64
    mover: np.ndarray  # [N] int64


@configurable
class Nim(Game):
    """Two seats take from piles in turn; who takes the last piece wins.

    The first seat loses, if both play well, exactly where the sizes have exclusive or
    0 (Bouton 1901). The action ``pile · largest + n - 1`` takes n pieces. A seat sees
    [piles, largest + 1]: the size of each pile, one-hot.

    Args:
        piles: their sizes in the beginning.

    Raises:
        ConfigError: if there is nothing to take.
    """

    is_board_game = True

    def __init__(self, piles: Sequence[int] = (1, 2, 4)) -> None:
        if not piles or min(piles) < 1:
            raise ConfigError(f"Nim: piles must be sizes from 1 on, got {piles}")
        self.name = f"Nim{tuple(piles)}"
        self._piles = np.array(piles)
        self._largest = max(piles)
        self.num_actions = len(piles) * self._largest
        self.max_length = sum(piles)
        shape = (len(piles), self._largest + 1)
        self.observation_space = spaces.Box(0.0, 1.0, shape)

    def initial(self, number: int, rng: Rng) -> NimState:
        return NimState(np.tile(self._piles, (number, 1)), np.zeros(number, np.int64))

    def moves(self, state: NimState) -> np.ndarray:
        return state.piles.any(1, keepdims=True) & (state.mover[:, None] == _SEATS)

    def play(self, state: NimState, actions: np.ndarray, rng: Rng) -> NimState:
        games = np.arange(len(actions))
        pile, number = np.divmod(actions[games, state.mover], self._largest)
        piles = state.piles.copy()
        piles[games, pile] -= number + 1
        return NimState(piles, 1 - state.mover)

    def legal(self, state: NimState, seats: np.ndarray) -> np.ndarray:
        number = np.arange(1, self._largest + 1)
        fits = number <= state.piles[:, :, None]  # [N, piles, largest]
        return fits.reshape(len(seats), -1) & (state.mover == seats)[:, None]

    def describe(self, state: NimState, row: int) -> str:
        return f"piles: {', '.join(map(str, state.piles[row]))}"

    def action_name(self, state: NimState, row: int, seat: int, action: int) -> str:
        pile, number = divmod(action, self._largest)
        return f"take {number + 1} of pile {pile + 1}"

    def observe(self, state: NimState, seats: np.ndarray) -> np.ndarray:
        sizes = np.arange(self._largest + 1)
        return (state.piles[:, :, None] == sizes).astype(np.float32)

    def state_of(self, observation: np.ndarray) -> NimState:
        piles = observation.argmax(-1)
        return NimState(piles, np.zeros(len(piles), np.int64))

    def returns(self, state: NimState) -> np.ndarray:
        is_over = ~state.piles.any(1, keepdims=True)
        # The one who would move now has not taken the last piece
        sign = np.where(state.mover[:, None] == _SEATS, -1, 1)
        return (is_over * sign).astype(np.float32)
