"""What a game is to the rest of the library: rules, for many games side by side."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from alf_lite.errors import ConfigError

MASK_KEY = "action_mask"  # of what an environment observes of a game

Rng = np.random.Generator

# A NamedTuple of arrays [N, ...]: a row is a game, and indexing copies games.
State = Any


class Game(abc.ABC):
    """The rules of a game that is played N times side by side.

    Nothing is kept here: a state holds all there is to know of N games, in arrays
    [N, ...] which no method changes. :func:`copy_rows` is what a search tree needs, and
    the arrays are what a checkpoint keeps.

    Seats are numbered from 0. Those that :meth:`moves` names choose an action: one
    after the other, or several at once. A game in which nobody moves is over.
    """

    name: str
    num_players: int = 2
    num_actions: int
    observation_space: spaces.Box  # of what a seat sees, float32
    max_length: int  # in so many moves every game is over
    # Whether two seats move in turn, what one wins the other loses, and both know all.
    is_board_game: bool = False

    @abc.abstractmethod
    def initial(self, number: int, rng: Rng) -> State:
        """``number`` games that begin; what chance decides is drawn from ``rng``."""

    def starts(self) -> State:
        """The states in which games begin, all as likely; one if chance has no say.

        Raises:
            ConfigError: if it has one, and the game does not say which there are.
        """
        rng = np.random.default_rng(0)
        before = rng.bit_generator.state
        state = self.initial(1, rng)
        if rng.bit_generator.state != before:
            raise ConfigError(
                f"{self.name}: chance decides how it begins. Write a starts() that "
                "returns all those states, each as often as it is likely."
            )
        return state

    @abc.abstractmethod
    def moves(self, state: State) -> np.ndarray:
        """[N, P] bool: who chooses now; nobody where the game is over."""

    @abc.abstractmethod
    def play(self, state: State, actions: np.ndarray, rng: Rng) -> State:
        """The games after one move of those who choose now.

        Args:
            state: of N games, none of which is over.
            actions: [N, P], legal where the seat moves, of no concern elsewhere.
            rng: of what chance decides.
        """

    @abc.abstractmethod
    def legal(self, state: State, seats: np.ndarray) -> np.ndarray:
        """[N, A] bool: what ``seats`` [N] may do; nothing where they do not move."""

    @abc.abstractmethod
    def observe(self, state: State, seats: np.ndarray) -> np.ndarray:
        """[N, ...] of ``observation_space``: what ``seats`` [N] know of their game."""

    @abc.abstractmethod
    def returns(self, state: State) -> np.ndarray:
        """[N, P] float32: what the seats have won where the game is over, else 0."""

    def paid(self, state: State) -> np.ndarray:
        """[N, P] float32: what the last move has won; all of it at the end."""
        return self.returns(state)

    def ended(self, state: State) -> np.ndarray:
        """[N, P] bool: for whom it is over by the rules, and was not cut."""
        return np.repeat(~self.moves(state).any(1, keepdims=True), self.num_players, 1)

    def release(self, state: State) -> None:  # noqa: B027 - few hold anything
        """Says that these games will not be looked at any more."""

    @functools.cached_property
    def policy_space(self) -> spaces.Dict:
        """Of :meth:`policy_input` of one seat."""
        mask = spaces.MultiBinary(self.num_actions)
        return spaces.Dict({MASK_KEY: mask, "observation": self.observation_space})

    def policy_input(self, state: State, seats: np.ndarray) -> dict[str, np.ndarray]:
        """What a policy sees of ``seats`` [N], arrays [N, ...] by name."""
        return {
            MASK_KEY: self.legal(state, seats).astype(np.int8),
            "observation": self.observe(state, seats),
        }

    def state_of(self, observation: np.ndarray) -> State:
        """Games in which the seat that moves sees this, for players that look ahead.

        Args:
            observation: [N, ...], of :meth:`observe`.

        Raises:
            ConfigError: if it does not tell all.
        """
        raise ConfigError(
            f"{self.name}: what a seat sees does not tell the state of the game, with "
            "which a search begins. Take tic-tac-toe, Connect-4, Nim or a LineGame."
        )

    def symmetries(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Turned and mirrored boards, in which what is turned is worth as much.

        Returns:
            of each: the elements of what a seat sees, flattened, in their new order;
            and the actions in theirs. The first one leaves all as it is.
        """
        size = math.prod(self.observation_space.shape)
        return [(np.arange(size), np.arange(self.num_actions))]

    def pack(self, state: State) -> list[np.ndarray]:
        """Numbers that say all, for a checkpoint."""
        return list(state)

    def unpack(self, arrays: Sequence[np.ndarray]) -> State:
        """The state of which :meth:`pack` has made them."""
        return type(self.initial(0, np.random.default_rng(0)))(*arrays)

    def describe(self, state: State, row: int) -> str:
        """One game as text with all that there is, for people to look at."""
        return "\n".join(
            f"{field}: {array[row]}"
            for field, array in zip(state._fields, state, strict=True)
        )

    def describe_to(self, state: State, row: int, seat: int) -> str:
        """One game as text with what ``seat`` may know, for people who play it."""
        if self.is_board_game:
            return self.describe(state, row)
        seats = np.full(len(state[0]), seat)
        return f"you see {self.observe(state, seats)[row].tolist()}"

    def action_name(self, state: State, row: int, seat: int, action: int) -> str:
        """What ``action`` of ``seat`` is called in one game, for people who play it."""
        return str(action)


def objects(items: Sequence[Any]) -> np.ndarray:
    """[N], of what is no number."""
    array = np.empty(len(items), object)
    array[:] = items
    return array


def copy_rows(state: State, rows: Any) -> State:
    """Copies of some games.

    Args:
        state: of N games.
        rows: indices, which may come twice, or a mask [N].
    """
    return type(state)(*[array[rows] for array in state])


def with_rows(state: State, rows: Any, others: State) -> State:
    """A copy of ``state`` with other games in some rows."""
    copies = [array.copy() for array in state]
    for array, other in zip(copies, others, strict=True):
        array[rows] = other
    return type(state)(*copies)


def random_legal(legal: np.ndarray, rng: Rng) -> np.ndarray:
    """[N]: any of the legal actions [N, A]; 0 where there is none."""
    return (legal * (1 - rng.random(legal.shape))).argmax(1)
