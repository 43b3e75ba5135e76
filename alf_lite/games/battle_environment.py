"""Games against opponents, which act inside of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError
from alf_lite.games.game import Game, copy_rows
from alf_lite.games.game_environment import GameEnvironment
from alf_lite.games.opponent_pool import Opponents
from alf_lite.games.opponents import Opponent
from alf_lite.tensor_specs import TensorSpec


@configurable
class BattleEnvironment(GameEnvironment):
    """An algorithm plays one seat against opponents, which act inside of ``step``.

    Opponents are ``opponents``, which stay as they are, and ``num_snapshots`` of the
    algorithm's own policy, which a :class:`League` takes while it trains; until then
    there is the policy that it begins with.

    Every row that the algorithm sees is one in which it has to choose, or the end. A
    game is finished against the opponent that it began with. Seats are taken in turn:
    environment i begins with seat i, and goes on to the next seat with each new game.

    ``env_info`` of a step: ``outcome``, what the algorithm has won at the end, its
    ``seat``, and which ``opponent`` it has: i for the i-th of ``opponents``, and behind
    them the snapshots in the order in which they were taken.

    Args:
        num_environments: B.
        game: see :class:`GameEnvironment`.
        opponents: with whom games are played, all equally often unless a league says
            otherwise; one opponent plays all other seats of a game.
        num_snapshots: how many snapshots of the policy there are at most.
        seat: of the algorithm in all games; None: one after the other.
        **kwargs: see :class:`GameEnvironment`.

    Raises:
        ConfigError: if there is no opponent or no such seat.
    """

    def __init__(
        self,
        num_environments: int,
        game: Game | str = "tic_tac_toe",
        *,
        opponents: Sequence[Opponent] = (),
        num_snapshots: int = 0,
        seat: int | None = None,
        **kwargs: Any,
    ) -> None:
        spec = dict.fromkeys(("outcome", "seat", "opponent"), TensorSpec(()))
        super().__init__(num_environments, game, env_info_spec=spec, **kwargs)
        num_seats = self.game.num_players
        if seat is not None and seat not in range(num_seats):
            raise ConfigError(
                f"{self.name}: seat must be below {num_seats}, or None for each in "
                f"turn, got {seat}"
            )
        self._opponents = Opponents(self, opponents, num_snapshots, self.game)
        self._fixed_seat = seat
        self._seats = np.zeros(num_environments, np.int64)
        self._opponent_ids = np.zeros(num_environments, np.int64)

    def bind(self, algorithm: Any) -> None:
        self._opponents.bind(algorithm, self.game.num_players)

    def reset(self, seed: int | None = None) -> TimeStep:
        self._seats[...] = self._rows - 1  # the one before that of the first game
        return super().reset(seed)

    def _choosing_seats(self) -> np.ndarray:
        return self._seats

    def _begin(self, rows: np.ndarray) -> None:
        super()._begin(rows)
        following = (self._seats[rows] + 1) % self.game.num_players
        self._seats[rows] = following if self._fixed_seat is None else self._fixed_seat
        self._opponents.choose(self._opponent_ids, rows, self._rng)
        self._let_opponents_move(rows)

    def _take(self, rows: np.ndarray, action: np.ndarray) -> np.ndarray:
        self._move(rows, action)
        self._let_opponents_move(rows)
        won = self.game.returns(copy_rows(self._games, rows))
        return won[np.arange(len(rows)), self._seats[rows]]

    def _let_opponents_move(self, rows: np.ndarray) -> None:
        """Until it is the algorithm's turn, or the game is over."""
        while len(rows):
            moves = self.game.moves(copy_rows(self._games, rows))
            is_own = moves[np.arange(len(rows)), self._seats[rows]]
            rows = rows[moves.any(1) & ~is_own]
            if len(rows):
                self._move(rows, np.zeros(len(rows), np.int64))

    def _move(self, rows: np.ndarray, action: np.ndarray) -> None:
        """One move of all who choose now; ``action`` [N] is the algorithm's."""
        games, seats = copy_rows(self._games, rows), self._seats[rows]
        moves = self.game.moves(games)
        actions = np.zeros(moves.shape, np.int64)
        actions[np.arange(len(rows)), seats] = action
        for seat in range(self.game.num_players):
            acts = np.flatnonzero(moves[:, seat] & (seats != seat))
            actions[acts, seat] = self._opponents.act(
                *(self._opponent_ids, rows[acts], copy_rows(games, acts)),
                *(np.full(len(acts), seat), self._rng),
            )
        self._play(rows, actions)

    def _env_info(self, has_begun: np.ndarray) -> dict[str, np.ndarray]:
        won = self.game.returns(self._games)[self._rows, self._seats]
        return {
            "outcome": np.where(has_begun, 0, won),
            "seat": self._seats,
            "opponent": self._opponent_ids,
        }

    def _own_arrays(self) -> Sequence[np.ndarray]:
        return self._seats, self._opponent_ids

    def episode_state(self) -> dict[str, Any] | None:
        state = super().episode_state()
        if state is not None:
            state["opponents"] = self._opponents.state()
        return state

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        reasons = super().restore_episodes(state, seed)
        self._opponents.restore(state["opponents"])
        return reasons
