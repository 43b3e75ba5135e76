"""What evaluations and the metrics of training say of games against opponents."""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest

import alf_lite
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.errors import ConfigError
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.game_environment import BothSeatsEnvironment
from alf_lite.games.opponents import Opponent, PerfectOpponent, RandomOpponent
from alf_lite.policies.evaluator import EvalResult, evaluate
from alf_lite.tools.report import evaluation_lines
from alf_lite.trainers import train_summaries
from alf_lite.trainers.evaluation_worker import create_eval_env
from alf_lite.trainers.hooks import Hooks
from alf_lite.trainers.trainer import Trainer
from alf_lite.utils.game_results import SeatRecord


def make_environment(num_environments: int, seed: int = 0, **options):
    opponents = [RandomOpponent(), PerfectOpponent()]
    return BattleEnvironment(
        num_environments, "tic_tac_toe", opponents=opponents, seed=seed, **options
    )


def make_algorithm(env, **settings):
    config = TrainerConfig(
        num_iterations=10, unroll_length=8, random_seed=0, **settings
    )
    return PPOAlgorithm(env=env, config=config, action_mask_key="action_mask")


def test_an_evaluation_without_opponents_is_refused():
    env = BattleEnvironment(2, "tic_tac_toe", num_snapshots=3)
    algorithm = make_algorithm(make_environment(4))
    with pytest.raises(ConfigError, match=r"evaluation/BattleEnvironment\.opponents"):
        evaluate(algorithm, env, 4)


@pytest.mark.ci
def test_an_evaluation_tells_the_games_by_opponent_and_seat():
    algorithm, env = make_algorithm(make_environment(4)), make_environment(8, 1)
    ends = []

    def note(step):
        info = {key: value.tolist() for key, value in step.env_info.items()}
        rows = zip(info["opponent"], info["seat"], info["outcome"], strict=True)
        ends.extend(r for r, end in zip(rows, step.is_last(), strict=True) if end)

    result = evaluate(algorithm, env, 64, seed=3, on_step=note)
    # The environments that are not waited for any more play on
    counted = collections.Counter(e.game for e in result.episodes)
    assert sum(counted.values()) == 64
    assert not counted - collections.Counter(
        (("random", "perfect")[int(opponent)], seat, outcome)
        for opponent, seat, outcome in ends
    )
    assert [(r.opponent, r.seat) for r in result.games] == [
        ("random", 0),
        ("random", 1),
        ("perfect", 0),
        ("perfect", 1),
    ]
    for record in result.games:
        own = {
            outcome: number
            for (opponent, seat, outcome), number in counted.items()
            if (opponent, seat) == record[:2]
        }
        assert record.won == own.get(1, 0)
        assert record.drawn == own.get(0, 0)
        assert record.lost == own.get(-1, 0)
        mean = (record.won - record.lost) / record.num_games
        assert record.outcome == pytest.approx(mean)
    assert result.score == pytest.approx(np.mean([r.outcome for r in result.games]))
    assert result.score != result.mean
    # No means of numbers that only say who it was
    assert result.info == {}
    numbers = result.numbers
    assert numbers["Games/score"] == result.score
    assert numbers["Games/lost/perfect/seat_1"] == pytest.approx(
        result.games[3].lost / result.games[3].num_games
    )
    first, *lines = evaluation_lines(result)
    assert first.startswith(f"Evaluation:   score {result.score:+.3f} (mean outcome")
    assert len(lines) == 4
    assert lines[0].split()[:4] == ["random", "seat", "0:", "won"]


def test_the_best_policy_is_that_of_the_best_score():
    # Many games against one that is beaten hide some against one that is not
    games = (
        SeatRecord("random", 0, 98, 0, 0, 1.0),
        SeatRecord("perfect", 0, 0, 0, 2, -1.0),
    )
    result = EvalResult([1.0] * 98 + [-1.0] * 2, [5] * 100, 500, {}, games=games)
    assert result.mean == pytest.approx(0.96)
    assert Hooks([]).score(result) is None
    assert result.score == 0.0
    assert result._replace(games=()).score == result.mean


