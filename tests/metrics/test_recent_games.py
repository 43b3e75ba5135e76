"""The latest games of a training run, by opponent and seat."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from alf_lite.data_structures import StepType, TimeStep
from alf_lite.errors import CheckpointError
from alf_lite.metrics import recent_games
from alf_lite.metrics.recent_games import RecentGames
from alf_lite.utils.game_results import GAME_KEYS, Opposition

OPPOSITION = Opposition(("random",))


def games(*rows) -> TimeStep:
    """Steps [1, B], all the ends of games."""
    columns = torch.tensor(rows).T[:, None]
    return TimeStep(
        step_type=torch.full(columns[0].shape, int(StepType.LAST)),
        env_info=dict(zip(GAME_KEYS, columns, strict=True)),
    )


def make(*rows, size: int = 4) -> RecentGames:
    metric = RecentGames(OPPOSITION, size)
    metric.observe(games(*rows), np.arange(len(rows)))
    return metric


def test_old_games_are_forgotten():
    metric = make((0.0, 0, -1), (0, 0, -1), (0, 0, -1), (0, 0, -1))
    assert metric.result()["score"] == -1
    metric.observe(games((2.0, 1, 1), (0, 0, 1)), np.arange(2))
    assert metric.result() == {
        "score": pytest.approx(1 / 3),
        "outcome/random/seat_0": pytest.approx(-1 / 3),
        "won/random/seat_0": pytest.approx(1 / 3),
        "drawn/random/seat_0": 0,
        "lost/random/seat_0": pytest.approx(2 / 3),
        "outcome/snapshots/seat_1": 1,
        "won/snapshots/seat_1": 1,
        "drawn/snapshots/seat_1": 0,
        "lost/snapshots/seat_1": 0,
    }
    metric.forget_episodes()
    assert metric.result() == {}


def test_the_games_of_all_ranks_count(monkeypatch):
    ones = [make((0.0, 0, 1)), make((0.0, 0, -1), (1.0, 1, 0))]
    shares = []
    monkeypatch.setattr(recent_games.ranks, "size", 2)
    for index, one in enumerate(ones):
        monkeypatch.setattr(recent_games.ranks, "index", index)
        shares.append(one.shares())
    for one, own in zip(ones, shares, strict=True):
        one.take_in(sum(shares) - own)
    assert ones[0].result() == ones[1].result()
    assert ones[0].records(OPPOSITION.name_of) == (
        ("random", 0, 1, 0, 1, 0.0),
        ("snapshot_0", 1, 0, 1, 0, 0.0),
    )


def test_it_is_continued():
    metric, again = make((0.0, 0, 1), (3.0, 1, -1)), RecentGames(OPPOSITION, 4)
    again.load_state_dict(metric.state_dict())
    for one in (metric, again):
        one.observe(games(*[(0.0, 1, -1)] * 3), np.arange(3))
    assert again.result() == metric.result()
    with pytest.raises(CheckpointError, match=r"Games were saved with the shape \(4"):
        RecentGames(OPPOSITION, 5).load_state_dict(metric.state_dict())
