"""The loss on held-out data: its value, what it decides, what it leaves alone."""

from __future__ import annotations

import functools
import math
import shutil

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.dynamic_action_repeat_agent import DynamicActionRepeatAgent
from alf_lite.algorithms.learning.training_batches import transpose
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import TrainerConfig
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.writing import write_source
from alf_lite.environments.specs_only_environment import SpecsOnlyEnvironment
from alf_lite.errors import ConfigError, DataError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.trainers.dataset_evaluator import DatasetEvaluator, action_error
from alf_lite.trainers.evaluations import is_evaluation_due
from alf_lite.trainers.hooks import Hook
from alf_lite.trainers.shipped_hooks import BestModel
from alf_lite.trainers.trainer import Trainer
from tests.datasets.recorded_episodes import flat_episode, make_env


@pytest.fixture
def data(tmp_path):
    (tmp_path / "train").mkdir()
    np.savez(tmp_path / "train" / "a.npz", **flat_episode(10))
    for name, begin in (("a", 3.0), ("b", 5.0)):
        np.savez(tmp_path / f"{name}.npz", **flat_episode(7, begin=begin))
    return tmp_path


def offline_trainer(data, *hooks, **settings) -> Trainer:
    settings = {
        "algorithm_ctor": functools.partial(
            BcAlgorithm, optimizer=Adam(lr=0.02), deterministic=True
        ),
        "num_iterations": 6,
        "rl_train_after_update_steps": 100,
        "mini_batch_size": 8,
        "mini_batch_length": 2,
        "offline_buffer_dir": str(data / "train"),
        "evaluation_buffer_dir": [str(data / "a.npz"), str(data / "b.npz")],
        "eval_interval": 2,
        "random_seed": 0,
        **settings,
    }
    return Trainer(
        TrainerConfig(**settings),
        data / "run",
        hooks=hooks,
        create_env=lambda seed=None, num_parallel_environments=1: make_env(),
    )


def evaluator_of(trainer) -> DatasetEvaluator:
    return DatasetEvaluator(
        trainer.algorithm, trainer.config, trainer.config.evaluation_sources
    )


@pytest.mark.parametrize("length", [2, 3, 4])
def test_the_loss_is_the_mean_over_all_transitions(data, length):
    trainer = offline_trainer(data, mini_batch_length=length)
    trainer.train()
    algorithm = trainer.algorithm
    losses = evaluator_of(trainer).evaluate()
    # Every transition once; of a and b, 7 each.
    squared = []
    for name in ("a", "b"):
        with np.load(data / f"{name}.npz") as episode:
            observation = torch.from_numpy(episode["observation"][:-1])
            action = torch.from_numpy(episode["action"]).clamp(-2, 2) / 2
        step = algorithm.predict_step(
            make_env().reset()._replace(observation=observation), ()
        )
        # What is imitated keeps a small distance from the bounds.
        squared.append((step.output.detach() - action.clamp(-0.999, 0.999)) ** 2)
    # The windows cover 7 transitions, or 6 where the length does not divide.
    covered = 7 // (length - 1) * (length - 1)
    expected = torch.stack(squared)[:, :covered].mean()
    assert losses["loss"] == pytest.approx(float(expected), rel=1e-3)
    assert losses["loss/imitation_loss"] == pytest.approx(losses["loss"])


HOLDS = functools.partial(
    DynamicActionRepeatAgent, rl_algorithm_ctor=SacAlgorithm, max_repeats=3
)


@pytest.mark.parametrize(
    ("ctor", "length", "num_ahead"),
    [
        (functools.partial(SacAlgorithm, n_step=3), 4, 3),
        (functools.partial(SacAlgorithm, n_step=2), 5, 2),
        (HOLDS, 4, 3),
    ],
)
def test_no_transition_is_left_out_where_more_steps_are_looked_at(
    data, ctor, length, num_ahead
):
    ctor = functools.partial(ctor, optimizer=Adam(lr=0.02))
    settings = {"algorithm_ctor": ctor, "mini_batch_length": length}
    trainer = offline_trainer(data, num_iterations=1, **settings)
    trainer.train()
    evaluator = evaluator_of(trainer)
    for buffer in evaluator._buffers:
        [windows] = evaluator._windows(buffer)
        with torch.no_grad():
            _, num_trained = evaluator._losses(buffer, windows)
        assert num_trained == 8 - num_ahead


def test_held_out_steps_are_none_of_the_runs_own(data):
    """What is for recorded steps alone is a part of their loss."""
    losses = []
    for offline_rows_only in (True, False):
        ctor = functools.partial(Td3BcAlgorithm, offline_rows_only=offline_rows_only)
        trainer = offline_trainer(data, num_iterations=1, algorithm_ctor=ctor)
        trainer.train()
        losses.append(evaluator_of(trainer).evaluate())
        shutil.rmtree(data / "run")
    assert losses[0] == losses[1]


