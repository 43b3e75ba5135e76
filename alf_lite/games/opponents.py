"""Opponents: whoever plays the seats that an algorithm does not play."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alf_lite.config import configurable
from alf_lite.errors import ConfigError
from alf_lite.games.game import Game, Rng, State, copy_rows, random_legal
from alf_lite.games.game_tree import GameTree

# [N, ...] each: what an opponent remembers of N games in one seat
Memory = list[np.ndarray]


class Opponent:
    """Chooses actions in a game.

    One that remembers nothing between moves says what it does in :meth:`act`; another
    one in :meth:`begin` and :meth:`choose`. Whoever has the games keeps the memory.
    """

    name = "opponent"  # for messages, tables and logs

    def check_game(self, game: Game) -> None:
        """Raises ConfigError, if it cannot play ``game``."""

    def act(self, game: Game, state: State, seats: np.ndarray, rng: Rng) -> np.ndarray:
        """[N] legal actions.

        Args:
            game: whose rules hold.
            state: of N games, which go on.
            seats: [N] for whom to choose.
            rng: whatever is left to chance is drawn from it.
        """
        raise NotImplementedError(f"{type(self).__name__} needs act, or choose")

    def begin(self, number: int, rng: Rng) -> Memory:
        """What it knows of ``number`` games that begin."""
        return []

    def choose(
        self,
        game: Game,
        state: State,
        seats: np.ndarray,
        rng: Rng,
        memory: Memory,
    ) -> tuple[np.ndarray, Memory]:
        """As :meth:`act`, and what it remembers afterwards of the N games."""
        return self.act(game, state, seats, rng), memory


class AverageOpponent(Opponent):
    """One of several opponents, drawn anew for each game: their average strategy.

    It plays all seats of a game that are the opponents'.

    Args:
        opponents: all equally likely.
        name: for tables and logs.
    """

    def __init__(self, opponents: Sequence[Opponent], name: str = "average") -> None:
        self.name = name
        self._opponents = list(opponents)
        if not self._opponents:
            raise ConfigError(f"{name}: an average of no opponents")

    def check_game(self, game: Game) -> None:
        for opponent in self._opponents:
            opponent.check_game(game)

    def begin(self, number: int, rng: Rng) -> Memory:
        memory = [rng.integers(len(self._opponents), size=number)]
        for opponent in self._opponents:
            memory += opponent.begin(number, rng)
        return memory

    def choose(
        self,
        game: Game,
        state: State,
        seats: np.ndarray,
        rng: Rng,
        memory: Memory,
    ) -> tuple[np.ndarray, Memory]:
        actions = np.zeros(len(seats), np.int64)
        memory, begin = [array.copy() for array in memory], 1
        for i, opponent in enumerate(self._opponents):
            own = memory[begin : begin + len(opponent.begin(0, rng))]
            begin += len(own)
            rows = np.flatnonzero(memory[0] == i)
            if len(rows):
                actions[rows] = choose_rows(
                    opponent,
                    game,
                    copy_rows(state, rows),
                    seats[rows],
                    rng,
                    own,
                    rows,
                )
        return actions, memory


def choose_rows(
    opponent: Opponent,
    game: Game,
    state: State,
    seats: np.ndarray,
    rng: Rng,
    memory: Memory,
    rows: np.ndarray,
) -> np.ndarray:
    """[N] actions in N games, which have these rows of ``memory``; writes to it."""
    own = [array[rows] for array in memory]
    actions, after = opponent.choose(game, state, seats, rng, own)
    for array, new in zip(memory, after, strict=True):
        array[rows] = new
    return actions


@configurable
class RandomOpponent(Opponent):
    """Takes any legal action."""

    name = "random"

    def act(self, game: Game, state: State, seats: np.ndarray, rng: Rng) -> np.ndarray:
        return random_legal(game.legal(state, seats), rng)


@configurable
class OnePlyOpponent(Opponent):
    """Wins if it can at once, and prevents that the other does; else anything.

    For board games of two.
    """

    name = "one_ply"

    def check_game(self, game: Game) -> None:
        _check_is_board_game(self, game)

    def act(self, game: Game, state: State, seats: np.ndarray, rng: Rng) -> np.ndarray:
        legal = game.legal(state, seats)
        wins = self._wins(game, state, legal, seats, rng)
        # What the other one would win by, if it were to move: with a move of this one
        # elsewhere, which is tried in every place
        blunders = np.zeros(legal.shape, bool)
        row, action = np.nonzero(legal & ~wins.any(1, keepdims=True))
        if len(row):
            after = _after(game, copy_rows(state, row), action, rng)
            other = 1 - seats[row]
            answers = game.legal(after, other)
            loses = self._wins(game, after, answers, other, rng).any(1)
            blunders[row, action] = loses
        safe = legal & ~blunders
        best = np.where(wins.any(1, keepdims=True), wins, safe)
        return random_legal(np.where(best.any(1, keepdims=True), best, legal), rng)

    @staticmethod
    def _wins(
        game: Game,
        state: State,
        legal: np.ndarray,
        seats: np.ndarray,
        rng: Rng,
    ) -> np.ndarray:
        """[N, A] bool: which of the ``legal`` actions win at once."""
        wins = np.zeros(legal.shape, bool)
        row, action = np.nonzero(legal)
        if len(row):
            after = _after(game, copy_rows(state, row), action, rng)
            wins[row, action] = game.returns(after)[np.arange(len(row)), seats[row]] > 0
        return wins


@configurable
class PerfectOpponent(Opponent):
    """Takes any of the best actions, from a table of all states (minimax).

    For board games of two with some thousand states, such as tic-tac-toe and Nim.
    """

    name = "perfect"

    def __init__(self) -> None:
        self._best: dict[str, dict[bytes, np.ndarray]] = {}  # by the name of the game

    def check_game(self, game: Game) -> None:
        _check_is_board_game(self, game)
        if game.max_length > _MAX_LENGTH_OF_TABLES:
            raise ConfigError(
                f"PerfectOpponent: {game.name} has too many states for a table, or a "
                f"max_length ({game.max_length}) above {_MAX_LENGTH_OF_TABLES}"
            )

    def act(self, game: Game, state: State, seats: np.ndarray, rng: Rng) -> np.ndarray:
        if game.name not in self._best:
            self._best[game.name] = GameTree(game).best_actions()
        table = self._best[game.name]
        seen = game.observe(state, seats)
        best = np.array([table[one.tobytes()] for one in seen])
        return random_legal(best, rng)


_MAX_LENGTH_OF_TABLES = 12


def _after(game: Game, state: State, action: np.ndarray, rng: Rng) -> State:
    return game.play(state, np.repeat(action[:, None], 2, 1), rng)


def _check_is_board_game(opponent: Opponent, game: Game) -> None:
    if not game.is_board_game:
        raise ConfigError(
            f"{opponent.name}: for games of two who move in turn and know all, but "
            f"{game.name} is none"
        )
