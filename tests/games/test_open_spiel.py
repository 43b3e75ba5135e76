"""The games of OpenSpiel, and its tree search."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("pyspiel", reason="the games extra is not installed")

from alf_lite.errors import ConfigError
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.board_games import ConnectFour, TicTacToe
from alf_lite.games.game import random_legal
from alf_lite.games.game_environment import BothSeatsEnvironment
from alf_lite.games.game_tree import GameTree
from alf_lite.games.matches import play_games
from alf_lite.games.open_spiel import MctsOpponent, OpenSpielGame
from alf_lite.games.opponents import OnePlyOpponent, RandomOpponent

# In turn, with chance and cards that are hidden, all at once, with dice between moves
NAMES = (
    "connect_four",
    "leduc_poker",
    "goofspiel(num_cards=3,points_order=descending)",
    "backgammon",
)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_played_and_continued_to_the_bit(name):
    def make(seed):
        return BattleEnvironment(
            4, f"open_spiel/{name}", opponents=[RandomOpponent()], seed=seed
        )

    def run(env, number, seed):
        draws = np.random.default_rng(seed)
        steps = []
        for _ in range(number):
            legal = env.game.legal(env._games, env._choosing_seats())
            steps.append(env.step(torch.from_numpy(random_legal(legal, draws))))
        return steps

    env = make(0)
    env.reset()
    run(env, 15, 0)
    state = env.episode_state()
    expected = run(env, 20, 1)
    again = make(5)
    again.restore_episodes(state, 0)
    for step, same in zip(run(again, 20, 1), expected, strict=True):
        for key, value in step.observation.items():
            assert torch.equal(value, same.observation[key])
        assert torch.equal(step.reward, same.reward)


@pytest.mark.parametrize(
    ("own", "name"), [(TicTacToe(), "tic_tac_toe"), (ConnectFour(), "connect_four")]
)
def test_own_games_have_the_same_rules(own, name):
    other, draws = OpenSpielGame(name), np.random.default_rng(0)
    assert other.is_board_game
    mine, theirs = own.initial(20, draws), other.initial(20, draws)
    for _ in range(own.max_length):
        moves = own.moves(mine)
        assert np.array_equal(moves, other.moves(theirs))
        assert np.array_equal(own.returns(mine), other.returns(theirs))
        if not moves.any(1).all():
            break
        seats = moves.argmax(1)
        legal = own.legal(mine, seats)
        assert np.array_equal(legal, other.legal(theirs, seats))
        actions = np.repeat(random_legal(legal, draws)[:, None], 2, 1)
        mine, theirs = (
            own.play(mine, actions, draws),
            other.play(theirs, actions, draws),
        )


@pytest.mark.parametrize("name", ["breakthrough", "mancala", "othello"])
def test_a_position_tells_who_moves(name):
    game, draws = OpenSpielGame(name), np.random.default_rng(0)
    spiel = game._game.new_initial_state()
    shows_alike = spiel.observation_tensor(0) == spiel.observation_tensor(1)
    states = game.initial(3, draws)
    for _ in range(5):
        first, second = (game.observe(states, np.full(3, seat)) for seat in range(2))
        assert first[0] in game.observation_space
        assert (first != second).reshape(3, -1).any(1).all()
        if shows_alike:
            assert np.array_equal(first[:, :-1], second[:, :-1])
            assert (first[:, -1] == 0).all()
            assert (second[:, -1] == 1).all()
        seats = game.moves(states).argmax(1)
        actions = random_legal(game.legal(states, seats), draws)
        states = game.play(states, np.repeat(actions[:, None], 2, 1), draws)
        if not game.moves(states).any(1).all():
            break


def test_the_table_of_states_agrees():
    tree = GameTree(OpenSpielGame("tic_tac_toe"))
    best = tree.optimal()
    assert tree.num_states == 4520
    assert tree.value(best, best) == 0


def test_tree_search_plays_better_than_chance_and_worse_with_less():
    draws = np.random.default_rng(0)
    game = ConnectFour()
    few, many = MctsOpponent(5), MctsOpponent(200)
    won = play_games(game, (many, RandomOpponent()), 20, draws)[:, 0]
    assert won.mean() > 0.9
    first = play_games(game, (many, few), 20, draws)[:, 0]
    second = play_games(game, (few, many), 20, draws)[:, 0]
    assert first.mean() - second.mean() > 1


def test_the_seed_of_an_environment_fixes_the_search():
    def outcomes():
        env = BattleEnvironment(4, "connect_four", opponents=[MctsOpponent(5)], seed=3)
        env.reset()
        return [
            env.step(
                torch.from_numpy(
                    env.game.legal(env._games, env._choosing_seats()).argmax(1)
                )
            ).observation["observation"]
            for _ in range(12)
        ]

    for one, other in zip(outcomes(), outcomes(), strict=True):
        assert torch.equal(one, other)


def test_what_cannot_be_is_told():
    with pytest.raises(ConfigError, match="Did you mean 'connect_four'"):
        OpenSpielGame("conect_four")
    with pytest.raises(ConfigError, match="two seats move in turn"):
        BothSeatsEnvironment(2, "open_spiel/leduc_poker")
    with pytest.raises(ConfigError, match="mcts_10 plays tic-tac-toe"):
        BattleEnvironment(2, "nim", opponents=[MctsOpponent()])
    with pytest.raises(ConfigError, match="for games of two who move in turn"):
        BattleEnvironment(2, "open_spiel/leduc_poker", opponents=[OnePlyOpponent()])
