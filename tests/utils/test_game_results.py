"""Results of games by opponent and seat."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from alf_lite.data_structures import StepType, TimeStep
from alf_lite.utils.game_results import (
    Opposition,
    distinct_names,
    ended_games,
    named_results,
    result_lines,
    score_of,
    seat_records,
)

# Opponent, seat, outcome
GAMES = np.array([[1, 0, 1.0], [0, 1, -1], [1, 0, 0], [1, 0, 2], [3, 1, 1], [4, 1, -2]])


def test_games_are_counted_by_opponent_and_seat():
    opposition = Opposition(("random", "perfect"))
    records = seat_records(GAMES, opposition.name_of)
    assert records == (
        ("random", 1, 0, 0, 1, -1.0),
        ("perfect", 0, 2, 1, 0, 1.0),
        ("snapshot_1", 1, 1, 0, 0, 1.0),
        ("snapshot_2", 1, 0, 0, 1, -2.0),
    )
    # Of the snapshots together
    assert seat_records(GAMES, opposition.kind_of)[2:] == (
        ("snapshots", 1, 1, 0, 1, -0.5),
    )


def test_every_opponent_and_seat_counts_alike():
    records = seat_records(GAMES, Opposition(("random", "perfect")).kind_of)
    assert score_of(records) == pytest.approx((-1 + 1 - 0.5) / 3)
    assert GAMES[:, 2].mean() == pytest.approx(1 / 6)
    assert math.isnan(score_of(()))


def test_shares_by_name():
    named = named_results(
        seat_records(GAMES[[0, 2, 3]], Opposition(("a", "b")).name_of)
    )
    assert named == {
        "score": 1.0,
        "outcome/b/seat_0": 1.0,
        "won/b/seat_0": pytest.approx(2 / 3),
        "drawn/b/seat_0": pytest.approx(1 / 3),
        "lost/b/seat_0": 0.0,
    }
    assert named_results(()) == {}


def test_lines_for_a_terminal():
    records = seat_records(GAMES[:4], Opposition(("random", "perfect")).name_of)
    assert result_lines(records) == [
        "random   seat 1: won 0, drawn 0, lost 1, mean outcome -1.000",
        "perfect  seat 0: won 2, drawn 1, lost 0, mean outcome +1.000",
    ]


def test_only_the_ends_of_games_against_somebody_are_read():
    last, mid = int(StepType.LAST), int(StepType.MID)
    info = {
        "opponent": torch.tensor([[0.0, 1], [2, -1]]),
        "seat": torch.tensor([[0.0, 1], [1, 0]]),
        "outcome": torch.tensor([[9.0, -1], [0.5, 7]]),
    }
    steps = TimeStep(step_type=torch.tensor([[mid, last], [last, last]]), env_info=info)
    assert ended_games(steps).tolist() == [[1, 1, -1], [2, 1, 0.5]]
    none = steps._replace(step_type=torch.full((2, 2), mid))
    assert ended_games(none).shape == (0, 3)


def test_names_that_come_twice_are_numbered():
    assert distinct_names(["a", "b", "a"]) == ("a#1", "b", "a#2")
