"""Results of games against opponents: read from time steps, counted and named."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from alf_lite.data_structures import StepType, TimeStep

# What env_info tells of a game, see Opposition. Means of the first two say nothing.
GAME_KEYS = ("opponent", "seat", "outcome")


class Opposition(NamedTuple):
    """Against whom the games of an environment are played.

    Its ``env_info`` has :data:`GAME_KEYS`: ``opponent`` i is the i-th of ``bots``;
    behind them come the snapshots of the policy, in the order in which they were taken,
    and -1 is nobody. ``seat`` is that of the policy, from 0 on, and ``outcome`` what it
    has won when the game is over.
    """

    bots: tuple[str, ...]  # names, all different

    def name_of(self, opponent: int) -> str:
        """Of one that ``env_info`` tells."""
        number = opponent - len(self.bots)
        return self.bots[opponent] if number < 0 else f"snapshot_{number}"

    def kind_of(self, opponent: int) -> str:
        """The same, but all snapshots have one name."""
        return self.bots[opponent] if opponent < len(self.bots) else "snapshots"


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """With ``#1``, ``#2``, … behind those that come several times."""
    return tuple(
        name if names.count(name) == 1 else f"{name}#{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    )


def ended_games(steps: TimeStep) -> np.ndarray:
    """The games that end in steps of any shape, [N, 3], see :data:`GAME_KEYS`."""
    is_last = steps.step_type.numpy(force=True) == StepType.LAST
    if not is_last.any():
        return np.zeros((0, 3))
    info: Any = steps.env_info
    columns = [info[key].numpy(force=True)[is_last] for key in GAME_KEYS]
    games = np.stack(columns, 1).astype(np.float64)
    return games[games[:, 0] >= 0]


def results_of(games: np.ndarray) -> np.ndarray:
    """[N]: 0 for a game that was won, 1 drawn, 2 lost."""
    return (1 - np.sign(games[:, 2])).astype(int)


class SeatRecord(NamedTuple):
    """The games against one opponent in one seat."""

    opponent: str
    seat: int
    won: int
    drawn: int
    lost: int
    outcome: float  # their mean

    @property
    def num_games(self) -> int:
        return self.won + self.drawn + self.lost


def seat_records(
    games: np.ndarray, name_of: Callable[[int], str]
) -> tuple[SeatRecord, ...]:
    """Of games [N, 3], by the number of the opponent and then by seat.

    Opponents to whom ``name_of`` gives the same name are counted together.
    """
    rows: dict[tuple[str, int], list[int]] = {}
    for i in np.lexsort((games[:, 1], games[:, 0])).tolist():
        opponent, seat = games[i, :2].astype(int).tolist()
        rows.setdefault((name_of(opponent), seat), []).append(i)
    records = []
    for (name, seat), own in rows.items():
        won, drawn, lost = np.bincount(results_of(games[own]), minlength=3).tolist()
        mean = float(games[own, 2].mean())
        records.append(SeatRecord(name, seat, won, drawn, lost, mean))
    return tuple(records)


def score_of(records: Sequence[SeatRecord]) -> float:
    """The mean outcome over opponents and seats, each of which counts alike.

    NaN without a game.
    """
    if not records:
        return math.nan
    return float(np.mean([record.outcome for record in records]))


def named_results(records: Sequence[SeatRecord]) -> dict[str, float]:
    """``score``, and ``outcome/OPPONENT/seat_0``, …; ``won``, … are shares of games."""
    numbers = {"score": score_of(records)} if records else {}
    for record in records:
        who = f"{record.opponent}/seat_{record.seat}"
        numbers[f"outcome/{who}"] = record.outcome
        for result in ("won", "drawn", "lost"):
            share = getattr(record, result) / record.num_games
            numbers[f"{result}/{who}"] = share
    return numbers


def result_lines(records: Sequence[SeatRecord]) -> list[str]:
    """For a terminal, a line for each opponent and seat."""
    width = max((len(record.opponent) for record in records), default=0)
    return [
        f"{r.opponent:<{width}}  seat {r.seat}: won {r.won}, drawn {r.drawn}, lost "
        f"{r.lost}, mean outcome {r.outcome:+.3f}"
        for r in records
    ]
