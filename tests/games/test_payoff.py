"""Payoffs, what to play next, and ratings: numbers that are known from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.errors import ConfigError
from alf_lite.games.payoff import Payoff, bradley_terry, prioritized


def test_earlier_games_count_less():
    payoff = Payoff(0.99)
    payoff.add(3, np.array([6, 0, 0]))
    payoff.add(3, np.array([0, 0, 1]))
    assert payoff.counts(3) == pytest.approx([5.793465, 0, 1], abs=1e-6)
    assert payoff.win_rate(3) == 0.5  # fewer than eight games
    for result in (0, 2, 1):  # won, lost, drawn
        payoff.add(3, np.eye(3)[result])
    assert payoff.counts(3) == pytest.approx([6.601493, 1, 1.960299], abs=1e-6)
    assert payoff.win_rate(3) == pytest.approx(0.742695, abs=1e-6)
    # The other side has the rest
    other = Payoff(0.99)
    for result in (2, 2, 2, 2, 2, 2, 0, 2, 0, 1):
        other.add(3, np.eye(3)[result])
    assert other.win_rate(3) == pytest.approx(0.257305, abs=1e-6)
    again = Payoff(0.99)
    again.load_state_dict(payoff.state_dict())
    assert again.win_rate(3) == payoff.win_rate(3)
    payoff.forget(3)
    assert payoff.win_rate(3) == 0.5


@pytest.mark.parametrize("decay", [0.9, 0.99, 1.0])
@pytest.mark.parametrize("counts", [(5, 0, 3), (200, 0, 200), (36, 20, 4)])
def test_games_of_one_iteration_have_no_order(decay, counts):
    payoff, counts = Payoff(decay), np.array(counts)
    payoff.add(0, np.array([90, 0, 10]))
    before = payoff.counts(0)
    payoff.add(0, counts)
    # The mean of what the games are one after the other, in a random order
    draws, found = np.random.default_rng(0), []
    for _ in range(400):
        games = before.copy()
        for result in draws.permutation(np.repeat(np.arange(3), counts)):
            games = games * decay + np.eye(3)[result]
        found.append(games)
    error = 4 * np.std(found, 0).max() / 20
    assert payoff.counts(0) == pytest.approx(np.mean(found, 0), abs=error + 1e-9)
    if decay < 1:  # however many there are, they tell the rate
        for _ in range(300):
            payoff.add(0, counts)
        rate = (counts[0] + counts[1] / 2) / counts.sum()
        assert payoff.win_rate(0) == pytest.approx(rate)


@pytest.mark.parametrize("decay", [0.0, 0.875, 1.01])
def test_a_decay_that_forgets_before_it_tells_is_refused(decay):
    with pytest.raises(ConfigError, match=r"decay must be above 0\.875"):
        Payoff(decay)
    payoff = Payoff(0.88)
    for _ in range(60):
        payoff.add(0, np.array([1, 0, 0]))
    assert payoff.win_rate(0) == 1


def test_prioritised_self_play():
    rates = np.array([0.5, 0.9, 0.1])
    assert prioritized(rates, "squared") == pytest.approx(
        [0.233645, 0.009346, 0.757009], abs=1e-6
    )
    assert prioritized(rates, "variance") == pytest.approx(
        [0.581395, 0.209302, 0.209302], abs=1e-6
    )
    assert prioritized(rates, "uniform") == pytest.approx([1 / 3] * 3)
    # All beaten always, or never won: no weights of 0/0
    assert prioritized(np.ones(3), "squared") == pytest.approx([1 / 3] * 3)
    assert prioritized(np.zeros(3), "variance") == pytest.approx([1 / 3] * 3)


def rate(p: float) -> float:
    return 400 * np.log10(p / (1 - p))


def test_ratings_of_two_are_those_of_their_score():
    # 30 of 40 points, and the drawn game that everybody has beside
    ratings = bradley_terry(np.array([[0, 30.0], [10, 0]]))
    share = 30.5 / 41
    assert ratings.elo[0] - ratings.elo[1] == pytest.approx(rate(share))
    assert ratings.elo.sum() == pytest.approx(0)
    # Both intervals are those of half the difference
    information = 41 * share * (1 - share)
    expected = 1.96 * 400 / np.log(10) / np.sqrt(information) / 2
    assert ratings.half_width == pytest.approx([expected] * 2)


def test_ratings_make_the_results_likely_and_intervals_hold_what_is_true():
    strength = np.array([120.0, 10.0, -130.0])
    chance = 1 / (1 + 10 ** ((strength[None] - strength[:, None]) / 400))
    draws = np.random.default_rng(0)
    inside = []
    for _ in range(200):
        scores = np.zeros((3, 3))
        for i in range(3):
            for j in range(i):
                scores[i, j] = draws.binomial(100, chance[i, j])
                scores[j, i] = 100 - scores[i, j]
        ratings = bradley_terry(scores)
        inside.append(np.abs(ratings.elo - strength) <= ratings.half_width)
    assert 0.9 < np.mean(inside) < 0.99
