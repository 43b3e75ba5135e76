"""Games against opponents, which act inside of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError, EnvError
from alf_lite.games.game import Game, copy_rows
from alf_lite.games.game_environment import GameEnvironment
from alf_lite.games.opponent_pool import Snapshots
from alf_lite.games.opponents import Memory, Opponent, choose_rows
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
        info = ("outcome", "seat", "opponent")
        super().__init__(
            num_environments,
            game,
            env_info_spec={name: TensorSpec(()) for name in info},
            **kwargs,
        )
        if not opponents and not num_snapshots:
            raise ConfigError(
                f"{self.name}: there are no opponents. Name some, such as "
                "(@RandomOpponent(),), or set num_snapshots, which are of the policy."
            )
        num_seats = self.game.num_players
        if seat is not None and seat not in range(num_seats):
            raise ConfigError(
                f"{self.name}: seat must be below {num_seats}, or None for each in "
                f"turn, got {seat}"
            )
        for opponent in opponents:
            opponent.check_game(self.game)
        self._bots = list(opponents)
        self._num_snapshots = num_snapshots
        self._snapshots: Snapshots | None = None
        self._fixed_seat = seat
        self._seats = np.zeros(num_environments, np.int64)
        self._opponent_ids = np.zeros(num_environments, np.int64)
        self._memories: dict[tuple[int, int], Memory] = {}  # (opponent, seat) → [B]

    def bind(self, algorithm: Any) -> None:
        if self._num_snapshots:
            names = [bot.name for bot in self._bots]
            num_seats = self.game.num_players
            self._snapshots = Snapshots(
                algorithm, self, self._num_snapshots, names, num_seats
            )

    def reset(self, seed: int | None = None) -> TimeStep:
        self._seats[...] = self._rows - 1  # the one before that of the first game
        return super().reset(seed)

    def _choosing_seats(self) -> np.ndarray:
        return self._seats

    def _begin(self, rows: np.ndarray) -> None:
        super()._begin(rows)
        following = (self._seats[rows] + 1) % self.game.num_players
        self._seats[rows] = following if self._fixed_seat is None else self._fixed_seat
        self._choose_opponents(rows)
        self._let_opponents_move(rows)

    def _choose_opponents(self, rows: np.ndarray) -> None:
        """Of new games; the others are finished against those they have."""
        num_bots = len(self._bots)
        weights = np.ones(num_bots)
        if self._snapshots is not None:
            weights = self._snapshots.pool.weights.numpy(force=True)
        if not weights.sum():
            raise EnvError(f"{self.name}: there is no opponent, all weights are 0")
        shares = weights.cumsum() / weights.sum()
        chosen = shares.searchsorted(self._rng.random(len(rows)), side="right")
        if self._snapshots is not None:
            is_snapshot = chosen >= num_bots
            for slot in np.unique(chosen[is_snapshot]):
                number = self._snapshots.play(int(slot) - num_bots)
                chosen[chosen == slot] = -1 - number  # which is no slot
            chosen = np.where(chosen < 0, num_bots - 1 - chosen, chosen)
        self._opponent_ids[rows] = chosen
        playing = set(self._opponent_ids.tolist())
        if self._snapshots is not None:
            self._snapshots.keep(i - num_bots for i in playing)
        kept = self._memories.items()
        self._memories = {key: value for key, value in kept if key[0] in playing}
        for i in np.unique(chosen).tolist():
            own = rows[chosen == i]
            for seat in range(self.game.num_players):
                begun = self._opponent(i).begin(len(own), self._rng)
                if (i, seat) not in self._memories:
                    self._memories[i, seat] = self._new_memory(i)
                for array, new in zip(self._memories[i, seat], begun, strict=True):
                    array[own] = new

    def _new_memory(self, opponent_id: int) -> Memory:
        """[B, ...], of which nothing is known."""
        like = self._opponent(opponent_id).begin(1, np.random.default_rng(0))
        return [array.repeat(self.batch_size, 0) for array in like]

    def _opponent(self, opponent_id: int) -> Opponent:
        num_bots = len(self._bots)
        if opponent_id < num_bots:
            return self._bots[opponent_id]
        assert self._snapshots is not None
        return self._snapshots[opponent_id - num_bots]

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
            acts = moves[:, seat] & (seats != seat)
            ids = self._opponent_ids[rows]
            for i in np.unique(ids[acts]):
                chosen = np.flatnonzero(acts & (ids == i))
                actions[chosen, seat] = choose_rows(
                    *(self._opponent(int(i)), self.game, copy_rows(games, chosen)),
                    *(np.full(len(chosen), seat), self._rng),
                    *(self._memories[int(i), seat], rows[chosen]),
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
            state["memories"] = {
                f"{opponent}/{seat}": [torch.from_numpy(x.copy()) for x in memory]
                for (opponent, seat), memory in self._memories.items()
            }
            if self._snapshots is not None:
                state["snapshots"] = self._snapshots.state()
        return state

    def restore_episodes(self, state: dict[str, Any], seed: int) -> dict[int, str]:
        reasons = super().restore_episodes(state, seed)
        if self._snapshots is not None:
            self._snapshots.restore(state["snapshots"])
        self._memories = {}
        for name, memory in state["memories"].items():
            opponent, _, seat = name.partition("/")
            self._memories[int(opponent), int(seat)] = [x.numpy() for x in memory]
        return reasons
