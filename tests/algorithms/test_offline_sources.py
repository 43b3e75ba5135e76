"""What TrainerConfig.offline_buffer_dir names is loaded before anything is trained."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.errors import CheckpointError, ConfigError, DataError
from alf_lite.optimizers.optimizers import Adam
from tests.datasets.recorded_episodes import flat_episode, make_env


@pytest.fixture
def sources(tmp_path):
    for name, num_actions in (("a", 6), ("b", 9)):
        np.savez(tmp_path / f"{name}.npz", **flat_episode(num_actions))
    return [str(tmp_path / f"{name}.npz") for name in "ab"]


def make(sources, cls=BcAlgorithm, **settings):
    return cls(
        env=make_env(),
        config=TrainerConfig(
            **{
                "num_iterations": 1,
                "mini_batch_size": 4,
                "mini_batch_length": 2,
                "offline_buffer_dir": sources,
                "rl_train_after_update_steps": 100,
                **settings,
            }
        ),
        optimizer=Adam(lr=0.01),
    )


def test_all_sources_are_loaded_and_trained_on(sources):
    algorithm = make(sources)
    algorithm.setup_training()
    assert [b.total_size for b in algorithm.training_run.replay.offline] == [7, 10]
    assert algorithm.train_iter() > 0
    assert algorithm.num_env_steps == 0


def test_one_source_and_its_newest_steps(sources):
    algorithm = make(sources[1], offline_buffer_length=4)
    algorithm.setup_training()
    [source] = algorithm.training_run.replay.offline
    steps, _ = source.gather_all()
    assert steps.time_step.observation[0, :, 0].tolist() == [6, 7, 8, 9]


def test_loading_again_does_nothing(sources):
    algorithm = make(sources)
    algorithm.load_offline_replay_buffer()
    algorithm.load_offline_replay_buffer()
    algorithm.setup_training()
    assert len(algorithm.training_run.replay.offline) == 2


def test_a_buffer_that_is_added_comes_after_what_is_named(sources):
    added = load_replay_buffer(sources[1], make_env(), 3)
    algorithm = make(sources)
    algorithm.add_offline_replay_buffer(added)
    algorithm.setup_training()
    assert [b.total_size for b in algorithm.training_run.replay.offline] == [7, 10, 3]
    algorithm = make("nowhere")
    algorithm.add_offline_replay_buffer(added)
    with pytest.raises(DataError, match="nowhere"):
        algorithm.train_iter()


@pytest.mark.parametrize("name", ["mixing_ratios", "source_loss_weights"])
def test_a_buffer_that_no_number_is_for_is_refused(sources, name):
    algorithm = make(sources[0], **{name: (0.5, 0.5)})
    algorithm.setup_training()
    added = load_replay_buffer(sources[1], make_env())
    with pytest.raises(ConfigError, match=f"{name} has no number .* added"):
        algorithm.add_offline_replay_buffer(added)
    assert algorithm.train_iter() > 0


def test_what_is_read_before_a_window_is_there(sources):
    stacker = functools.partial(FrameStacker, stack_size=3)
    algorithm = make(sources, data_transformer_ctor=[stacker])
    assert all(algorithm.train_iter() > 0 for _ in range(20))


def test_a_source_without_a_whole_window_is_refused(sources):
    algorithm = make(sources, mini_batch_length=8)
    with pytest.raises(DataError, match=r"has \[7\] steps .* window takes 8"):
        algorithm.setup_training()


def test_nothing_is_trained_if_a_source_is_refused(sources):
    algorithm = make([*sources, "nowhere"], mixing_ratios=(0.4, 0.2, 0.2, 0.2))
    before = [p.clone() for p in algorithm.parameters()]
    with pytest.raises(DataError, match="nowhere"):
        algorithm.train_iter()
    assert all(map(torch.equal, before, algorithm.parameters()))


def test_on_policy_algorithms_cannot_load(sources):
    algorithm = make(sources, PPOAlgorithm, rl_train_after_update_steps=0)
    with pytest.raises(ConfigError, match="PPOAlgorithm is on-policy"):
        algorithm.setup_training()


def test_a_run_is_not_continued_with_other_data(sources):
    algorithm = make(sources)
    algorithm.train_iter()
    state = algorithm.training_run.state_dict()
    same = make(sources)
    same.setup_training()
    same.training_run.load_state_dict(state)
    other = make(sources[::-1])
    other.setup_training()
    with pytest.raises(CheckpointError, match=r"\[7, 10\] steps, now \[10, 7\]"):
        other.training_run.load_state_dict(state)
