"""Values of small games that are known from elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from alf_lite.errors import ConfigError
from alf_lite.games.board_games import Nim, TicTacToe
from alf_lite.games.game import Game
from alf_lite.games.game_tree import GameTree
from alf_lite.games.small_games import KuhnPoker, rock_paper_scissors


def kuhn_tree() -> GameTree:
    return GameTree(KuhnPoker())


@pytest.mark.ci
def test_tic_tac_toe_is_a_draw_and_has_its_number_of_states():
    tree = GameTree(TicTacToe())
    best = tree.optimal()
    assert tree.num_states == 4520
    assert tree.value(best, best) == 0
    assert tree.worst_values(best) == (0, 0)
    # Against any move: as found by a plain enumeration of all games
    anything = tree.uniform()
    assert tree.value(best, anything) == pytest.approx(0.9678112)
    assert tree.value(anything, best) == pytest.approx(-0.7774836)
    assert tree.worst_values(anything) == pytest.approx(
        (-0.924868, -0.994792), abs=1e-6
    )


@pytest.mark.parametrize(
    ("piles", "value"), [((1, 2, 3), -1), ((1, 2, 4), 1), ((2, 2), -1), ((3,), 1)]
)
def test_nim_is_lost_for_the_first_where_the_exclusive_or_is_zero(piles, value):
    tree = GameTree(Nim(piles))
    best = tree.optimal()
    assert tree.value(best, best) == pytest.approx(value)
    assert tree.worst_values(best) == pytest.approx((value, -value))


def test_exploitability_of_kuhn_poker():
    # Uniform: 0.458333 by OpenSpiel; 0 for Kuhn's equilibrium with α = 1/3
    tree = kuhn_tree()
    assert tree.exploitability(tree.uniform()) == pytest.approx(0.4583333)

    def equilibrium(seen, legal):
        alpha = 1 / 3
        bets = np.zeros(len(seen))
        for i, one in enumerate(seen):
            card = int(one[:3].argmax())
            history = [
                int(pair.argmax()) for pair in one[3:].reshape(3, 2) if pair.any()
            ]
            bets[i] = {
                (): (alpha, 0.0, 3 * alpha),
                (0,): (1 / 3, 0.0, 1.0),
                (1,): (0.0, 1 / 3, 1.0),
                (0, 1): (0.0, alpha + 1 / 3, 1.0),
            }.get(tuple(history), (0.0, 0.0, 0.0))[card]
        return np.stack([1 - bets, bets], 1) * legal

    policy = tree.policy(equilibrium)
    assert tree.value(policy, policy) == pytest.approx(-1 / 18)
    assert tree.exploitability(policy) == pytest.approx(0, abs=1e-12)


def test_a_best_response_does_not_see_the_other_card():
    # It would win more than the game is worth against an equilibrium otherwise
    tree = kuhn_tree()
    response = tree.best_response(tree.uniform(), 0)
    for probabilities, level in zip(response, tree._levels, strict=True):
        rows = {}
        for seen, mover, chosen in zip(
            level.observation, level.mover, probabilities, strict=True
        ):
            if mover == 0 and chosen.any():
                rows.setdefault(seen.tobytes(), chosen.tolist())
                assert rows[seen.tobytes()] == chosen.tolist()


def test_the_average_of_policies_is_worth_their_mean_against_anybody():
    tree, draws = kuhn_tree(), np.random.default_rng(0)

    def drawn():
        bets = draws.random((512, 1))

        def chooses(seen, legal):  # one bet for all that look alike
            bet = bets[(seen @ 2 ** np.arange(9)).astype(int)]
            return np.concatenate([1 - bet, bet], 1) * legal

        return tree.policy(chooses)

    policies, other = [drawn() for _ in range(3)], drawn()
    average = tree.average(policies)
    first = np.mean([tree.value(one, other) for one in policies])
    second = np.mean([tree.value(other, one) for one in policies])
    assert tree.value(average, other) == pytest.approx(first)
    assert tree.value(other, average) == pytest.approx(second)
    # Not so for the mean of the probabilities
    mean = [np.mean(level, 0) for level in zip(*policies, strict=True)]
    assert abs(tree.value(mean, other) - first) > 1e-3


class Moves(NamedTuple):
    number: np.ndarray
    mover: np.ndarray
    won: np.ndarray


class MovesAgain(Game):
    """Seat 0 says who makes the second move, which both see alike.

    With action 0, that pays 1 to seat 0 if it makes it, and takes 10 if seat 1 does.
    """

    name = "moves again"
    num_actions = max_length = 2
    observation_space = spaces.Box(0.0, 1.0, (1,))
    is_random = False

    def initial(self, number, rng):
        if self.is_random:
            rng.random()
        return Moves(np.zeros(number, int), np.zeros(number, int), np.zeros(number))

    def moves(self, state):
        return (state.number < 2)[:, None] & (state.mover[:, None] == np.arange(2))

    def play(self, state, actions, rng):
        if self.is_random:
            rng.random()
        action = actions[np.arange(len(actions)), state.mover]
        pays = np.where(state.mover == 0, 1.0, -10.0)
        is_second = state.number == 1
        return Moves(
            state.number + 1,
            np.where(is_second, state.mover, action),
            np.where(is_second & (action == 0), pays, 0.0),
        )

    def legal(self, state, seats):
        return np.repeat(self.moves(state)[np.arange(len(seats)), seats][:, None], 2, 1)

    def observe(self, state, seats):
        return (state.number / 2)[:, None].astype(np.float32)

    def returns(self, state):
        return np.stack([state.won, -state.won], 1).astype(np.float32)


def test_a_best_response_is_not_that_of_states_in_which_the_other_one_moves():
    tree = GameTree(MovesAgain())
    uniform = tree.uniform()
    assert tree.value(tree.best_response(uniform, 0), uniform) == 1


def test_games_that_a_table_of_states_does_not_hold_are_refused():
    with pytest.raises(ConfigError, match="move at the same time"):
        GameTree(rock_paper_scissors())
    game = MovesAgain()
    start = game.starts()
    game.is_random = True
    with pytest.raises(ConfigError, match="chance decides how it begins"):
        GameTree(game)
    with pytest.raises(ConfigError, match="chance has a say in the moves"):
        GameTree(game, start)
