"""Games against opponents, which act inside of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError
from alf_lite.games.game import Game
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

    Every row that the algorithm sees is one in which it has to choose, or the end; of a
    game that others end before its first move, a FIRST step comes before that, with no
    legal action. A game is finished against the opponent that it began with. Seats are
    taken in turn: environment i begins with seat i, and goes on to the next seat with
    each new game.

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

    def reset(self, seed: int | None = None) -> TimeStep:
        self._seats[:, 0] = self._rows - 1  # the one before that of the first game
        return super().reset(seed)

    def _begin(self, rows: np.ndarray) -> None:
        following = (self._seats[rows] + 1) % self.game.num_players
        self._seats[rows] = following if self._fixed_seat is None else self._fixed_seat
        super()._begin(rows)

    def _env_info(self, has_begun: np.ndarray) -> dict[str, Any]:
        won = self.game.returns(self._games)[self._rows, self._seats[:, 0]]
        return {
            "outcome": np.where(has_begun, 0, won),
            "seat": self._seats,
            "opponent": self._opponent_ids,
        }