@pytest.mark.ci
def test_training_tells_the_games_by_opponent_and_seat():
    algorithm = make_algorithm(make_environment(16, num_snapshots=1))
    for _ in range(3):
        algorithm.train_iter()
    results = algorithm.metrics.results()
    assert not [name for name in results if name.startswith("AverageEnvInfo")]
    cells = {name.partition("outcome/")[2] for name in results if "outcome/" in name}
    who = ("random", "perfect", "snapshots")
    assert cells == {f"{name}/seat_{seat}" for name in who for seat in (0, 1)}
    means = [results[f"Games/outcome/{cell}"] for cell in cells]
    assert results["Games/score"] == pytest.approx(np.mean(means))
    # Nobody beats it
    assert results["Games/won/perfect/seat_0"] == 0


@pytest.mark.ci
def test_the_files_of_a_run_name_the_opponents(tmp_path):
    class Battle(BattleEnvironment):
        def __init__(self, num_environments, **options):
            opponents = [RandomOpponent()]
            super().__init__(num_environments, "nim", opponents=opponents, **options)

    def create_env(num_parallel_environments=4, seed=0, **_):
        return Battle(num_parallel_environments, seed=seed)

    config = TrainerConfig(
        algorithm_ctor=functools.partial(PPOAlgorithm, action_mask_key="action_mask"),
        num_iterations=2,
        unroll_length=8,
        summary_interval=1,
        evaluate=True,
        eval_interval=1,
        num_eval_episodes=6,
        num_eval_environments=2,
    )
    result = Trainer(config, tmp_path, create_env=create_env).train()
    curves = alf_lite.read_curves(tmp_path)
    named = [name for name in curves if "seat" in name or "opponent" in name]
    assert "eval/Games/won/random/seat_1" in named
    assert "Metrics/Games/outcome/random/seat_0" in named
    assert not [name for name in named if "EnvInfo" in name]
    assert result.best_score == max(curves["eval/Games/score"].values[1:])
    header = (tmp_path / "evaluation_episodes.csv").read_text().splitlines()
    assert {"opponent", "seat", "outcome"} <= set(header[0].split(","))
    assert header[1].split(",")[header[0].split(",").index("opponent")] == "random"


class Rock(Opponent):
    """Always the same."""

    name = "rock"

    def act(self, game, state, seats, rng):
        return np.zeros(len(seats), np.int64)


@pytest.mark.ci
def test_who_always_plays_rock_is_beaten():
    def make(number, seed):
        game, opponents = "rock_paper_scissors", [Rock()]
        return BattleEnvironment(number, game, opponents=opponents, seed=seed)

    algorithm = make_algorithm(make(32, 0), mini_batch_size=64, epochs=4)
    for _ in range(12):
        algorithm.train_iter()
    games = evaluate(algorithm, make(8, 1), 40, seed=0).games
    assert [(r.opponent, r.seat, r.won) for r in games] == [
        ("rock", 0, 20),
        ("rock", 1, 20),
    ]


def test_a_row_of_two_sides_has_no_return():
    env = BothSeatsEnvironment(8, "tic_tac_toe", seed=0)
    algorithm = make_algorithm(env)
    for _ in range(2):
        algorithm.train_iter()
    results = algorithm.metrics.results()
    assert not {"AverageReturn", "AverageReward"} & results.keys()
    infos = [name for name in results if name.startswith("AverageEnvInfo")]
    assert infos == ["AverageEnvInfo/last/outcome"]
    assert results["EpisodicStartAverageDiscountedReturn"]
    assert np.isnan(train_summaries.average_return(algorithm))


def test_one_policy_on_both_sides_is_not_evaluated():
    def create_env(num_parallel_environments=2, seed=0, **_):
        return BothSeatsEnvironment(num_parallel_environments, "nim", seed=seed)

    with pytest.raises(ConfigError, match="the policy plays both sides"):
        create_eval_env(TrainerConfig(num_iterations=1), create_env, 0, None)
