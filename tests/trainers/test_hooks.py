"""Tests of alf_lite.trainers.hooks."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments.creation import create_environment
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.tools.videos import VideoSettings
from alf_lite.trainers.hooks import Hook, Hooks, ReplaySaver
from alf_lite.trainers.trainer import Trainer
from tests.trainers.run_comparison import Dies


def test_lower_priority_first_and_ties_in_the_given_order():
    a, b, c = Hook(20), Hook(10), Hook(20)
    assert list(Hooks([a, b, c])) == [b, a, c]


def test_a_hook_that_forgets_its_base_has_the_usual_priority():
    class Forgets(Hook):
        def __init__(self) -> None:
            self.count = 0

    hooks = [Hook(60), Forgets(), Hook(50), Hook(40)]
    assert list(Hooks(hooks)) == [hooks[3], hooks[1], hooks[2], hooks[0]]


def test_states_are_named_by_class_and_order_and_empty_ones_left_out():
    class Keeps(Hook):
        def __init__(self, value: int) -> None:
            super().__init__()
            self.value = value

        def state_dict(self):
            return {"value": self.value} if self.value else {}

        def load_state_dict(self, state):
            self.value = state["value"]

    hooks = Hooks([Keeps(1), Hook(), Keeps(0), Keeps(3)])
    states = hooks.state_dict()
    assert states == {"Keeps": {"value": 1}, "Keeps-3": {"value": 3}}
    others = Hooks([Keeps(7), Keeps(8), Keeps(9)])
    others.load_state_dict(states)
    assert [hook.value for hook in others] == [1, 8, 3]


def pendulums(seed=None, num_parallel_environments=2):
    return create_environment("Pendulum-v1", num_parallel_environments, seed)


def train(root_dir: Path, *hooks, **settings) -> Trainer:
    settings = {
        "algorithm_ctor": functools.partial(DdpgAlgorithm, optimizer=Adam(lr=1e-3)),
        "num_iterations": 6,
        "num_checkpoints": 2,
        "unroll_length": 5,
        "mini_batch_length": 2,
        "mini_batch_size": 4,
        "random_seed": 0,
        "checkpoint_replay_buffer": False,
        **settings,
    }
    trainer = Trainer(
        TrainerConfig(**settings), root_dir, hooks=hooks, create_env=pendulums
    )
    trainer.train()
    return trainer


def saved(root_dir: Path) -> list[str]:
    """Whatever lies there, nothing unfinished among it."""
    return sorted(path.name for path in (root_dir / "replay").iterdir())


def test_every_interval_is_saved_and_old_files_are_deleted(tmp_path):
    train(tmp_path, ReplaySaver(interval=1, keep=3))
    assert saved(tmp_path) == ["replay-4", "replay-5", "replay-6"]


def test_a_directory_that_was_deleted_is_not_made_anew(tmp_path):
    class Deletes(Hook):
        def after_iter(self, training) -> None:
            shutil.rmtree(training.root_dir, ignore_errors=True)

    root_dir = tmp_path / "run"
    with pytest.raises(CheckpointError, match="no longer the directory"):
        train(root_dir, Deletes(), ReplaySaver(interval=1))
    assert not root_dir.exists()


def test_the_end_is_saved_without_an_interval(tmp_path):
    train(tmp_path, ReplaySaver())
    assert saved(tmp_path) == ["replay-6"]


def test_the_end_is_saved_once(tmp_path, monkeypatch):
    saves = []
    save = ReplayBuffer.save
    monkeypatch.setattr(
        ReplayBuffer, "save", lambda buffer: saves.append(1) or save(buffer)
    )
    train(tmp_path, ReplaySaver(interval=3, keep=5))
    assert len(saves) == 2
    assert saved(tmp_path) == ["replay-3", "replay-6"]


def test_what_was_saved_are_the_steps_so_far(tmp_path):
    trainer = train(tmp_path, ReplaySaver(interval=4, keep=2))
    newest = load_replay_buffer(str(tmp_path / "replay" / "replay-6"), pendulums())
    older = load_replay_buffer(str(tmp_path / "replay" / "replay-4"), pendulums())
    assert newest.sizes.tolist() == [30, 30]
    assert older.sizes.tolist() == [20, 20]
    own, _ = trainer.algorithm.replay_buffer.gather_all()
    assert (own.time_step.step_type != 2).any()
    for buffer, length in ((newest, 30), (older, 20)):
        steps, _ = buffer.gather_all()
        expected = own.time_step.observation[:, :length]
        assert torch.equal(steps.time_step.observation, expected)


@pytest.mark.ci
def test_saving_changes_nothing_of_the_run(tmp_path):
    with_hook = train(tmp_path / "a", ReplaySaver(interval=1)).algorithm.state_dict()
    without = train(tmp_path / "b").algorithm.state_dict()
    assert all(torch.equal(with_hook[name], value) for name, value in without.items())


def test_a_run_that_dies_leaves_what_it_had(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Dies(4), ReplaySaver())
    assert saved(tmp_path) == ["replay-4"]


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, Dies(5), ReplaySaver(interval=4, keep=9))
    path = tmp_path / "replay" / "replay-4"
    assert saved(tmp_path) == ["replay-4", "replay-5"]
    path.write_text("old")  # of the run that died; the checkpoint is of iteration 3
    train(tmp_path, ReplaySaver(interval=4, keep=9))
    # Without checkpoint_replay_buffer the buffer begins anew.
    assert load_replay_buffer(str(path), pendulums()).sizes.tolist() == [5, 5]


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "replay").write_text("in the way")
    assert train(tmp_path, ReplaySaver()).run.iterations == 6
    assert "The replay buffer was not saved" in caplog.text


def test_on_policy_algorithms_have_nothing_to_save(make_trainer):
    with pytest.raises(ConfigError, match="ToyAlgorithm is on-policy"):
        make_trainer(hooks=[ReplaySaver()]).train()


@pytest.mark.parametrize("arguments", [{"interval": -1}, {"keep": 0}])
def test_impossible_settings_are_refused(arguments):
    with pytest.raises(ValueError, match="at least"):
        ReplaySaver(**arguments)


# Hooks of the configuration


def test_the_configuration_may_name_hooks(tmp_path):
    ctors = [functools.partial(ReplaySaver, interval=3, keep=9)]
    train(tmp_path, hook_ctors=ctors, num_iterations=7)
    assert saved(tmp_path) == ["replay-3", "replay-6", "replay-7"]


def test_hooks_of_the_configuration_are_hooks(tmp_path):
    with pytest.raises(ConfigError, match="must build Hooks, got a dict"):
        train(tmp_path, hook_ctors=[dict])


def test_hooks_of_both_are_in_order(tmp_path):
    called = []

    class Says(Hook):
        def __init__(self, name, priority):
            super().__init__(priority)
            self._name = name

        def before_train(self, training):
            called.append(self._name)

    ctors = [functools.partial(Says, "second", 20), functools.partial(Says, "last", 60)]
    train(tmp_path, Says("third", 50), Says("first", 10), hook_ctors=ctors)
    assert called == ["first", "second", "third", "last"]


class Scores(Hook):
    """Scores every evaluation alike."""

    def __init__(self, score) -> None:
        super().__init__()
        self._score = score

    def score(self, result):
        return self._score


@pytest.fixture
def best_score(make_trainer):
    """Of a run with such a score, from the beginning or resumed."""

    def train(score, num_iterations: int) -> float:
        config = {"num_iterations": num_iterations, "num_checkpoints": 1}
        evaluate = {"evaluate": True, "eval_interval": 2, "num_eval_episodes": 1}
        result = make_trainer(hooks=[Scores(score)], **config, **evaluate).train()
        assert result.iterations == num_iterations
        return result.best_score

    return train


@pytest.mark.parametrize(
    "score", [-3, True, np.float32(-1.5), np.int64(4), np.bool_(False), torch.ones(1)]
)
def test_a_run_is_resumed_whatever_kind_of_number_the_score_is(best_score, score):
    for num_iterations in (2, 4):
        best = best_score(score, num_iterations)
        assert (best, type(best)) == (float(score), float)


@pytest.mark.parametrize("score", [-3, True])
def test_a_run_is_resumed_that_kept_a_score_as_it_was(best_score, score, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Hooks, "score", lambda self, result: score)
        best_score(score, 2)
    assert best_score(score, 4) == score


def test_the_first_score_counts_and_a_line_tells_once_that_others_do_not(caplog):
    hooks = Hooks([Scores(None), Scores(2), Scores(3)])
    assert [hooks.score(None), hooks.score(None)] == [2.0, 2.0]
    (record,) = caplog.records
    assert record.message.startswith("Scores-2 comes first")
    assert "leave out Scores-3," in record.message
    caplog.clear()
    assert Hooks([Scores(None), Scores(4), Hook()]).score(None) == 4.0
    assert not caplog.records


def test_evaluations_are_recorded_by_one_hook():
    class Records(Hook):
        recording = VideoSettings(every=1, height=240, max_frames=9)

    with pytest.raises(ConfigError, match="by one hook, got Records, Records-2"):
        Hooks([Records(), Hook(), Records()])


@pytest.mark.parametrize("score", ["good", torch.ones(2), {}, 10**400])
def test_a_score_that_is_no_number_is_named(score):
    with pytest.raises(ConfigError, match=r"Scores\.score must return a number"):
        Hooks([Scores(score)]).score(None)
