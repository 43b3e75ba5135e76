"""Games as environments: seats, opponents, minimax rows, resuming."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.muzero_algorithm import MuzeroAlgorithm
from alf_lite.algorithms.parts.tree_search import TreeSearch
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import StepType
from alf_lite.errors import CheckpointError, ConfigError, EnvError
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.board_games import Nim, TicTacToe
from alf_lite.games.game import Game, random_legal
from alf_lite.games.game_environment import BothSeatsEnvironment
from alf_lite.games.game_tree import GameTree
from alf_lite.games.opponents import (
    AverageOpponent,
    OnePlyOpponent,
    Opponent,
    PerfectOpponent,
    RandomOpponent,
)
from alf_lite.games.small_games import MatrixGame
from alf_lite.testing.game_contract import BattleContract, GameEnvironmentContract
from alf_lite.utils import value_ops


class TestBattle(BattleContract):
    def make(self, num_environments, seed):
        opponents = [RandomOpponent(), OnePlyOpponent()]
        return BattleEnvironment(num_environments, opponents=opponents, seed=seed)


class TestBattleAtOnce(BattleContract):
    """Both seats choose at the same time."""

    def make(self, num_environments, seed):
        return BattleEnvironment(
            num_environments,
            "rock_paper_scissors",
            opponents=[RandomOpponent()],
            seed=seed,
        )


class TestBattleOfOneSeat(BattleContract):
    seat = 1

    def make(self, num_environments, seed):
        opponents = [RandomOpponent()]
        return BattleEnvironment(
            num_environments, opponents=opponents, seat=self.seat, seed=seed
        )


class TestBattleWithSnapshots(BattleContract):
    def make(self, num_environments, seed):
        env = BattleEnvironment(
            num_environments,
            opponents=[RandomOpponent()],
            num_snapshots=2,
            num_random_moves=2,
            seed=seed,
        )
        config = TrainerConfig(num_iterations=9, unroll_length=8, random_seed=0)
        PPOAlgorithm(env=env, config=config, action_mask_key="action_mask")
        return env


class TestBothSeats(GameEnvironmentContract):
    def make(self, num_environments, seed):
        return BothSeatsEnvironment(
            num_environments, "connect_four", num_random_moves=4, seed=seed
        )

    def test_only_terminal_steps_have_discount_zero(self):
        with self._open() as env:
            for step in self._run(env):
                is_mid = step.step_type == StepType.MID
                assert (step.discount[is_mid] == -1).all()
                assert (step.discount[step.is_last()] == 0).all()


class NimAgain(Nim):
    """Who takes one piece moves again."""

    def play(self, state, actions, rng):
        after = super().play(state, actions, rng)
        again = (after.piles.sum(1) == state.piles.sum(1) - 1) & after.piles.any(1)
        return after._replace(mover=np.where(again, state.mover, after.mover))


class TestBothSeatsOfWhichOneMovesAgain(GameEnvironmentContract):
    def make(self, num_environments, seed):
        game = NimAgain((1, 2, 4))
        return BothSeatsEnvironment(
            num_environments, game, num_random_moves=2, seed=seed
        )

    def test_only_terminal_steps_have_discount_zero(self):
        with self._open() as env:
            discounts = torch.cat([step.discount for step in self._run(env)])
        assert discounts.unique().tolist() == [-1, 0, 1]

    @pytest.mark.ci
    def test_returns_and_values_are_those_of_the_seat_that_moves(self):
        game = NimAgain((1, 2, 2))
        env = BothSeatsEnvironment(32, game, seed=0)
        step, draws = env.reset(), np.random.default_rng(0)
        steps, seats = [step], [env._seats[:, 0].copy()]
        for _ in range(100):
            legal = step.observation["action_mask"].numpy()
            step = env.step(torch.from_numpy(random_legal(legal, draws)))
            steps.append(step)
            seats.append(env._seats[:, 0].copy())
        reward, discount, step_type, outcome = (
            torch.stack(leaves)
            for leaves in zip(
                *[
                    (s.reward, s.discount, s.step_type, s.env_info["outcome"])
                    for s in steps
                ],
                strict=True,
            )
        )
        nothing = torch.zeros_like(reward)
        returns = value_ops.discounted_return(reward, nothing, step_type, discount)
        won = torch.zeros(reward.shape[1])
        for t in reversed(range(100)):
            ends = step_type[t + 1] == StepType.LAST
            won = torch.where(ends, outcome[t + 1], won)
            sign = torch.from_numpy(1 - 2 * seats[t])
            is_known = (won != 0) & (step_type[t] != StepType.LAST)
            assert torch.equal(returns[t][is_known], (sign * won)[is_known])

        # max_a r + d V(s') over all steps that were seen is the value of minimax
        def key(t, row):
            return tuple(steps[t].observation["observation"][row].argmax(-1).tolist())

        values = dict.fromkeys((key(t, i) for t in range(101) for i in range(32)), 0.0)
        for _ in range(8):
            found = dict.fromkeys(values, -1.0)
            for t, row in (step_type[:-1] != StepType.LAST).nonzero().tolist():
                later = values[key(t + 1, row)]
                q = float(reward[t + 1, row] + discount[t + 1, row] * later)
                found[key(t, row)] = max(found[key(t, row)], q)
            values = found
        tree = GameTree(game)
        best = tree.optimal()
        assert values[1, 2, 2] == tree.value(best, best)

    def test_a_search_with_a_fixed_sign_refuses_it(self):
        config = TrainerConfig(num_iterations=3, unroll_length=8, random_seed=0)
        algorithm = MuzeroAlgorithm(
            env=self.make(4, 0),
            config=config,
            two_players=True,
            search=TreeSearch(2),
            action_mask_key="action_mask",
        )
        with pytest.raises(EnvError, match="a player moves twice"):
            algorithm.train_iter()


class Notes(Opponent):
    """Takes any action, and notes whom it plays for and how many actions it had."""

    def __init__(self, game: Game) -> None:
        self.seats: list[int] = []
        self.game = game

    def act(self, game, state, seats, rng):
        assert game.moves(state)[np.arange(len(seats)), seats].all()
        self.seats += seats.tolist()
        return random_legal(game.legal(state, seats), rng)


def steps_of(env, number: int, seed: int = 0):
    draws = np.random.default_rng(seed)
    for _ in range(number):
        legal = env.game.legal(env._games, env._choosing_seats())
        yield env.step(torch.from_numpy(random_legal(legal, draws)))


@pytest.mark.ci
def test_no_move_of_the_algorithm_is_lost_and_all_opponents_are_met():
    game = TicTacToe()
    notes, met, outcomes = Notes(game), set(), set()
    env = BattleEnvironment(4, game, opponents=[notes, OnePlyOpponent()], seed=0)
    env.reset()
    for step in steps_of(env, 300):
        # As many discs as the seat has moved before
        own, other = step.observation["observation"].sum((2, 3)).T
        goes_on = ~step.is_last()
        assert torch.equal((other - own)[goes_on], step.env_info["seat"][goes_on])
        met |= set(step.env_info["opponent"].tolist())
        outcomes |= set(step.env_info["outcome"].tolist())
    assert met == {0.0, 1.0}
    assert outcomes == {-1.0, 0.0, 1.0}
    assert 0.4 < np.mean(notes.seats) < 0.6


class TakesAll(Opponent):
    """Wins at once where there is one pile."""

    def act(self, game, state, seats, rng):
        return game.legal(state, seats).cumsum(1).argmax(1)


def test_a_game_that_others_end_before_the_first_move_is_lost_and_has_an_end():
    env = BattleEnvironment(2, Nim((3,)), opponents=[TakesAll()], seed=0)
    steps = [env.reset(), *steps_of(env, 40)]
    kinds = torch.stack([step.step_type for step in steps])
    rewards = torch.stack([step.reward for step in steps])
    is_last = kinds == StepType.LAST
    assert torch.equal(is_last[:-1], kinds[1:] == StepType.FIRST)
    lengths = []
    for row in range(2):
        [ends] = is_last[:, row].nonzero(as_tuple=True)
        lengths += [ends[:1] + 1, ends.diff()]
    assert 2 in torch.cat(lengths)
    assert (rewards[is_last].abs() == 1).all()
    # As second seat it has no move; as first one it wins or the other does
    seats = torch.stack([step.env_info["seat"] for step in steps])
    outcomes = torch.stack([step.env_info["outcome"] for step in steps])
    assert torch.equal(outcomes, rewards)
    assert (rewards[is_last & (seats == 1)] == -1).all()
    discounts = torch.stack([step.discount for step in steps])
    assert torch.equal(discounts == 0, is_last)


def test_a_game_that_is_lost_before_the_first_move_is_resumed_at_its_end():
    env = BattleEnvironment(1, Nim((3,)), opponents=[TakesAll()], seat=1, seed=0)
    env.reset()
    state = env.episode_state()
    again = BattleEnvironment(1, Nim((3,)), opponents=[TakesAll()], seat=1, seed=9)
    assert again.restore_episodes(state, 3) == {}
    for one, other in zip(steps_of(env, 6), steps_of(again, 6), strict=True):
        assert torch.equal(one.step_type, other.step_type)
        assert torch.equal(one.reward, other.reward)


class ThreeChoose(MatrixGame):
    """Three seats choose at the same time."""

    num_players = 3

    def initial(self, number, rng):
        return super().initial(number, rng)._replace(actions=np.full((number, 3), -1))

    def returns(self, state):
        return state.actions.clip(0).astype(np.float32)


def test_one_of_an_average_plays_all_seats_of_a_game():
    class Takes(Opponent):
        def __init__(self, action):
            self.name, self._action = str(action), action

        def act(self, game, state, seats, rng):
            return np.full(len(seats), self._action)

    average = AverageOpponent([Takes(0), Takes(2)])
    env = BattleEnvironment(8, ThreeChoose(), opponents=[average], seat=1, seed=0)
    env.reset()
    seen = set()
    for _ in range(20):
        step = env.step(torch.ones(8, dtype=torch.int64))
        for chosen in env._games.actions[step.is_last().numpy()].tolist():
            assert chosen[0] == chosen[2], chosen
            seen.add(chosen[0])
    assert seen == {0, 2}


def test_both_seats_see_the_board_as_their_own():
    env = BothSeatsEnvironment(1, "tic_tac_toe", seed=0)
    env.reset()
    # x 0, o 3, x 1, o 4, x 2: the first seat wins
    rewards, discounts = [], []
    for action in (0, 3, 1, 4, 2):
        step = env.step(torch.tensor([action]))
        rewards.append(step.reward.item())
        discounts.append(step.discount.item())
        own, other = step.observation["observation"][0].sum((1, 2)).tolist()
        assert step.is_last() or own <= other  # the other one has just moved
    assert rewards == [0, 0, 0, 0, 1]
    assert discounts == [-1, -1, -1, -1, 0]
    assert step.env_info["outcome"].item() == 1


def test_games_begin_with_up_to_so_many_moves_of_nobody():
    env = BothSeatsEnvironment(400, "tic_tac_toe", num_random_moves=3, seed=0)
    discs = env.reset().observation["observation"].sum((1, 2, 3))
    assert set(discs.tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert env.game.moves(env._games).any(1).all()


def test_a_game_that_takes_too_long_is_cut_and_not_terminal():
    env = BothSeatsEnvironment(2, "connect_four", max_episode_steps=5, seed=0)
    env.reset()
    step = list(steps_of(env, 5))[-1]
    assert step.is_last().all()
    assert step.discount.tolist() == [-1, -1]


def test_open_games_of_another_number_of_environments_are_refused():
    env = BothSeatsEnvironment(5, seed=0)
    env.reset()
    with pytest.raises(CheckpointError, match="open games"):
        BothSeatsEnvironment(4).restore_episodes(env.episode_state(), 0)


def test_open_games_against_opponents_that_are_gone_are_refused():
    env = BattleEnvironment(8, opponents=[OnePlyOpponent(), RandomOpponent()], seed=0)
    env.reset()
    again = BattleEnvironment(8, opponents=[OnePlyOpponent()], seed=0)
    with pytest.raises(CheckpointError, match="of whom 1 are left"):
        again.restore_episodes(env.episode_state(), 0)


class NoWay(TicTacToe):
    def legal(self, state, seats):
        return super().legal(state, seats) & (state.num_moves[:, None] < 2)


def test_what_is_wrong_with_a_game_is_told():
    env = BattleEnvironment(2, opponents=[RandomOpponent()], seat=0)
    env.reset(0)
    with pytest.raises(
        EnvError, match=r"illegal in environment 0.*\n.*action_mask_key"
    ):
        taken = int((env._games.cells[0] > 0).argmax()) if env._games.cells.any() else 9
        env.step(torch.tensor([9 if taken == 0 else taken, 0]))
    env = BothSeatsEnvironment(2, NoWay())
    env.reset(0)
    env.step(torch.tensor([0, 0]))
    with pytest.raises(EnvError, match="no action is legal"):
        env.step(torch.tensor([1, 1]))
    with pytest.raises(ConfigError, match="there are no opponents"):
        BattleEnvironment(2)
    with pytest.raises(ConfigError, match="seat must be below 2"):
        BattleEnvironment(2, opponents=[RandomOpponent()], seat=2)
    with pytest.raises(ConfigError, match="two seats move in turn"):
        BothSeatsEnvironment(2, "kuhn_poker")
    with pytest.raises(ConfigError, match="for games of two who move in turn"):
        BattleEnvironment(2, "kuhn_poker", opponents=[PerfectOpponent()])
    with pytest.raises(ConfigError, match="too many states"):
        BattleEnvironment(2, "connect_four", opponents=[PerfectOpponent()])
    with pytest.raises(ConfigError, match="num_random_moves"):
        BothSeatsEnvironment(2, num_random_moves=-1)


def train_one(algorithm, **settings):
    env = BothSeatsEnvironment(4, seed=0)
    config = TrainerConfig(num_iterations=1, unroll_length=8, random_seed=0, **settings)
    built = algorithm(env=env, config=config, action_mask_key="action_mask")
    built.train_iter()
    return built


def test_minimax_rows_are_refused_where_targets_would_be_wrong():
    train_one(PPOAlgorithm)
    train_one(DqnAlgorithm, mini_batch_size=4, initial_collect_steps=0)
    with pytest.raises(ConfigError, match="the discount is -1"):
        train_one(SacAlgorithm, mini_batch_size=4)


@pytest.mark.parametrize(
    ("opponent", "board", "seat", "allowed"),
    [
        # x x . / o o . / . . .: wins at once, and would block otherwise
        (OnePlyOpponent(), (0, 3, 1, 4), 0, {2}),
        (PerfectOpponent(), (0, 3, 1, 4), 0, {2}),
        # x . . / x o . / . . .: o must block
        (OnePlyOpponent(), (0, 4, 3), 1, {6}),
        (PerfectOpponent(), (0, 4, 3), 1, {6}),
        # x . . / . . . / . . .: only the middle holds the draw
        (PerfectOpponent(), (0,), 1, {4}),
    ],
)
def test_opponents_win_and_block(opponent, board, seat, allowed):
    game, draws = TicTacToe(), np.random.default_rng(0)
    state = game.initial(20, draws)
    for cell in board:
        state = game.play(state, np.full((20, 2), cell), draws)
    assert set(opponent.act(game, state, np.full(20, seat), draws)) == allowed
