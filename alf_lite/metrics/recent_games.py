"""The latest games of a training run against opponents, as one of its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from alf_lite.data_structures import TimeStep
from alf_lite.errors import CheckpointError
from alf_lite.metrics.episode_sums import RecentRows
from alf_lite.utils import game_results
from alf_lite.utils.game_results import GAME_KEYS, Opposition, SeatRecord
from alf_lite.utils.ranks import ranks

_COLUMNS = len(GAME_KEYS)


class RecentGames:
    """Results of the latest training games by opponent and seat.

    Args:
        opposition: of the environment.
        buffer_size: how many games, of each rank.
    """

    name = "Games"

    def __init__(self, opposition: Opposition, buffer_size: int) -> None:
        self._opposition = opposition
        self._recent = RecentRows(buffer_size, _COLUMNS)
        self._elsewhere = np.zeros((0, _COLUMNS))

    def records(self, name_of: Callable[[int], str]) -> tuple[SeatRecord, ...]:
        """See :func:`game_results.seat_records`."""
        own = self._recent.rows[: len(self._recent)]
        return game_results.seat_records(
            np.concatenate((own, self._elsewhere)), name_of
        )

    def result(self) -> dict[str, float]:
        """Of each bot, and of all snapshots together."""
        return game_results.named_results(self.records(self._opposition.kind_of))

    def observe(self, time_step: TimeStep, env_ids: np.ndarray) -> None:
        """Takes in raw time steps [T, B, ...] of these environments [B]."""
        self._recent.append(game_results.ended_games(time_step))

    def shares(self) -> np.ndarray:
        """What the other ranks are told: the games, in a place of this rank's own."""
        rows = self._recent.rows
        places = np.zeros((ranks.size, len(rows), 1 + _COLUMNS))
        places[ranks.index, : len(self._recent), 0] = 1
        places[ranks.index, :, 1:] = rows
        return places.reshape(-1)

    def take_in(self, elsewhere: np.ndarray) -> None:
        """Counts the games of the other ranks, the sum of their shares."""
        places = elsewhere.reshape(-1, 1 + _COLUMNS)
        self._elsewhere = places[places[:, 0] > 0, 1:]

    def drop_open_episodes(self) -> None:
        """A game says at its end all that is counted."""

    def forget_episodes(self) -> None:
        self._recent.clear()

    reset = forget_episodes

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_recorded": self._recent.num_appended,
            "recorded": torch.tensor(self._recent.rows),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues; CheckpointError if another number of games was kept."""
        rows = state_dict["recorded"].numpy()
        if rows.shape != self._recent.rows.shape:
            raise CheckpointError(
                f"metrics: {self.name} were saved with the shape {rows.shape}, now it "
                f"is {self._recent.rows.shape}"
            )
        self._recent.rows[...] = rows
        self._recent.num_appended = int(state_dict["num_recorded"])
