"""Training on recorded steps alone, through the train program."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.bin import train
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import files as config_files
from tests.datasets.recorded_episodes import flat_episode

CONF = """
create_environment.env_ctor = @SpecsOnlyEnvironment
SpecsOnlyEnvironment.observation_space = @observation/box_space()
SpecsOnlyEnvironment.action_space = @action/box_space()
observation/box_space.shape = (1,)
action/box_space.shape = (1,)
action/box_space.low = -2.0
action/box_space.high = 2.0

TrainerConfig:
  algorithm_ctor = @BcAlgorithm
  num_iterations = 5
  rl_train_after_update_steps = 5
  mini_batch_size = 8
  mini_batch_length = 2
  offline_buffer_dir = "{data}"

BcAlgorithm.optimizer = @Adam()
Adam.lr = 0.001
"""


@pytest.fixture
def conf(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "a.npz", **flat_episode(10))
    path = tmp_path / "offline.gin"
    path.write_text(CONF.format(data=data))
    return path


def run(conf, root_dir, *parameters: str) -> int:
    """One call of the program, as in a process of its own."""
    config_files.reset()
    parameters = tuple(f"--gin_param={p}" for p in parameters)
    return train.main([f"--conf={conf}", f"--root_dir={root_dir}", *parameters])


def test_no_environment_is_needed(conf, tmp_path, capsys):
    assert run(conf, tmp_path / "run") == 0
    assert "Trained 5 iterations, 5 updates" in capsys.readouterr().out


def test_a_step_after_the_offline_phase_is_refused(conf, tmp_path, capsys):
    assert run(conf, tmp_path / "run", "TrainerConfig.num_iterations = 6") == 4
    assert "has specs only and cannot step" in capsys.readouterr().err


def test_data_that_does_not_fit_ends_with_code_3(conf, tmp_path, capsys):
    root_dir = tmp_path / "run"
    assert run(conf, root_dir, "observation/box_space.shape = (2,)") == 3
    message = capsys.readouterr().err
    assert "observation: expected (2,) float32, found (1,) float32" in message
    assert not Checkpointer(root_dir / "checkpoints").has_checkpoint()


def test_other_data_is_refused_when_a_run_is_continued(conf, tmp_path, capsys):
    root_dir = tmp_path / "run"
    assert run(conf, root_dir) == 0
    longer = [
        "TrainerConfig.num_iterations = 7",
        "TrainerConfig.rl_train_after_update_steps = 7",
    ]
    np.savez(tmp_path / "data/b.npz", **flat_episode(3))
    assert run(conf, root_dir, *longer) == 3
    assert "they had [11] steps, now [15]" in capsys.readouterr().err
    (tmp_path / "data/b.npz").unlink()
    assert run(conf, root_dir, *longer) == 0


def test_bad_episodes_are_left_out_by_a_setting(conf, tmp_path, capsys):
    episode = flat_episode(4)
    episode["reward"][2] = np.nan
    np.savez(tmp_path / "data/b.npz", **episode)
    assert run(conf, tmp_path / "run") == 3
    assert "reward is nan at step 14 of environment 0" in capsys.readouterr().err
    drop = "load_replay_buffer.drop_bad_episodes = True"
    assert run(conf, tmp_path / "run", drop) == 0
