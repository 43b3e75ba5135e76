"""Metrics of one's own: folded over episodes, in training and in evaluations."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from alf_lite.config import TrainerConfig
from alf_lite.data_structures import TimeStep
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.metrics.episode_metric import (
    EpisodeFold,
    EpisodeMetric,
    RecentEpisodes,
    build_episode_metrics,
)
from alf_lite.policies.evaluator import evaluate
from alf_lite.trainers.trainer import Trainer
from tests.trainers.toys import NoiseEnvironment, ScriptedEnvironment, ToyAlgorithm

F, M, L = 0, 1, 2


class Height(EpisodeMetric):
    def value(self, time_step):
        return time_step.observation[..., 0]


def steps(step_types, values) -> TimeStep:
    """One row per environment as written, [T, B] as returned."""
    return TimeStep(
        step_type=torch.tensor(step_types).T,
        observation=torch.tensor(values, dtype=torch.float32).T[..., None],
    )


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("mean", [3.0, 15.0, 8.0]),
        ("sum", [6.0, 30.0, 8.0]),
        ("max", [4.0, 20.0, 8.0]),
        ("min", [2.0, 10.0, 8.0]),
        ("last", [4.0, 20.0, 8.0]),
    ],
)
@pytest.mark.parametrize("pieces", [[6], [1, 1, 1, 3], [4, 2]])
def test_the_steps_of_an_episode_but_the_first_one(reduction, expected, pieces):
    # The first one waits for others; in the third one the begin was not seen.
    step_types = [[F, M, L, L, L, F], [F, M, L, F, M, M], [M, L, F, L, L, L]]
    values = [[99, 2, 4, 7, 7, 99], [99, 10, 20, 99, 1, 1], [1, 1, 99, 8, 9, 9]]
    fold = EpisodeFold(Height(reduction), 3)
    found, begin = [], 0
    for size in pieces:
        part = slice(begin, begin + size)
        batch = steps([s[part] for s in step_types], [v[part] for v in values])
        found += fold.add(batch, np.arange(3)).tolist()
        begin += size
    assert sorted(found) == sorted(expected)


def test_recent_episodes_are_averaged_and_told_apart_by_environment():
    recent = RecentEpisodes(Height("sum"), batch_size=3, buffer_size=2)
    assert np.isnan(recent.result())
    recent.observe(steps([[F, M], [F, M]], [[0, 1], [0, 10]]), np.array([2, 0]))
    recent.observe(steps([[L]], [[2]]), np.array([2]))
    assert recent.result() == 3
    saved = recent.state_dict()
    for other in (recent, RecentEpisodes(Height("sum"), 3, 2)):
        other.load_state_dict(saved)
        other.observe(steps([[L]], [[20]]), np.array([0]))
        assert other.result() == (3 + 30) / 2
        other.observe(steps([[F, L]], [[0, 5]]), np.array([0]))
        assert other.result() == (30 + 5) / 2  # the oldest is gone
    with pytest.raises(CheckpointError, match=r"Height: 'recorded' was saved"):
        RecentEpisodes(Height("sum"), 3, 5).load_state_dict(saved)


@pytest.mark.parametrize(
    ("ctors", "message"),
    [
        ([dict], "must build EpisodeMetrics, got a dict"),
        ([Height, Height], "several are called Height"),
    ],
)
def test_what_is_no_metric_is_refused(ctors, message):
    with pytest.raises(ConfigError, match=message):
        build_episode_metrics(ctors)
    with pytest.raises(ValueError, match="one of mean, sum, max, min, last"):
        Height("median")


def test_a_value_per_step_is_wanted():
    class Wide(EpisodeMetric):
        def value(self, time_step):
            return time_step.observation

    with pytest.raises(ConfigError, match=r"Wide.value: expected one number per step"):
        EpisodeFold(Wide(), 1).add(steps([[F]], [[0]]), np.arange(1))


def test_an_evaluation_counts_the_episodes_of_its_quotas():
    env = ScriptedEnvironment([lambda i: (i + 1, 0.0), lambda i: (5, 0.0)])
    algorithm = ToyAlgorithm(env.observation_spec, env.action_spec)
    result = evaluate(algorithm, env, 3, metrics=[Height("max")])
    assert [episode.metrics for episode in result.episodes] == [
        {"Height": 1.0},
        {"Height": 2.0},
        {"Height": 5.0},
    ]
    assert result.numbers["Height"] == pytest.approx(8 / 3)


@pytest.mark.ci
def test_training_and_evaluation_report_it_and_a_resumed_run_goes_on(tmp_path):
    def train(root_dir, num_iterations, **more):
        config = TrainerConfig(
            algorithm_ctor=ToyAlgorithm,
            num_iterations=num_iterations,
            unroll_length=7,
            random_seed=0,
            metric_ctors=[functools.partial(Height, "max")],
            evaluate=True,
            **more,
        )
        trainer = Trainer(
            config,
            root_dir,
            create_env=lambda seed, num_parallel_environments=3: NoiseEnvironment(
                num_parallel_environments, seed
            ),
        )
        result = trainer.train()
        metric = trainer.algorithm.get_metrics()[-1]
        return metric.result(), result.evaluation.numbers["Height"]

    whole = train(tmp_path / "whole", 8)
    train(tmp_path / "parts", 3)
    assert train(tmp_path / "parts", 8) == whole
    assert np.isfinite(whole).all()
