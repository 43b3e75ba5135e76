"""The turn-based games of PettingZoo."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.errors import ConfigError, EnvError
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.board_games import ConnectFour, TicTacToe
from alf_lite.games.catalogue import create_game
from alf_lite.games.game import copy_rows, random_legal
from alf_lite.games.game_environment import BothSeatsEnvironment
from alf_lite.games.matches import play_games
from alf_lite.games.opponents import OnePlyOpponent, PerfectOpponent, RandomOpponent
from alf_lite.games.pettingzoo import PettingZooGame

NAMES = ("tictactoe_v3", "connect_four_v3", "rps_v2", "leduc_holdem_v4")


def needs_pettingzoo(name):
    pytest.importorskip("pettingzoo", reason="the games extra is not installed")
    if name.startswith("leduc"):
        pytest.importorskip("rlcard", reason="PettingZoo's card games need it")
    return f"pettingzoo/{name}"


class Countdown:
    """Three agents in turn, as PettingZoo's AECEnv; "b" dies in the second round.

    Each action is paid to all that live at once. The end comes after ``rounds`` rounds.
    Rewards are told as ``last()`` does: what came since the agent's own last action.
    """

    def __init__(self, rounds=3):
        self.metadata = {"name": "countdown"}
        self.possible_agents = ["a", "b", "c"]
        self._rounds = rounds

    def observation_space(self, agent):
        return spaces.Box(-9.0, 9.0, (2,))

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None):
        self.agents = list(self.possible_agents)
        self.agent_selection = "a"
        self._luck = np.random.default_rng(seed).normal()
        self._unpaid = dict.fromkeys(self.agents, 0.0)
        self._dead, self._round, self.none_steps = set(), 0, []

    def observe(self, agent):
        return np.array([self._luck, self._round], np.float32)

    def last(self):
        agent = self.agent_selection
        info = {"action_mask": np.array([1, self._round % 2, 1], np.int8)}
        is_dead = agent in self._dead
        return self.observe(agent), self._unpaid[agent], is_dead, False, info

    def step(self, action):
        agent = self.agent_selection
        if agent in self._dead:
            assert action is None
            self.none_steps.append(agent)
            self.agents.remove(agent)  # the same list, changed in place
        else:
            assert self.last()[-1]["action_mask"][action]
            self._unpaid[agent] = 0.0
            for other in set(self.agents) - self._dead:
                self._unpaid[other] += action
            if agent == "c":
                self._round += 1
            if (agent, self._round) == ("a", 1):
                self._dead.add("b")
            if self._round == self._rounds:
                self._dead |= set(self.agents)
        # The dead are told first, the last one of them first
        dead = [a for a in self.agents if a in self._dead]
        if dead:
            self.agent_selection = dead[-1]
        elif self.agents:
            order = [a for a in self.agents if a > agent] or self.agents
            self.agent_selection = order[0]


def test_the_dead_move_no_more_and_everybody_gets_all_rewards():
    game, draws = PettingZooGame(Countdown), np.random.default_rng(0)
    state = game.initial(1, draws)
    movers, won = [], np.zeros(3)
    alive = np.ones(3, bool)
    while game.moves(state).any():
        mover = int(game.moves(state)[0].argmax())
        legal = game.legal(state, np.array([mover]))
        expected = [True, len(movers) in (3, 4), True]
        assert legal[0].tolist() == expected
        assert not game.legal(state, np.array([(mover + 1) % 3])).any()
        assert (game.returns(state) == 0).all()
        movers.append("abc"[mover])
        won += 2 * alive
        alive[1] &= movers.count("a") < 2
        before, state = state, game.play(state, np.full((1, 3), 2), draws)
    # b dies of a's second action, for which it is paid
    assert "".join(movers) == "abcacac"
    assert game.returns(state).tolist() == [won.tolist()] == [[14, 8, 14]]
    assert game.moves(before).any()
    assert game.observe(before, np.array([0]))[0, 1] == 2  # of a game that has gone on
    env = state.positions[0].env
    assert env.none_steps == ["b", "c", "a"]


class FromFive(Countdown):
    """Its actions are 5 to 7, and it shows the number of the round from 2 on."""

    def observation_space(self, agent):
        return spaces.Discrete(4, start=2)

    def action_space(self, agent):
        return spaces.Discrete(3, start=5)

    def observe(self, agent):
        return 2 + self._round

    def step(self, action):
        super().step(None if action is None else action - 5)


def test_spaces_may_start_elsewhere():
    game, draws = PettingZooGame(FromFive), np.random.default_rng(0)
    state, played = game.initial(1, draws), []
    while game.moves(state).any():
        mover = game.moves(state).argmax(1)
        played.append(int(game.observe(state, mover)[0].argmax()))
        state = game.play(state, np.full((1, 3), 2), draws)
    assert played == [0, 0, 0, 1, 1, 2, 2]
    assert game.returns(state).tolist() == [[14, 8, 14]]


def test_an_agent_that_can_do_nothing_is_an_error():
    class Stuck(Countdown):
        def last(self):
            *told, info = super().last()
            is_stuck = (self.agent_selection, self._round) == ("c", 1)
            return *told, {"action_mask": info["action_mask"] * (not is_stuck)}

    game, draws = PettingZooGame(Stuck), np.random.default_rng(0)
    state = game.initial(1, draws)
    with pytest.raises(EnvError, match="countdown: agent 'c' has to move"):
        for _ in range(5):
            state = game.play(state, np.full((1, 3), 2), draws)


def steps_of(env, number, seed):
    draws = np.random.default_rng(seed)
    for _ in range(number):
        legal = env.game.legal(env._games, env._choosing_seats())
        yield env.step(torch.from_numpy(random_legal(legal, draws)))


@pytest.mark.parametrize("name", ["countdown", *NAMES])
def test_games_in_progress_are_continued_to_the_bit(name):
    def make(seed):
        is_own = name == "countdown"
        game = PettingZooGame(Countdown) if is_own else needs_pettingzoo(name)
        return BattleEnvironment(4, game, opponents=[RandomOpponent()], seed=seed)

    env = make(0)
    env.reset()
    list(steps_of(env, 15, 0))
    state = env.episode_state()
    expected = list(steps_of(env, 20, 1))
    again = make(5)
    assert again.restore_episodes(state, 0) == {}
    for step, same in zip(steps_of(again, 20, 1), expected, strict=True):
        for key, value in step.observation.items():
            assert torch.equal(value, same.observation[key])
        assert torch.equal(step.reward, same.reward)
        assert torch.equal(step.step_type, same.step_type)


@pytest.mark.parametrize(
    ("own", "name"), [(TicTacToe(), "tictactoe_v3"), (ConnectFour(), "connect_four_v3")]
)
def test_own_games_have_the_same_rules(own, name):
    other, draws = create_game(needs_pettingzoo(name)), np.random.default_rng(0)
    assert other.is_board_game
    mine, theirs = own.initial(20, draws), other.initial(20, draws)
    for _ in range(own.max_length + 1):
        moves = own.moves(mine)
        assert np.array_equal(moves, other.moves(theirs))
        assert np.array_equal(own.returns(mine), other.returns(theirs))
        seats = moves.argmax(1)
        legal = own.legal(mine, seats)
        assert np.array_equal(legal, other.legal(theirs, seats))
        # Both see their own pieces and those of the other
        planes = other.observe(theirs, seats).transpose(0, 3, 1, 2)
        assert np.array_equal(own.observe(mine, seats), planes)
        goes_on = moves.any(1)
        if not goes_on.any():
            break
        mine, theirs = copy_rows(mine, goes_on), copy_rows(theirs, goes_on)
        actions = np.repeat(random_legal(legal[goes_on], draws)[:, None], 2, 1)
        mine = own.play(mine, actions, draws)
        theirs = other.play(theirs, actions, draws)


def test_they_are_played_in_all_rooms():
    name = needs_pettingzoo("tictactoe_v3")
    env = BothSeatsEnvironment(8, name, num_random_moves=2, seed=0)
    env.reset()
    assert any(step.env_info["outcome"].any() for step in steps_of(env, 20, 0))
    game, draws = create_game(name), np.random.default_rng(0)
    won = play_games(game, (OnePlyOpponent(), RandomOpponent()), 20, draws)
    assert won[:, 0].mean() > 0.5
    assert (won.sum(1) == 0).all()


def test_what_cannot_be_is_told():
    name = needs_pettingzoo("tictactoe_v3")
    with pytest.raises(ConfigError, match="Did you mean 'tictactoe_v3'"):
        create_game(name.replace("tic", "tik"))
    with pytest.raises(ConfigError, match="two seats move in turn"):
        BothSeatsEnvironment(2, "pettingzoo/rps_v2")
    with pytest.raises(ConfigError, match="for games of two who move in turn"):
        PerfectOpponent().check_game(create_game("pettingzoo/rps_v2"))

    class Unequal(Countdown):
        def action_space(self, agent):
            return spaces.Discrete(2 + (agent == "b"))

    with pytest.raises(ConfigError, match="its agents have different spaces"):
        PettingZooGame(Unequal)
