"""A resumed run does exactly what the uninterrupted one does, to the bit."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.training_run import TrainingRun
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.data_structures import StepType
from alf_lite.environments.creation import create_environment
from alf_lite.errors import CheckpointError, EnvError
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.trainers.hooks import Hook
from alf_lite.utils.row_log import EPISODES, METRICS
from tests.trainers.conftest import make_noise
from tests.trainers.run_comparison import (
    Dies,
    Stops,
    assert_same_run,
    differences,
    learned_state,
    log_rows,
    points,
)


def make_pendulums(*, seed, num_parallel_environments=2, max_episode_steps=200):
    """The rewards are no round numbers, so that their sums depend on the order."""
    return create_environment(
        "Pendulum-v1",
        num_parallel_environments,
        seed,
        max_episode_steps=max_episode_steps,
    )


def make_native(*, seed, num_parallel_environments=2):
    return create_environment(
        "CartPole-v1", num_parallel_environments, seed, vectorization_mode="native"
    )


def PENDULUM_PPO(*args, **kwargs):
    return PPOAlgorithm(*args, optimizer=Adam(lr=1e-3), **kwargs)


def DQN(*args, **kwargs):
    network = functools.partial(QNetwork, fc_layer_params=(8,))
    return DqnAlgorithm(
        *args, optimizer=Adam(lr=1e-3), q_network_ctor=network, **kwargs
    )


EVALUATE = {"evaluate": True, "eval_interval": 3, "num_eval_episodes": 3}


def test_differences_are_found():
    a = {"x": [torch.tensor([1.0, float("nan")])], "y": (1, 2)}
    assert differences(a, a, "") == []
    assert differences(a, {"x": [torch.tensor([1.0, 2.0])], "y": (1, 2)}, "")
    assert differences(a, {"x": a["x"], "y": (1, 3)}, "")
    assert differences(a, {"x": a["x"], "y": (1, 2, 3)}, "")
    assert differences(a, {"x": a["x"]}, "")


@pytest.mark.ci
@pytest.mark.parametrize("config", [{}, EVALUATE], ids=["plain", "evaluating"])
def test_killed_and_resumed_equals_uninterrupted(train, tmp_path, config):
    train("straight", **config)
    for name, moments in {"once": [5], "often": [1, 3, 3, 4, 6, 7]}.items():
        for dies_at in moments:
            with pytest.raises(KeyboardInterrupt):
                train(name, hooks=[Dies(dies_at)], **config)
        assert train(name, **config).iterations == 8
        assert_same_run(tmp_path / "straight", tmp_path / name)


@pytest.mark.ci
@pytest.mark.parametrize("config", [{}, EVALUATE], ids=["plain", "evaluating"])
def test_stopped_at_every_iteration_equals_uninterrupted(train, tmp_path, config):
    train("straight", **config)
    for stop in range(1, 8):
        result = train("resumed", hooks=[Stops(stop)], **config)
        assert result.iterations == stop
    train("resumed", **config)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")


def test_evaluation_at_a_stop_is_known_only_to_the_user(train, tmp_path):
    best = train("resumed", hooks=[Stops(4)], **EVALUATE).best_score
    assert best is not None
    checkpoints = Checkpointer(tmp_path / "resumed" / "checkpoints")
    assert checkpoints.load("best").step in (3, 4)
    run = checkpoints.load().state["trainer"]["run"]
    assert (run["iterations"], run["last_eval_iteration"]) == (4, 3)


@pytest.mark.ci
def test_how_often_somebody_looks_changes_nothing(train, tmp_path):
    create = functools.partial(make_pendulums, max_episode_steps=9)
    settings = {"create_env": create, "algorithm_ctor": PENDULUM_PPO}
    train("plain", num_checkpoints=0, summary_interval=100, **settings)
    expected = learned_state(tmp_path / "plain")
    for root_dir, config in {
        "5": {"num_checkpoints": 5, **EVALUATE},
        "50": {"num_checkpoints": 50, "summary_interval": 1},
        "0": {"num_checkpoints": 0, "summary_interval": 1, **EVALUATE},
        "50 only": {"num_checkpoints": 50, "summary_interval": 100},
    }.items():
        train(root_dir, **settings, **config)
        assert differences(expected, learned_state(tmp_path / root_dir), "") == []


def test_long_episodes_end_under_many_checkpoints(train):
    result = train(
        create_env=make_pendulums,
        algorithm_ctor=PENDULUM_PPO,
        unroll_length=50,
        num_iterations=6,
        num_checkpoints=6,
    )
    assert result.average_return < 0  # of the two that have ended


@pytest.mark.ci
def test_half_a_run_extended_equals_the_whole_run(train, tmp_path):
    train("whole", num_iterations=8, num_checkpoints=4)
    train("halves", num_iterations=4, num_checkpoints=3)
    result = train("halves", num_iterations=8, num_checkpoints=0)
    assert not result.was_finished
    assert_same_run(tmp_path / "whole", tmp_path / "halves")


@pytest.mark.ci
def test_length_in_env_steps_resumes_exactly_too(train, tmp_path):
    config = {"num_iterations": 0, "num_env_steps": 75, "num_checkpoints": 5}
    train("straight", **config)
    with pytest.raises(KeyboardInterrupt):
        train("resumed", hooks=[Dies(6)], **config)
    train("resumed", **config)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed")


@pytest.mark.ci
def test_curves_have_every_point_once(train, tmp_path):
    for dies_at in (3, 5, 7):
        with pytest.raises(KeyboardInterrupt):
            train(hooks=[Dies(dies_at)], **EVALUATE)
    train(**EVALUATE)
    curves = points(tmp_path / "run")
    env_steps = curves["Metrics_vs_Iterations/EnvironmentSteps"]
    assert [step for step, _ in env_steps] == [1, 2, 4, 6, 8]
    returns = curves["eval_vs_Iterations/AverageReturn"]
    assert [step for step, _ in returns] == [0, 3, 6, 8]
    for tag, curve in curves.items():
        if "_vs_" not in tag:  # two iterations may have seen as many episodes
            steps = [step for step, _ in curve]
            assert len(steps) == len(set(steps)), tag
    rows = log_rows(tmp_path / "run", METRICS)
    assert list(rows) == [(0,), (1,), (2,), (3,), (4,), (6,), (8,)]
    assert [row for row in log_rows(tmp_path / "run", EPISODES) if row[1] == 0] == [
        (0, 0),
        (3, 0),
        (6, 0),
        (8, 0),
    ]


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


def told_lines(caplog):
    return [r.getMessage() for r in caplog.records if "New episodes" in r.getMessage()]


def test_environments_that_do_not_repeat_themselves_are_named_once(train, caplog):
    ppo = {"algorithm_ctor": PENDULUM_PPO, "create_env": make_native}
    train(hooks=[Stops(3)], **ppo)
    assert told_lines(caplog) == []
    assert train(**ppo).iterations == 8
    (line,) = told_lines(caplog)
    assert "all environments (they cannot repeat what others did)" in line


def test_checkpoint_without_episodes_is_resumed_with_new_ones(
    train, caplog, monkeypatch
):
    state_dict = TrainingRun.state_dict

    def without_episodes(self):
        return {k: v for k, v in state_dict(self).items() if k != "unroll"}

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "state_dict", without_episodes)
        train(hooks=[Stops(3)])
    assert train().iterations == 8
    (line,) = told_lines(caplog)
    assert "all environments (the checkpoint has none" in line


def test_steps_of_a_failed_unroll_are_not_continued(train, caplog):
    # Its first steps are in no buffer and no metric.
    with pytest.raises(EnvError):
        train(create_env=functools.partial(make_noise, fail_at=18))
    assert train().iterations == 8
    assert len(told_lines(caplog)) == 1


class OneOfTwoForgets(gymnasium.Wrapper):
    """The environments with an odd number go another way when they are replayed."""

    built = 0

    def __init__(self, env):
        super().__init__(env)
        type(self).built += 1
        self._drift = self.built * 1e-3 if self.built % 2 == 0 else 0.0

    def step(self, action):
        observation, *rest = self.env.step(action)
        return ((observation + self._drift).astype(np.float32), *rest)


def test_only_where_an_episode_is_lost_it_counts_as_cut_off(train, tmp_path, caplog):
    def create(*, seed, num_parallel_environments=2):
        return create_environment(
            "CartPole-v1",
            num_parallel_environments,
            seed,
            wrappers=[OneOfTwoForgets],
        )

    ends = []

    class Looks(Hook):
        def after_iter(self, training):
            buffer = training.algorithm.replay_buffer
            steps = buffer.gather_all()[0].time_step.step_type
            ends.append((training.run.iterations, steps))

    settings = {
        "algorithm_ctor": DQN,
        "create_env": create,
        "checkpoint_replay_buffer": True,
        "replay_buffer_length": 1000,
        "mini_batch_length": 2,
        "mini_batch_size": 4,
        "unroll_length": 3,
    }
    OneOfTwoForgets.built = 0
    train(hooks=[Stops(1), Looks()], **settings)
    train(hooks=[Stops(2), Looks()], **settings)
    (line,) = told_lines(caplog)
    assert "environments 1 (the replay came to another step)" in line
    (_, before), (_, after) = ends
    assert before.shape == (2, 3)
    assert StepType.LAST not in before
    assert after[0].tolist() == [0, 1, 1, 1, 1, 1]
    assert after[1].tolist() == [0, 1, 2, 0, 1, 1]
