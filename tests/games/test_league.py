"""Snapshots of a policy as its opponents, and the league that chooses them."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import alf_lite
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.checkpoints import data
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import CheckpointError, ConfigError, EnvError
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.board_games import TicTacToe
from alf_lite.games.game import copy_rows, random_legal
from alf_lite.games.game_environment import BothSeatsEnvironment
from alf_lite.games.league import League
from alf_lite.games.matches import play_games
from alf_lite.games.opponents import AverageOpponent, RandomOpponent, choose_rows
from alf_lite.games.policy_opponents import snapshots_of
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.tools.arena import players_of
from alf_lite.trainers.hooks import Hook
from alf_lite.trainers.trainer import Trainer


def make_environment(num_environments: int = 8, **options) -> BattleEnvironment:
    options = {"opponents": [RandomOpponent()], "num_snapshots": 2, "seed": 0} | options
    return BattleEnvironment(num_environments, "tic_tac_toe", **options)


def make_algorithm(env, **settings):
    config = TrainerConfig(
        num_iterations=10, unroll_length=8, random_seed=0, **settings
    )
    return PPOAlgorithm(env=env, config=config, action_mask_key="action_mask")


def probabilities(opponent) -> torch.Tensor:
    """Of an opponent, in the first position."""
    observation = {
        "action_mask": np.ones((1, 9), np.int8),
        "observation": np.zeros((1, 2, 3, 3), np.float32),
    }
    algorithm = opponent.policy.algorithm
    tensors, _ = opponent.policy._to_tensors(observation)
    with torch.no_grad():
        distribution, _ = algorithm._policy(tensors)
    return distribution.probs.clone()


def test_an_evicted_snapshot_finishes_its_games():
    env = make_environment(opponents=[], num_snapshots=1)
    algorithm = make_algorithm(env)
    env.reset()
    playing = env._opponents.snapshots[0]
    before = probabilities(playing)
    pool = algorithm.opponent_pool
    other = {name: 1 + tensor for name, tensor in pool.tensors_of(0).items()}
    pool.put(0, 1, other)
    seen = set()
    opponent = torch.zeros(8)
    for _ in range(12):
        legal = torch.from_numpy(env.game.legal(env._games, env._choosing_seats()))
        action = torch.multinomial(legal.float() + 1e-9, 1)[:, 0]
        step = env.step(action)
        now = step.env_info["opponent"]
        assert torch.equal(now[~step.is_first()], opponent[~step.is_first()])
        assert (now[step.is_first()] == 1).all()
        opponent = now
        seen |= set(now.tolist())
        if 0.0 in now:
            assert torch.equal(probabilities(env._opponents.snapshots[0]), before)
    assert seen == {0.0, 1.0}
    assert list(env._opponents.snapshots._playing) == [1]


def test_weights_say_how_often_opponents_are_met():
    env = make_environment(64, num_snapshots=3)
    algorithm = make_algorithm(env)
    pool = algorithm.opponent_pool
    for number in (1, 2):
        pool.put(number, number, pool.tensors_of(0))
    pool.weights.copy_(torch.tensor([0.1, 0.0, 0.3, 0.6]))
    met = [env.reset(seed).env_info["opponent"] for seed in range(40)]
    share = torch.cat(met).long().bincount(minlength=4) / 2560
    assert share.tolist() == pytest.approx([0.1, 0, 0.3, 0.6], abs=0.03)
    pool.weights.zero_()
    with pytest.raises(EnvError, match="all opponents have the weight 0"):
        env.reset(0)


class TestLeague:
    def make(self, **options) -> tuple[League, object]:
        env = make_environment(num_snapshots=3)
        algorithm = make_algorithm(env)
        return League(**options), algorithm.opponent_pool

    def test_weights(self):
        league, pool = self.make(weighting="squared", newest_share=0.5, bot_share=0.2)
        for number in (1, 2):
            pool.put(number, number, pool.tensors_of(0))
        # Of the snapshots 0 to 2, behind one bot: won 0.5, 0.9 and 0.1
        league.payoff._games = {
            1: np.array([10.0, 0, 10]),
            2: np.array([18.0, 0, 2]),
            3: np.array([2.0, 0, 18]),
        }
        squared = 0.8 * 0.5 * np.array([0.233645, 0.009346, 0.757009])
        expected = [0.2, *(squared + np.array([0, 0, 0.4]))]
        assert league.weights(pool) == pytest.approx(expected, abs=1e-5)

    def test_when_a_snapshot_is_taken(self):
        league, pool = self.make(snapshot_interval=10, strong_win_rate=0.7)
        assert not league._wants_snapshot(pool, 9)
        assert not league._wants_snapshot(pool, 10)  # not known to win
        assert not league._wants_snapshot(pool, 19)
        assert league._wants_snapshot(pool, 20)
        league.payoff._games[1] = np.array([14.0, 0, 6])  # no more than that
        assert not league._wants_snapshot(pool, 19)
        league.payoff._games[1] = np.array([15.0, 0, 5])
        assert league._wants_snapshot(pool, 10)
        assert not league._wants_snapshot(pool, 9)
        # Against each of them
        pool.put(1, 1, pool.tensors_of(0))
        assert not league._wants_snapshot(pool, 10)

    def test_without_others_it_plays_itself(self):
        env = make_environment(opponents=[], num_snapshots=3)
        pool = make_algorithm(env).opponent_pool
        assert pool.weights.tolist() == [1, 0, 0]
        assert League(bot_share=0.2).weights(pool).tolist() == [1, 0, 0]

    def test_equal_snapshots_are_met_alike(self):
        # As rock, paper and scissors are to a policy that plays all three alike
        league, pool = self.make(weighting="variance", newest_share=0, bot_share=0)
        for number in (1, 2):
            pool.put(number, number, pool.tensors_of(0))
        for opponent in (1, 2, 3):
            league.payoff._games[opponent] = np.array([10.0, 10, 10])
        assert league.weights(pool) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])

    @pytest.mark.parametrize("evicts_oldest", [False, True])
    def test_who_is_beaten_most_surely_goes_but_never_the_newest(self, evicts_oldest):
        env = make_environment(num_snapshots=3)
        algorithm = make_algorithm(env)
        pool, league = algorithm.opponent_pool, League(evicts_oldest=evicts_oldest)
        for _ in range(2):
            league._take_snapshot(algorithm, pool)
        assert pool.slots() == {0: 0, 1: 1, 2: 2}
        league.payoff.add(1, np.array([10, 0, 10]))
        league.payoff.add(2, np.array([15, 0, 5]))
        league.payoff.add(3, np.array([20, 0, 0]))
        league._take_snapshot(algorithm, pool)
        if evicts_oldest:
            assert pool.slots() == {1: 1, 2: 2, 3: 0}
            return
        assert pool.slots() == {0: 0, 2: 2, 3: 1}
        assert league.payoff.win_rate(2) == 0.5  # of the one that has gone

    @pytest.mark.parametrize(
        "wrong",
        [{"newest_share": 1.5}, {"snapshot_interval": 0}, {"weighting": "newest"}],
    )
    def test_wrong_numbers(self, wrong):
        with pytest.raises(ConfigError, match="League"):
            League(**wrong)


class Stops(Hook):
    """Ends the run after so many iterations."""

    def __init__(self, iterations: int) -> None:
        super().__init__()
        self._iterations = iterations

    def after_iter(self, training):
        if training.run.iterations == self._iterations:
            training.request_stop("as the test wants")


def train(root_dir, num_iterations, algorithm=PPOAlgorithm, stops=0, **settings):
    create = functools.partial(
        create_environment,
        env_ctor=functools.partial(
            _Battle, opponents=(RandomOpponent(),), num_snapshots=2
        ),
        num_parallel_environments=8,
    )
    settings = {
        "unroll_length": 8,
        "random_seed": 0,
        "summary_interval": 1,
    } | settings
    config = TrainerConfig(
        algorithm_ctor=functools.partial(algorithm, action_mask_key="action_mask"),
        num_iterations=num_iterations,
        **settings,
    )
    league = League(snapshot_interval=40, weighting="variance")
    trainer = Trainer(config, root_dir, create_env=create, hooks=[league, Stops(stops)])
    trainer.train()
    return trainer.algorithm, league


class _Battle(BattleEnvironment):
    def __init__(self, num_environments, **kwargs):
        super().__init__(num_environments, "tic_tac_toe", **kwargs)


@pytest.mark.ci
def test_a_run_with_a_league_is_resumed_to_the_bit(tmp_path):
    whole, league = train(tmp_path / "whole", 8)
    assert league._num_snapshots > 3  # more than there are slots
    train(tmp_path / "parts", 8, stops=5)
    resumed, again = train(tmp_path / "parts", 8)
    expected = whole.state_dict()
    for name, tensor in resumed.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert again.state_dict() == league.state_dict()
    curves = alf_lite.read_curves(tmp_path / "whole")
    assert any(name.startswith("league/win_rate/snapshot_") for name in curves)
    assert any(name.endswith("random/seat_1") for name in curves)
    # The policy is loaded without its opponents
    policy = alf_lite.load_policy(tmp_path / "whole")
    assert policy.predict(
        {
            "action_mask": np.ones(9, np.int8),
            "observation": np.zeros((2, 3, 3), np.float32),
        }
    ) in range(9)


@pytest.mark.ci
def test_the_snapshots_of_a_run_and_their_average_play(tmp_path):
    _, league = train(tmp_path / "run", 8)
    snapshots = snapshots_of(tmp_path / "run")
    assert [one.name for one in snapshots] == [
        f"run#{league._num_snapshots - i}" for i in (2, 1)
    ] or len(snapshots) == 2
    seen = np.zeros((1, 2, 3, 3), np.float32)
    legal = np.ones((1, 9), bool)
    pool = torch.load(
        next((tmp_path / "run/checkpoints").glob("ckpt-8/algorithm.pt")),
        weights_only=True,
    )
    assert sorted(pool["opponent_pool.ids"].tolist()) == [
        int(one.name.partition("#")[2]) for one in snapshots
    ]
    chances = [one.probabilities(seen, legal) for one in snapshots]
    assert not np.allclose(*chances)
    assert chances[0].sum() == pytest.approx(1)
    draws = np.random.default_rng(0)
    average = AverageOpponent(snapshots)
    which = average.begin(1000, draws)[0]
    assert 0.4 < which.mean() < 0.6
    play_games(TicTacToe(), (average, RandomOpponent()), 20, draws)
    names = [player.name for player in players_of(f"snapshots:{tmp_path / 'run'}")]
    assert names == [one.name for one in snapshots]
    assert players_of(f"average:{tmp_path / 'run'}")[0].name == "run"
    assert players_of(f"{tmp_path / 'run'}@8")[0].name == "run@8"
    checkpoints = players_of(f"checkpoints:{tmp_path / 'run'}")
    assert [one.name for one in checkpoints][-1] == "run@8"
    assert len(checkpoints) > 1


def test_a_snapshot_of_q_values_does_not_play_at_random():
    env = make_environment(opponents=[])
    config = TrainerConfig(num_iterations=1, unroll_length=2, mini_batch_size=4)
    DqnAlgorithm(env=env, config=config, action_mask_key="action_mask")
    env.reset()
    game, draws = env.game, np.random.default_rng(0)
    state = game.initial(200, draws)
    chosen, _ = env._opponents.snapshots[0].choose(
        game, state, np.zeros(200, int), draws, []
    )
    assert len(set(chosen.tolist())) == 1


class TestMemory:
    def make(self, seed: int = 0):
        env = make_environment(6, opponents=[RandomOpponent()], seed=seed)
        recurrent = functools.partial(
            ActorDistributionNetwork,
            encoding_network_ctor=functools.partial(
                LSTMEncodingNetwork, hidden_size=(4,)
            ),
        )
        config = TrainerConfig(num_iterations=10, unroll_length=8, random_seed=0)
        PPOAlgorithm(
            env=env,
            config=config,
            action_mask_key="action_mask",
            actor_network_ctor=recurrent,
        )
        return env

    def test_it_is_kept_by_game_whoever_plays_beside_it(self):
        env = self.make()
        env.reset()
        snapshot, draws = env._opponents.snapshots[0], np.random.default_rng(0)
        snapshot._deterministic = True
        game, seats = env.game, np.zeros(3, int)
        state = game.initial(3, draws)
        together = snapshot.begin(3, draws)
        alone = snapshot.begin(1, draws)
        for _ in range(3):
            own = copy_rows(state, [1])
            one, alone = snapshot.choose(game, own, seats[:1], draws, alone)
            chosen = choose_rows(
                snapshot, game, state, seats, draws, together, np.arange(3)
            )
            assert chosen[1] == one[0]
            state = game.play(state, np.repeat(chosen[:, None], 2, 1), draws)
        for array, single in zip(together, alone, strict=True):
            assert np.allclose(array[[1]], single, atol=1e-6)
        begun = snapshot.begin(3, draws)
        assert any(not np.allclose(a, b) for a, b in zip(together, begun, strict=True))

    def test_a_new_game_begins_without_it_and_it_is_resumed(self):
        env = self.make()
        env.reset(0)
        snapshot, seen = env._opponents.snapshots[0], 0
        begun = snapshot.begin(1, env._rng)
        for _ in range(30):
            legal = torch.from_numpy(env.game.legal(env._games, env._choosing_seats()))
            step = env.step(torch.multinomial(legal.float() + 1e-9, 1)[:, 0])
            # Of a game that has begun, the other one has the second move
            is_new = step.is_first().numpy() & (env._choosing_seats() == 0)
            for row in np.flatnonzero(is_new & (env._opponent_ids == 1)):
                kept = [array[[2 * row + 1]] for array in env._opponents._memories[1]]
                assert all(map(np.array_equal, begun, kept))
                seen += 1
        assert seen
        state = env.episode_state()
        again = self.make(3)
        again.restore_episodes(state, 0)
        assert again._opponents._memories.keys() == env._opponents._memories.keys()
        for key, memory in env._opponents._memories.items():
            assert all(map(np.array_equal, memory, again._opponents._memories[key]))


@pytest.mark.ci
def test_unroll_workers_meet_the_snapshots(tmp_path):
    algorithm, league = train(
        tmp_path / "run",
        8,
        functools.partial(PPOAlgorithm, off_policy_correction="vtrace"),
        async_unroll=True,
        num_unroll_workers=2,
    )
    assert league._num_snapshots > 2
    # Games against snapshots that were taken after the workers had begun
    assert max(league.payoff._games) > 1
    assert algorithm.opponent_pool.ids.max() > 1


@pytest.mark.ci
def test_off_policy_too(tmp_path):
    _, league = train(
        tmp_path / "run", 20, DqnAlgorithm, mini_batch_size=8, initial_collect_steps=64
    )
    assert league._num_snapshots > 2


def test_a_league_without_opponents_is_refused(tmp_path):
    config = TrainerConfig(
        algorithm_ctor=functools.partial(PPOAlgorithm, action_mask_key="action_mask"),
        num_iterations=1,
        unroll_length=4,
    )
    create = functools.partial(create_environment, env_ctor=BothSeatsEnvironment)
    with pytest.raises(ConfigError, match="League: the environment has no snapshots"):
        Trainer(config, tmp_path, create_env=create, hooks=[League()]).train()


@pytest.mark.parametrize(
    ("option", "environment", "reason"),
    [
        ({"bot_share": 0.5}, {"opponents": []}, "no opponents but snapshots"),
        ({"weighting": "squared"}, {"num_snapshots": 1}, "num_snapshots is 1"),
        ({"newest_share": 0.0}, {"num_snapshots": 1}, "num_snapshots is 1"),
        ({"evicts_oldest": True}, {"num_snapshots": 1}, "num_snapshots is 1"),
        ({"weighting": "squared", "newest_share": 1.0}, {}, "newest_share is 1"),
    ],
)
def test_an_option_that_decides_nothing_is_refused(option, environment, reason):
    training = SimpleNamespace(
        algorithm=make_algorithm(make_environment(**environment))
    )
    with pytest.raises(
        ConfigError, match=rf"{next(iter(option))} has no eff.*{reason}"
    ):
        League(**option).before_episodes(training)


def test_snapshots_that_nothing_takes_are_refused(tmp_path):
    config = TrainerConfig(
        algorithm_ctor=functools.partial(PPOAlgorithm, action_mask_key="action_mask"),
        num_iterations=1,
        unroll_length=4,
        random_seed=0,
    )

    def train(num_snapshots, hooks=()):
        env = functools.partial(_Battle, num_snapshots=num_snapshots)
        create = functools.partial(create_environment, env_ctor=env)
        Trainer(config, tmp_path / "run", create_env=create, hooks=hooks).train()

    with pytest.raises(ConfigError, match=r"is 3, but nothing takes .* \[@League\]"):
        train(3)
    train(3, [League()])
    train(3)  # it goes on with those that it has


def test_snapshots_draw_from_the_generator_of_their_games():
    def steps(torch_seed):
        torch.manual_seed(torch_seed)
        env = make_environment(opponents=[], num_snapshots=2)
        make_algorithm(env)
        env.reset(3)
        before, found = torch.get_rng_state(), []
        draws = np.random.default_rng(0)
        for _ in range(20):
            legal = env.game.legal(env._games, env._choosing_seats())
            found.append(env.step(torch.from_numpy(random_legal(legal, draws))))
        assert torch.equal(torch.get_rng_state(), before)
        return torch.stack([step.observation["observation"] for step in found])

    assert torch.equal(steps(0), steps(1))


def test_a_pool_of_another_size_is_told_in_a_line():
    one, other, bot = (
        make_algorithm(make_environment(**options))
        for options in ({}, {"num_snapshots": 3}, {"opponents": [RandomOpponent()] * 2})
    )
    load = functools.partial(data.load_module_state, state_dict=one.state_dict())
    with pytest.raises(
        CheckpointError, match=r"^it: num_snapshots was 2 and is 3: .*$"
    ):
        load(other, what="it")
    with pytest.raises(CheckpointError, match=r"^it: there were 1 opponents .* are 2"):
        load(bot, what="it")
    load(one, what="it")