@pytest.mark.ci
def test_held_out_targets_are_bounded_by_returns_as_those_of_training(data):
    for name in ("train/a", "a"):
        with np.load(data / f"{name}.npz") as episode:
            gears = np.ones(len(episode["action"]), np.int64)
            np.savez(data / f"{name}.npz", **{**episode, "action": gears})
    losses = []
    for has_bounds in (True, False):
        ctor = functools.partial(
            DqnAlgorithm, lower_bound_targets=has_bounds, optimizer=Adam(lr=0.0)
        )
        trainer = Trainer(
            TrainerConfig(
                algorithm_ctor=ctor,
                num_iterations=1,
                rl_train_after_update_steps=100,
                mini_batch_size=8,
                mini_batch_length=2,
                offline_buffer_dir=str(data / "train"),
                evaluation_buffer_dir=str(data / "a.npz"),
                random_seed=0,
            ),
            data / f"run_{has_bounds}",
            create_env=lambda seed=None, num_parallel_environments=1: make_env(
                action_space=spaces.Discrete(3)
            ),
        )
        trainer.train()
        losses.append(evaluator_of(trainer).evaluate()["loss"])
    # The values of the untrained network are small: targets are all rewards that
    # follow, or hardly more than the next one. The Huber loss of x is x - 0.5.
    rewards = 2.0 * np.arange(4, 11)
    returns = [rewards[t:] @ 0.99 ** np.arange(7 - t) for t in range(7)]
    assert losses[0] == pytest.approx(np.mean(returns) - 0.5, abs=1)
    assert losses[1] == pytest.approx(np.mean(rewards) - 0.5, abs=1)


def largest_action(algorithm, steps):
    return steps.action.abs().max()


def test_metrics_of_ones_own_are_computed_batch_by_batch(data):
    trainer = offline_trainer(data, data_metrics=[action_error, largest_action])
    trainer.train()
    losses = evaluator_of(trainer).evaluate()
    # What is imitated keeps a small distance from the bounds.
    expected = pytest.approx(losses["loss/imitation_loss"], rel=0.1)
    assert losses["action_error"] == expected
    assert 0 < losses["largest_action"] <= 1
    events = EventAccumulator(str(data / "run" / "train")).Reload()
    assert len(events.Scalars("eval_data/action_error")) == 4


def test_own_metrics_see_what_was_executed_whoever_chose_it(data):
    """As the loss does: what an agent chose beside it is stored in own files."""
    env = make_env()
    recorded = load_replay_buffer(str(data / "a.npz"), env)
    steps, _ = recorded.gather_all()
    chosen = ReplayBuffer(recorded.data_spec, 1, recorded.total_size)
    steps = steps._replace(action=torch.full_like(steps.action, 0.9))
    chosen.add_batch(transpose(steps), time_major=True)
    write_source(chosen, env, data / "chosen.replay", "alf_lite")
    trainer = offline_trainer(data, data_metrics=[action_error])
    trainer.train()
    errors = [
        DatasetEvaluator(trainer.algorithm, trainer.config, [str(path)]).evaluate()
        for path in (data / "a.npz", data / "chosen.replay")
    ]
    assert errors[0] == errors[1]


def test_the_distance_is_that_of_the_best_action_where_evaluations_draw(data):
    ctor = functools.partial(BcAlgorithm, optimizer=Adam(lr=0.02))
    settings = {"algorithm_ctor": ctor, "data_metrics": [action_error]}
    trainer = offline_trainer(data, epsilon_greedy=1.0, **settings)
    trainer.train()
    drawn = evaluator_of(trainer).evaluate()["action_error"]
    trainer.algorithm.predict_epsilon = 0.0
    assert drawn == evaluator_of(trainer).evaluate()["action_error"] > 0


def test_such_a_metric_may_decide_which_policy_is_the_best(data):
    hook = BestModel("action_error", lower_is_better=True)
    notes = Scripted()
    trainer = offline_trainer(data, hook, notes, data_metrics=[action_error])
    score = trainer.train().best_score
    later = [r.losses["action_error"] for r in notes.results if r.iterations]
    assert score == -min(later)


def test_a_metric_of_another_shape_is_refused(data):
    trainer = offline_trainer(data, data_metrics=[lambda _, steps: steps.action])
    with pytest.raises(ConfigError, match=r"data_metrics: <lambda> must return one"):
        trainer.train()


