"""A resumed run does exactly what the uninterrupted one does, to the bit."""

from __future__ import annotations

import pytest
import torch

from alf_lite.errors import CheckpointError
from tests.trainers.conftest import make_noise
from tests.trainers.run_comparison import Dies, assert_same_run, differences, points

EVALUATE = {"evaluate": True, "eval_interval": 3, "num_eval_episodes": 3}


def test_differences_are_found():
    a = {"x": [torch.tensor([1.0, float("nan")])], "y": (1, 2)}
    assert differences(a, a, "") == []
    assert differences(a, {"x": [torch.tensor([1.0, 2.0])], "y": (1, 2)}, "")
    assert differences(a, {"x": a["x"], "y": (1, 3)}, "")
    assert differences(a, {"x": a["x"], "y": (1, 2, 3)}, "")
    assert differences(a, {"x": a["x"]}, "")


@pytest.mark.parametrize("config", [{}, EVALUATE], ids=["plain", "evaluating"])
@pytest.mark.parametrize("dies_at", [4, 5, 7])
def test_killed_and_resumed_equals_uninterrupted(train, tmp_path, dies_at, config):
    train("straight", **config)
    with pytest.raises(KeyboardInterrupt):
        train("resumed", hooks=[Dies(dies_at)], **config)
    result = train("resumed", **config)
    assert result.iterations == 8
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")


def test_killed_several_times_equals_uninterrupted(train, tmp_path):
    train("straight", **EVALUATE)
    for dies_at in (1, 3, 3, 5, 6, 7):
        with pytest.raises(KeyboardInterrupt):
            train("resumed", hooks=[Dies(dies_at)], **EVALUATE)
    train("resumed", **EVALUATE)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")


def test_half_a_run_extended_equals_the_whole_run(train, tmp_path):
    train("whole", num_iterations=8, num_checkpoints=4)
    train("halves", num_iterations=4, num_checkpoints=3)
    result = train("halves", num_iterations=8, num_checkpoints=0)
    assert not result.was_finished
    assert_same_run(tmp_path / "whole", tmp_path / "halves")


def test_length_in_env_steps_resumes_exactly_too(train, tmp_path):
    config = {"num_iterations": 0, "num_env_steps": 75, "num_checkpoints": 5}
    train("straight", **config)
    with pytest.raises(KeyboardInterrupt):
        train("resumed", hooks=[Dies(6)], **config)
    train("resumed", **config)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")


def test_curves_have_every_point_once(train, tmp_path):
    for dies_at in (3, 5, 7):
        with pytest.raises(KeyboardInterrupt):
            train(hooks=[Dies(dies_at)], **EVALUATE)
    train(**EVALUATE)
    curves = points(tmp_path / "run")
    assert [step for step, _ in curves["Metrics/EnvironmentSteps"]] == [1, 2, 4, 6, 8]
    assert [step for step, _ in curves["eval/AverageReturn"]] == [0, 3, 6, 8]
    for tag, curve in curves.items():
        if "_vs_" not in tag:  # two iterations may have seen as many episodes
            steps = [step for step, _ in curve]
            assert len(steps) == len(set(steps)), tag


def test_resuming_costs_no_environment_step(train):
    made = []

    def create(**kwargs):
        made.append(make_noise(**kwargs))
        return made[-1]

    train(num_iterations=4, num_checkpoints=2)
    steps_before = type(make_noise(seed=0)).steps_of_all_instances
    result = train(num_iterations=5, num_checkpoints=2, create_env=create)
    taken = type(made[0]).steps_of_all_instances - steps_before
    assert taken == 5  # one unroll
    assert result.iterations == 5


def test_another_number_of_environments_is_refused_with_its_reason(train):
    train(num_iterations=4)

    def create(*, seed, num_parallel_environments=None):
        return make_noise(seed=seed, num_parallel_environments=3)

    with pytest.raises(CheckpointError, match="number of environments"):
        train(num_iterations=8, create_env=create)
    assert train(num_iterations=8).iterations == 8
