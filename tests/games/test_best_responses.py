"""A league whose learner is exact: every snapshot is a best response."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from alf_lite.games.league import League
from alf_lite.games.opponent_pool import OpponentPool
from alf_lite.games.small_games import MatrixGame

# Biased rock, paper, scissors: the equilibrium is (1/16, 10/16, 5/16), of value 0
GAME = MatrixGame([[0, -25, 50], [25, 0, -5], [-50, 5, 0]])


class BestResponse:
    """Answers the opponents of its pool, as often as they are to be played."""

    def __init__(self, num_snapshots: int) -> None:
        self.policy = torch.eye(3, dtype=torch.float64)[0]
        self.num_env_steps = 0
        self.opponent_pool = OpponentPool(self.state_dict(), num_snapshots, ())

    def state_dict(self):
        return {"policy": self.policy}

    def opponents(self) -> np.ndarray:
        return self.opponent_pool.tensor_0.numpy()  # [slots, 3]

    def train(self) -> None:
        played = self.opponent_pool.weights.numpy() @ self.opponents()
        self.policy = torch.eye(3, dtype=torch.float64)[(GAME.payoff @ played).argmax()]
        self.num_env_steps += 2


def exploitability(num_steps: int, **league) -> float:
    """Of the average of all snapshots, as a share of the largest stake."""
    learner = BestResponse(num_steps + 1)
    rules = League(bot_share=0, snapshot_interval=1, **league)
    training = types.SimpleNamespace(algorithm=learner)
    for _ in range(num_steps):
        learner.train()
        if rules._weighting == "squared":  # what very many games would come to
            won = learner.opponents() @ GAME.payoff.T @ learner.policy.numpy()
            pool = learner.opponent_pool
            for number, slot in pool.slots().items():
                result = np.eye(3)[1 - int(np.sign(won[slot]))]
                rules.payoff._games[pool.opponent(number)] = 100 * result
        rules.after_iter(training)
    pool = learner.opponent_pool
    assert len(pool.slots()) == num_steps + 1
    average = learner.opponents().mean(0)
    return float((GAME.payoff @ average).max() / GAME.payoff.max())


FICTITIOUS_PLAY = {"weighting": "uniform", "newest_share": 0.0}


@pytest.mark.ci
def test_best_responses_to_all_snapshots_alike_converge():
    values = [exploitability(n, **FICTITIOUS_PLAY) for n in (10, 100, 300)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.015


@pytest.mark.ci
def test_best_responses_to_the_newest_snapshot_or_to_those_that_win_go_round():
    for num_steps in (100, 300):
        newest = exploitability(num_steps, newest_share=1.0)
        assert newest == pytest.approx(1 / 6, abs=0.01)
    assert exploitability(100, weighting="squared", newest_share=0.0) > 0.05


@pytest.mark.slow
def test_what_the_docs_say_of_three_thousand_steps():
    assert exploitability(3000, **FICTITIOUS_PLAY) == pytest.approx(0.0032, abs=1e-4)
    newest = exploitability(3000, newest_share=1.0)
    assert newest == pytest.approx(0.1666, abs=1e-4)
