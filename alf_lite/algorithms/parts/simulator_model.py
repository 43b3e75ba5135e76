"""A model for tree search that is no model: the rules of a game themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts.tree_search import Root, Step
from alf_lite.errors import ConfigError

State = Any  # a NamedTuple of arrays [N, ...]
# What a seat sees [N, ...] → logits [N, A] and value [N] of a network, float32
Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

_RULED_OUT = -1e9


class Rules(Protocol):
    """What is needed of a game; see ``alf_lite.games.Game``."""

    name: str
    num_actions: int
    is_board_game: bool
    observation_space: Any

    def moves(self, state: State) -> np.ndarray: ...
    def play(
        self, state: State, actions: np.ndarray, rng: np.random.Generator
    ) -> State: ...
    def legal(self, state: State, seats: np.ndarray) -> np.ndarray: ...
    def observe(self, state: State, seats: np.ndarray) -> np.ndarray: ...
    def returns(self, state: State) -> np.ndarray: ...
    def state_of(self, observation: np.ndarray) -> State: ...
    def symmetries(self) -> list[tuple[np.ndarray, np.ndarray]]: ...


class SimulatorModel:
    """Plays a board game for two ahead, and has a network say how good it looks.

    Reward and value are those of who moves. The discount is -γ where the other seat is
    next and 0 where the game is over; what is searched below that is worth nothing. The
    logits of illegal actions are so low that they are never tried.

    Args:
        game: its rules; nothing in it is left to chance.
        evaluate: the network.
        gamma: γ, which may be set anew between searches.

    Raises:
        ConfigError: if it is another kind of game, or its states cannot be told from
            what a seat sees.
    """

    def __init__(self, game: Rules, evaluate: Evaluate, gamma: float = 1.0) -> None:
        if not getattr(game, "is_board_game", False):
            raise ConfigError(
                f"SimulatorModel: {getattr(game, 'name', game)} is no board game. Give "
                "a game in which two seats move in turn, such as @TicTacToe()."
            )
        game.state_of(np.zeros((0, *game.observation_space.shape), np.float32))
        self._game, self._evaluate, self.gamma = game, evaluate, gamma
        self._rng = np.random.default_rng(0)  # for games that want one

    def root(self, observation: Any) -> Root:
        """Searches begin at what the seats that move see, one leaf [B, ...]."""
        (board,) = nest.flatten(observation)
        board = board.numpy(force=True) if isinstance(board, Tensor) else board
        logits, value = self._evaluate(board)
        return Root(logits, value, self._game.state_of(board))

    def step(self, state: State, action: np.ndarray) -> tuple[Step, State]:
        """One move [B]. ``state`` [B, ...] is not used any more.

        Raises:
            ValueError: if a game goes on and there is no legal action.
        """
        game, size = self._game, len(action)
        moves = game.moves(state)
        rows = np.flatnonzero(moves.any(1))  # where there is somebody to move
        step = Step(
            reward=np.zeros(size, np.float32),
            discount=np.zeros(size, np.float32),
            logits=np.zeros((size, game.num_actions), np.float32),
            value=np.zeros(size, np.float32),
        )
        if not len(rows):
            return step, state
        mover = moves[rows].argmax(1)
        before = nest.map_structure(lambda array: array[rows], state)
        actions = np.repeat(action[rows, None], moves.shape[1], 1)
        after = game.play(before, actions, self._rng)
        moves = game.moves(after)
        goes_on, seats = moves.any(1), moves.argmax(1)
        legal = game.legal(after, seats)
        if not (legal.any(1) | ~goes_on).all():
            raise ValueError(
                f"{game.name}: a game goes on, and seat {seats[0]} has no legal action"
            )
        logits, value = self._evaluate(game.observe(after, seats))
        step.reward[rows] = game.returns(after)[np.arange(len(rows)), mover]
        sign = np.where(seats == mover, 1, -1)
        step.discount[rows] = goes_on * sign * self.gamma
        step.logits[rows] = np.where(legal, logits, _RULED_OUT)
        step.value[rows] = np.where(goes_on, value, 0)
        for array, new in zip(nest.flatten(state), nest.flatten(after), strict=True):
            array[rows] = new
        return step, state
