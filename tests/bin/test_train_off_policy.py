"""Mistakes in the settings of off-policy training, as a user makes them."""

from __future__ import annotations

import pytest

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.bin import train

FOUR = "create_environment.num_parallel_environments = 4"


@pytest.mark.parametrize(
    ("conf", "params", "message"),
    [
        (
            "sac_pendulum",
            ["TrainerConfig.mini_batch_length = None"],
            "mini_batch_length is not set. Off-policy training draws windows of that "
            "many steps: 2 for one-step targets",
        ),
        (
            "sac_pendulum",
            ["SacAlgorithm.n_step = 3"],
            "mini_batch_length=2 is too short",
        ),
        (
            "sac_pendulum",
            ["TrainerConfig.initial_collect_steps = 30_000"],
            "num_env_steps=20000: nothing would be trained",
        ),
        (
            "sac_pendulum",
            ["TrainerConfig.replay_buffer_length = 1"],
            "replay_buffer_length=1 is too short: a window is mini_batch_length=2",
        ),
        (
            "sac_pendulum",
            ["TrainerConfig.replay_buffer_length = 100", FOUR],
            "initial_collect_steps=1000 must be stored before training begins, and 4 "
            "environments hold 400",
        ),
        (
            "sac_pendulum",
            ["TrainerConfig.num_updates_per_train_iter = 0"],
            "num_updates_per_train_iter: got 0, expected a value >= 1",
        ),
        (
            "sac_pendulum",
            ["SacAlgorithm.target_update_tau = 0.0"],
            "target_update_tau must lie in (0, 1], got 0.0",
        ),
        (
            "sac_pendulum",
            ["SacAlgorithm.target_update_period = 0"],
            "target_update_period must be a positive integer, got 0",
        ),
        (
            "sac_pendulum",
            ["SacAlgorithm.num_critics = 0"],
            "num_critics must be a positive integer, got 0",
        ),
        (
            "her_point_goal",
            ["HindsightExperienceTransformer.achieved_goal_field = 'position'"],
            "the observation has no field 'position'",
        ),
        (
            "ppo_cart_pole",
            ["TrainerConfig.priority_replay = True"],
            "priority_replay is True, but PPOAlgorithm is on-policy",
        ),
        (
            "ppo_cart_pole",
            ["TrainerConfig.unroll_length = 0.5"],
            "unroll_length=0.5, but PPOAlgorithm is on-policy",
        ),
    ],
)
def test_a_mistake_is_one_message_before_training(
    conf, params, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(RLAlgorithm, "train_iter", _must_not_be_called)
    arguments = [f"--conf={conf}", f"--root_dir={tmp_path / 'run'}", "--seed=0"]
    assert train.main([*arguments, *(f"--gin_param={param}" for param in params)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    assert message in output.err
    assert not (tmp_path / "run" / "checkpoints").exists()


def _must_not_be_called(algorithm: RLAlgorithm) -> int:
    raise AssertionError("training began")
