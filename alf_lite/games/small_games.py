"""Small games that are no board games: one move at once, and hidden cards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.games.game import Game, Rng

_SEATS = np.arange(2)
_KUHN_MOVES = ("pass", "bet")


class MatrixState(NamedTuple):
    """N games of :class:`MatrixGame`."""

    actions: np.ndarray  # [N, 2] int64, -1 before they are chosen


@configurable
class MatrixGame(Game):
    """Two seats choose at the same time, once; a matrix says what that is worth.

    A seat sees a one: there is nothing to know.

    Args:
        payoff: [A, A], what the first seat wins and the second one loses if they choose
            row and column.
        name: of the game with this matrix.

    Raises:
        ConfigError: if it is no square matrix of numbers.
    """

    max_length = 1

    def __init__(
        self,
        payoff: Sequence[Sequence[float]] = ((0, -1, 1), (1, 0, -1), (-1, 1, 0)),
        *,
        name: str | None = None,
    ) -> None:
        self.name = name = name or f"MatrixGame({payoff})"
        self.payoff = np.array(payoff, np.float32)
        if self.payoff.ndim != 2 or len(set(self.payoff.shape)) != 1:
            raise ConfigError(f"{name}: payoff must be a square matrix, got {payoff}")
        self.num_actions = len(self.payoff)
        self.observation_space = spaces.Box(0.0, 1.0, (1,))

    def initial(self, number: int, rng: Rng) -> MatrixState:
        return MatrixState(np.full((number, 2), -1))

    def moves(self, state: MatrixState) -> np.ndarray:
        return state.actions < 0

    def play(self, state: MatrixState, actions: np.ndarray, rng: Rng) -> MatrixState:
        return MatrixState(actions.astype(np.int64))

    def legal(self, state: MatrixState, seats: np.ndarray) -> np.ndarray:
        moves = self.moves(state)[:, :1]
        return np.repeat(moves, self.num_actions, 1)

    def describe_to(self, state: MatrixState, row: int, seat: int) -> str:
        own = self.payoff if seat == 0 else 0 - self.payoff.T
        rows = [" ".join(f"{won:5g}" for won in line) for line in own]
        return "What you win, by your action and that of the other:\n" + "\n".join(
            f"{action}: {line}" for action, line in enumerate(rows)
        )

    def observe(self, state: MatrixState, seats: np.ndarray) -> np.ndarray:
        return np.ones((len(seats), 1), np.float32)

    def returns(self, state: MatrixState) -> np.ndarray:
        first, second = state.actions.T
        won = np.where(first < 0, 0, self.payoff[first, second])
        return np.stack([won, -won], 1).astype(np.float32)


def rock_paper_scissors() -> MatrixGame:
    """Paper beats rock, scissors beat paper, rock beats scissors."""
    return MatrixGame(name="RockPaperScissors")


class KuhnState(NamedTuple):
    """N games of :class:`KuhnPoker`."""

    cards: np.ndarray  # [N, 2] int64: 0, 1 or 2, the highest wins
    history: np.ndarray  # [N, 3] int64: 0 pass, 1 bet, -1 not yet


@configurable
class KuhnPoker(Game):
    """Poker with three cards (Kuhn 1950): the first seat loses 1/18 if both play well.

    Both put one chip in and get a card. Action 0 passes, action 1 bets another chip, or
    pays for that of the other. A seat sees its card and what was done, one-hot [9]:
    three cards, and (pass, bet) of three moves.
    """

    name = "KuhnPoker"
    num_actions = 2
    max_length = 3

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (9,))

    def initial(self, number: int, rng: Rng) -> KuhnState:
        cards = rng.permuted(np.tile(np.arange(3), (number, 1)), axis=1)[:, :2]
        return KuhnState(cards, np.full((number, 3), -1))

    def starts(self) -> KuhnState:
        cards = np.array(list(itertools.permutations(range(3), 2)))
        return KuhnState(cards, np.full((6, 3), -1))

    def moves(self, state: KuhnState) -> np.ndarray:
        first, second, third = state.history.T
        # The first seat moves again if it has passed and the other has bet
        is_over = (second >= 0) & ((first == 1) | (second == 0) | (third >= 0))
        mover = (state.history >= 0).sum(1) % 2
        return ~is_over[:, None] & (mover[:, None] == _SEATS)

    def play(self, state: KuhnState, actions: np.ndarray, rng: Rng) -> KuhnState:
        games = np.arange(len(actions))
        number = (state.history >= 0).sum(1)
        history = state.history.copy()
        history[games, number] = actions[games, number % 2]
        return KuhnState(state.cards, history)

    def describe(self, state: KuhnState, row: int) -> str:
        cards = ", ".join(map(str, state.cards[row]))
        return f"cards: {cards}\n{self._moves_so_far(state, row)}"

    def describe_to(self, state: KuhnState, row: int, seat: int) -> str:
        card = state.cards[row, seat]
        return f"your card: {card} of 0, 1, 2\n{self._moves_so_far(state, row)}"

    def _moves_so_far(self, state: KuhnState, row: int) -> str:
        done = [_KUHN_MOVES[move] for move in state.history[row] if move >= 0]
        return f"moves: {', '.join(done) or 'none'}"

    def action_name(self, state: KuhnState, row: int, seat: int, action: int) -> str:
        return _KUHN_MOVES[action]

    def legal(self, state: KuhnState, seats: np.ndarray) -> np.ndarray:
        moves = self.moves(state)[np.arange(len(seats)), seats]
        return np.repeat(moves[:, None], 2, 1)

    def observe(self, state: KuhnState, seats: np.ndarray) -> np.ndarray:
        card = state.cards[np.arange(len(seats)), seats]
        seen = [card[:, None] == np.arange(3)]
        seen += [state.history[:, move, None] == np.arange(2) for move in range(3)]
        return np.concatenate(seen, 1).astype(np.float32)

    def returns(self, state: KuhnState) -> np.ndarray:
        first, second, third = state.history.T
        is_over = ~self.moves(state).any(1)
        sign = np.where(state.cards[:, 0] > state.cards[:, 1], 1, -1)
        both_bet = ((first == 1) & (second == 1)) | ((second == 1) & (third == 1))
        won = sign * np.where(both_bet, 2, 1)
        won = np.where((first == 1) & (second == 0), 1, won)  # the second has folded
        won = np.where((second == 1) & (third == 0), -1, won)
        won = is_over * won
        return np.stack([won, -won], 1).astype(np.float32)