@pytest.mark.ci
@pytest.mark.parametrize("ctor", [BcAlgorithm, Td3BcAlgorithm])
def test_evaluating_changes_nothing(data, ctor):
    settings = {"algorithm_ctor": ctor}
    with_data = offline_trainer(data, eval_interval=1, **settings)
    with_data.train()
    (data / "run").rename(data / "first")
    settings |= {"evaluation_buffer_dir": None, "eval_interval": 0}
    without = offline_trainer(data, **settings)
    without.train()
    expected = without.algorithm.state_dict()
    for name, value in with_data.algorithm.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_the_same_every_time(data):
    trainer = offline_trainer(data)
    trainer.train()
    evaluator = evaluator_of(trainer)
    assert evaluator.evaluate() == evaluator.evaluate()


@pytest.mark.ci
def test_the_part_of_an_actor_that_is_updated_seldom_is_there_every_time(data):
    notes = Scripted()
    ctor = functools.partial(Td3BcAlgorithm, actor_update_period=2)
    offline_trainer(data, notes, algorithm_ctor=ctor, eval_interval=1).train()
    assert len(notes.results) == 7
    assert all("loss/td3/actor_loss" in result.losses for result in notes.results)


def test_it_is_written_at_every_interval(data):
    offline_trainer(data).train()
    events = EventAccumulator(str(data / "run" / "train")).Reload()
    steps = [event.step for event in events.Scalars("eval_data/loss")]
    assert steps == [0, 2, 4, 6]


class Scripted(Hook):
    """Notes the best iteration after each."""

    def __init__(self) -> None:
        super().__init__()
        self.best = []
        self.results = []

    def after_iter(self, training) -> None:
        self.best.append((training.run.iterations, training.run.best_iteration))

    def after_eval(self, training, result) -> None:
        self.results.append(result)


def test_hooks_are_given_the_losses(data):
    notes = Scripted()
    trainer = offline_trainer(data, notes)
    result = trainer.train()
    assert len(notes.results) == 4
    last = notes.results[-1]
    assert last.losses == evaluator_of(trainer).evaluate()
    assert last.returns == []
    for value in (last.mean, last.std, last.min, last.max, last.mean_length):
        assert math.isnan(value)
    assert result.evaluation is None  # there are no episodes to tell of


def test_returns_without_an_environment_are_refused_before_training(data):
    trainer = offline_trainer(data, evaluate=True, early_stop_return=1.0)
    known = make_env()
    specs_only = SpecsOnlyEnvironment(
        known.vector_env.single_observation_space,
        known.vector_env.single_action_space,
    )
    trainer._plan.create_env = lambda **kwargs: specs_only
    with pytest.raises(ConfigError, match="SpecsOnlyEnvironment cannot be stepped"):
        trainer.train()
    assert not (data / "run" / "checkpoints").exists()


def test_the_best_checkpoint_has_the_lowest_loss(data, monkeypatch):
    losses = iter([0.0, 3.0, 1.0, 2.0])  # iterations 0, 2, 4, 6
    monkeypatch.setattr(
        DatasetEvaluator, "evaluate", lambda self: {"loss": next(losses)}
    )
    notes = Scripted()
    trainer = offline_trainer(data, notes)
    trainer.train()
    assert notes.best == [(1, None), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4)]
    best = Checkpointer(data / "run" / "checkpoints").load("best", ["algorithm"])
    assert (best.step, trainer.run.best_score) == (4, -1.0)


def test_a_loss_that_is_not_finite_is_never_the_best(data, monkeypatch):
    monkeypatch.setattr(DatasetEvaluator, "evaluate", lambda self: {"loss": math.nan})
    trainer = offline_trainer(data)
    trainer.train()
    assert trainer.run.best_iteration is None


def test_data_that_cannot_be_used_is_refused_before_training(data):
    with pytest.raises(DataError, match="there is no such file"):
        offline_trainer(data, evaluation_buffer_dir=str(data / "c.npz")).train()
    with pytest.raises(DataError, match=r"has \[8\] steps.*a window takes 9"):
        offline_trainer(data, mini_batch_length=9).train()
    assert not (data / "run" / "checkpoints").exists()


def test_on_policy_algorithms_have_no_loss_on_data(make_trainer, data):
    trainer = make_trainer(evaluation_buffer_dir=str(data / "a.npz"))
    with pytest.raises(ConfigError, match="ToyAlgorithm is on-policy"):
        trainer.train()


def test_evaluation_is_due_at_every_multiple_and_once_each():
    asked = [0, 0, 999, 1000, 1000, 1500, 2000]
    last, answers = None, []
    for iteration in asked:
        due = is_evaluation_due(iteration, last, 1000)
        answers.append(due)
        if due:
            last = iteration
    assert answers == [True, False, False, True, False, False, True]
    assert not is_evaluation_due(0, None, 0)
