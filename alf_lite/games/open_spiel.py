"""The games of OpenSpiel, and its Monte Carlo tree search as an opponent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.errors import ConfigError, did_you_mean, missing_extra
from alf_lite.games.board_games import ConnectFour, TicTacToe
from alf_lite.games.game import Game, Rng, State, objects
from alf_lite.games.opponents import Opponent


class SpielState(NamedTuple):
    """N games; a state of OpenSpiel is never changed here."""

    states: np.ndarray  # [N] of pyspiel.State


@configurable
class OpenSpielGame(Game):
    """A game of OpenSpiel (Lanctot et al. 2019, arXiv:1908.09453).

    A seat sees the information state if the game hides something, and the observation
    otherwise. In a board game that shows both seats the same tensor, the seat is added
    to it: one more plane, or element, of zeros or ones. Chance is drawn from the
    generator that is given, so that a seed fixes it. Seats move in turn or all at once.

    Args:
        name: such as ``"connect_four"`` or ``"leduc_poker(players=3)"``.

    Raises:
        ConfigError: if there is no such game, or nothing in it that a network sees.
    """

    def __init__(self, name: str) -> None:
        self.name = f"open_spiel/{name}"
        self._game = game = _load(name)
        kind = game.get_type()
        self.num_players = game.num_players()
        self.num_actions = game.num_distinct_actions()
        self.max_length = game.max_game_length()
        is_open = str(kind.information).endswith("PERFECT_INFORMATION")
        is_open &= "IMPERFECT" not in str(kind.information)
        self._sees_state = not is_open and kind.provides_information_state_tensor
        if not self._sees_state and not kind.provides_observation_tensor:
            raise ConfigError(f"{self.name} has no tensor of what a player sees")
        self.is_board_game = (
            is_open
            and self.num_players == 2
            and str(kind.utility).endswith("ZERO_SUM")
            and str(kind.dynamics).endswith("SEQUENTIAL")
            and str(kind.chance_mode).endswith("DETERMINISTIC")
        )
        first, *others = (
            game.information_state_tensor_shape()
            if self._sees_state
            else game.observation_tensor_shape()
        )
        self._tensor_shape = (first, *others)
        self._tells_seat = self.is_board_game and _looks_alike(game)
        shape = (first + self._tells_seat, *others)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape)

    def initial(self, number: int, rng: Rng) -> SpielState:
        states = [self._game.new_initial_state() for _ in range(number)]
        return SpielState(objects([_after_chance(state, rng) for state in states]))

    def moves(self, state: SpielState) -> np.ndarray:
        moves = np.zeros((len(state.states), self.num_players), bool)
        for row, one in enumerate(state.states):
            if one.is_simultaneous_node():
                seats = range(self.num_players)
                moves[row] = [bool(one.legal_actions(seat)) for seat in seats]
            elif not one.is_terminal():
                moves[row, one.current_player()] = True
        return moves

    def play(self, state: SpielState, actions: np.ndarray, rng: Rng) -> SpielState:
        after = []
        for one, chosen in zip(state.states, actions.tolist(), strict=True):
            if one.is_simultaneous_node():
                copy = one.clone()
                copy.apply_actions(chosen)
            else:
                copy = one.child(chosen[one.current_player()])
            after.append(_after_chance(copy, rng))
        return SpielState(objects(after))

    def legal(self, state: SpielState, seats: np.ndarray) -> np.ndarray:
        legal = np.zeros((len(seats), self.num_actions), bool)
        for row, one, seat in zip(legal, state.states, seats.tolist(), strict=True):
            if not one.is_terminal():
                row[one.legal_actions(seat)] = True
        return legal

    def observe(self, state: SpielState, seats: np.ndarray) -> np.ndarray:
        seen = [
            one.information_state_tensor(seat)
            if self._sees_state
            else one.observation_tensor(seat)
            for one, seat in zip(state.states, seats.tolist(), strict=True)
        ]
        tensors = np.array(seen, np.float32).reshape(-1, *self._tensor_shape)
        if not self._tells_seat:
            return tensors
        plane = np.zeros_like(tensors[:, :1])
        plane.T[:] = seats
        return np.concatenate([tensors, plane], 1)

    def returns(self, state: SpielState) -> np.ndarray:
        nothing = [0.0] * self.num_players
        won = [s.returns() if s.is_terminal() else nothing for s in state.states]
        return np.array(won, np.float32).reshape(-1, self.num_players)

    def pack(self, state: SpielState) -> list[np.ndarray]:
        """[N, L] uint8: what OpenSpiel writes of each game, and zeros behind it."""
        serialize = _import().serialize_game_and_state
        texts = [serialize(self._game, one).encode() for one in state.states]
        packed = np.zeros((len(texts), max(map(len, texts), default=0)), np.uint8)
        for row, text in zip(packed, texts, strict=True):
            row[: len(text)] = np.frombuffer(text, np.uint8)
        return [packed]

    def unpack(self, arrays: Sequence[np.ndarray]) -> SpielState:
        deserialize = _import().deserialize_game_and_state
        texts = [row.tobytes().rstrip(b"\0").decode() for row in arrays[0]]
        return SpielState(objects([deserialize(text)[1] for text in texts]))

    def describe(self, state: SpielState, row: int) -> str:
        return str(state.states[row])

    def describe_to(self, state: SpielState, row: int, seat: int) -> str:
        one = state.states[row]
        if self.is_board_game:
            return str(one)
        kind = self._game.get_type()
        if kind.provides_information_state_string:
            return one.information_state_string(seat)
        if kind.provides_observation_string:
            return one.observation_string(seat)
        return super().describe_to(state, row, seat)

    def action_name(self, state: SpielState, row: int, seat: int, action: int) -> str:
        return state.states[row].action_to_string(seat, action)


@configurable
class MctsOpponent(Opponent):
    """OpenSpiel's Monte Carlo tree search with random rollouts (UCT).

    For tic-tac-toe, Connect-4 and the games of OpenSpiel in which nothing is hidden.

    Args:
        num_simulations: for each move.
        exploration: the constant of UCT.
    """

    def __init__(self, num_simulations: int = 10, exploration: float = 2.0) -> None:
        if num_simulations < 1:
            raise ConfigError(
                "MctsOpponent: num_simulations must be at least 1, got "
                f"{num_simulations}"
            )
        self.name = f"mcts_{num_simulations}"
        self._num_simulations = num_simulations
        self._exploration = exploration

    def check_game(self, game: Game) -> None:
        is_known = isinstance(game, OpenSpielGame | TicTacToe | ConnectFour)
        if not is_known or not game.is_board_game:
            raise ConfigError(
                f"{self.name} plays tic-tac-toe, Connect-4 and the games of OpenSpiel "
                f"in which two move in turn and know all, but not {game.name}"
            )
        _import()

    def act(self, game: Game, state: State, seats: np.ndarray, rng: Rng) -> np.ndarray:
        pyspiel = _import()
        chosen = []
        for row, seed in enumerate(rng.integers(2**31, size=len(seats)).tolist()):
            one = _spiel_state(game, state, row)
            bot = pyspiel.MCTSBot(
                one.get_game(),
                pyspiel.RandomRolloutEvaluator(1, seed),
                self._exploration,
                self._num_simulations,
                1000,
                False,
                seed,
                False,  # MB, solve, seed, verbose
            )
            chosen.append(bot.step(one))
        return np.array(chosen)


def _spiel_state(game: Game, state: State, row: int) -> Any:
    if isinstance(game, OpenSpielGame):
        return state.states[row]
    assert isinstance(game, TicTacToe | ConnectFour), game
    name = "tic_tac_toe" if isinstance(game, TicTacToe) else "connect_four"
    one = _load(name).new_initial_state()
    for action in game.history(state, row):
        one.apply_action(action)
    return one


def _looks_alike(game: Any) -> bool:
    """Whether both seats see the same, in the first moves of a game."""
    state = game.new_initial_state()
    for _ in range(8):
        if state.is_terminal():
            break
        if state.observation_tensor(0) != state.observation_tensor(1):
            return False
        legal = state.legal_actions()
        state.apply_action(legal[len(legal) // 2])
    return True


def _after_chance(state: Any, rng: Rng) -> Any:
    """The state, after all that is left to chance now."""
    while state.is_chance_node():
        outcomes = state.chance_outcomes()
        limits = np.cumsum([probability for _, probability in outcomes])
        place = int(limits[:-1].searchsorted(rng.random(), side="right"))
        state.apply_action(outcomes[place][0])
    return state


def _load(name: str) -> Any:
    pyspiel = _import()
    try:
        return pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        names = [kind.short_name for kind in pyspiel.registered_games()]
        raise ConfigError(
            f"OpenSpiel has no game {name!r}.{did_you_mean(name, names)} {error}"
        ) from error


def _import() -> Any:
    try:
        import pyspiel
    except ImportError as error:
        raise missing_extra("a game of OpenSpiel", "games") from error
    return pyspiel
