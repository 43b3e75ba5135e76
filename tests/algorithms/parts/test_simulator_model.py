"""The rules of a game as a model for tree search."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.algorithms.parts.simulator_model import SimulatorModel
from alf_lite.algorithms.parts.tree_search import TreeSearch
from alf_lite.errors import ConfigError
from alf_lite.games.board_games import ConnectFour, Nim, TicTacToe
from alf_lite.games.game import copy_rows, random_legal
from alf_lite.games.game_tree import GameTree
from alf_lite.games.small_games import KuhnPoker

GAMES = [TicTacToe(), ConnectFour(), Nim((1, 2, 3))]


def nothing_known(num_actions: int):
    """A uniform prior and the value 0."""
    return lambda boards: (
        np.zeros((len(boards), num_actions), np.float32),
        np.zeros(len(boards), np.float32),
    )


def games_that_go_on(game, number=64, num_moves=6):
    rng = np.random.default_rng(0)
    states = game.initial(number, rng)
    for i in range(num_moves):
        legal = game.legal(states, game.moves(states).argmax(1))
        actions = np.repeat(random_legal(legal, rng)[:, None], 2, 1)
        after = game.play(states, actions, rng)
        goes_on = game.moves(after).any(1) & (rng.random(number) < (i + 1) / num_moves)
        arrays = [
            np.where(goes_on.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(after, states, strict=True)
        ]
        states = type(states)(*arrays)
    return states


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_what_a_seat_sees_tells_the_state(game):
    states = games_that_go_on(game)
    seats = game.moves(states).argmax(1)
    seen = game.observe(states, seats)
    again = game.state_of(seen)
    movers = game.moves(again).argmax(1)
    np.testing.assert_array_equal(game.observe(again, movers), seen)
    np.testing.assert_array_equal(game.legal(again, movers), game.legal(states, seats))
    assert len(np.unique(seen.reshape(len(seen), -1), axis=0)) > 10


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_a_step_is_a_move_of_the_game(game):
    states = games_that_go_on(game)
    seats = game.moves(states).argmax(1)
    rng = np.random.default_rng(1)
    action = random_legal(game.legal(states, seats), rng)
    after = game.play(states, np.repeat(action[:, None], 2, 1), rng)
    over = ~game.moves(after).any(1)

    def evaluate(boards):
        total = boards.reshape(len(boards), -1) @ np.arange(boards[0].size)
        return np.ones((len(boards), game.num_actions), np.float32), total

    model = SimulatorModel(game, evaluate, gamma=0.9)
    step, found = model.step(copy_rows(states, slice(None)), action)
    won = game.returns(after)[np.arange(len(seats)), seats]
    np.testing.assert_array_equal(step.reward, won)
    np.testing.assert_allclose(step.discount, np.where(over, 0, -0.9))
    next_seats = game.moves(after).argmax(1)
    value = evaluate(game.observe(after, next_seats))[1]
    np.testing.assert_allclose(step.value, np.where(over, 0, value))
    np.testing.assert_array_equal(
        (step.logits == 1)[~over], game.legal(after, next_seats)[~over]
    )
    for got, wanted in zip(found, after, strict=True):
        np.testing.assert_array_equal(got, wanted)
    # What is over stays so, and is worth nothing
    beyond, still = model.step(copy_rows(found, over), action[over])
    for array in (beyond.reward, beyond.discount, beyond.value):
        assert not array.any()
    assert not game.moves(still).any()


def searched(board, simulations, select):
    game = TicTacToe()
    own, other = (np.array([board]) == sign for sign in (1, -1))
    seen = np.stack([own, other], 1).astype(np.float32).reshape(1, 2, 3, 3)
    model = SimulatorModel(game, nothing_known(9))
    search = TreeSearch(simulations, select)
    legal = np.array([board]) == 0
    return search.run(model.root(seen), model.step, legal)


@pytest.mark.parametrize("select", ["gumbel", "puct"])
def test_a_search_wins_and_blocks(select):
    for simulations in (16, 64):
        found = searched([1, 1, 0, -1, -1, 0, 0, 0, 0], simulations, select)
        assert found.action == 2
        assert found.q[0, 2] == 1
    if select == "puct":
        assert searched([0, 0, 0, -1, -1, 0, 1, 0, 0], 32, select).action == 5
    # Sequential halving spreads few visits over six actions: it sees the reply late
    assert searched([0, 0, 0, -1, -1, 0, 1, 0, 0], 200, select).action == 5


@pytest.mark.ci
@pytest.mark.parametrize(
    ("select", "game", "simulations"),
    [
        ("puct", Nim((1, 2, 3)), 8),
        ("gumbel", Nim((1, 2, 3)), 8),
        ("puct", TicTacToe(), 128),
    ],
)
def test_with_exact_values_every_move_is_a_best_one(select, game, simulations):
    # Of up to 600 positions in which somebody moves, with an even prior
    values, best = {}, {}
    tree = GameTree(game)
    after = np.zeros(0)
    for level in reversed(tree._levels):
        sign = np.where(level.mover == 0, 1, -1)
        q = np.full(level.legal.shape, -9.0)
        q[level.parent, level.action] = sign[level.parent] * after[level.child]
        goes_on = level.legal.any(1)
        value = np.where(goes_on, q.max(1), sign * level.returns)
        for seen, v, row in zip(level.observation, value, q, strict=True):
            values[seen.tobytes()] = v
            if (row > -9).any():
                best[seen.tobytes()] = row
        after = sign * value

    def exact(boards):
        known = [values.get(board.tobytes(), 0.0) for board in boards]
        logits = np.zeros((len(boards), game.num_actions), np.float32)
        return logits, np.array(known, np.float32)

    shape = game.observation_space.shape
    seen = np.stack([np.frombuffer(k, np.float32).reshape(shape) for k in best])
    q = np.stack(list(best.values()))
    every = len(q) // 600 + 1
    seen, q = seen[::every], q[::every]
    model = SimulatorModel(game, exact)
    found = TreeSearch(simulations, select).run(model.root(seen), model.step, q > -9)
    np.testing.assert_array_equal(q[np.arange(len(q)), found.action], q.max(1))
    if select == "gumbel":
        # Halving visits moves that lose as often as those that win
        error, root_error = (
            abs(value - q.max(1)).mean() for value in (found.policy_value, found.value)
        )
        assert error < 0.15 < 0.4 < root_error


def test_a_lost_game_has_the_value_minus_1():
    # The other one has two lines of two
    found = searched([-1, 0, -1, 0, 1, 0, -1, 0, 1], 400, "puct")
    assert found.value < -0.5
    assert (abs(found.tree.q) <= 1).all()


@pytest.mark.parametrize("select", ["gumbel", "puct"])
def test_illegal_actions_are_never_tried(select):
    found = searched([1, -1, 0, 0, 1, 0, 0, 0, -1], 300, select)
    tree = found.tree
    cells = tree.state.cells  # [1, N, 9]
    is_over = (tree.state.winner >= 0) | (tree.state.num_moves == 9)
    assert not ((tree.visits > 0) & (cells > 0) & ~is_over[..., None]).any()
    assert is_over.any()


def test_other_games_are_refused():
    with pytest.raises(ConfigError, match="KuhnPoker is no board game"):
        SimulatorModel(KuhnPoker(), nothing_known(2))
    with pytest.raises(ConfigError, match="None is no board game"):
        SimulatorModel(None, nothing_known(2))


def test_a_game_without_a_legal_action_is_an_error():
    class Stuck(TicTacToe):
        def legal(self, state, seats):
            return super().legal(state, seats) & (state.num_moves < 2)[:, None]

    game = Stuck()
    model = SimulatorModel(game, nothing_known(9))
    with pytest.raises(ValueError, match="has no legal action"):
        TreeSearch(20).run(model.root(np.zeros((1, 2, 3, 3), np.float32)), model.step)
