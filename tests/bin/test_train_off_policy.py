"""Mistakes in the settings of off-policy training, as a user makes them."""

from __future__ import annotations

import pytest

from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.bin import train


@pytest.mark.parametrize(
    ("conf", "params", "messages"),
    [
        pytest.param(
            "sac_pendulum",
            ["TrainerConfig.mini_batch_length = None"],
            ["mini_batch_length is not set", "2 for one-step targets"],
            id="no-windows",
        ),
        pytest.param(
            "sac_pendulum",
            ["TrainerConfig.mini_batch_length = 1"],
            ["mini_batch_length=1 is too short", "take 2 or more"],
            id="one-step-windows",
        ),
        pytest.param(
            "sac_pendulum",
            ["SacAlgorithm.n_step = 3"],
            ["mini_batch_length=2 is too short", "3 ahead (n_step) take 4 or more"],
            id="n-step",
        ),
        pytest.param(
            "sac_pendulum",
            [
                "TrainerConfig.burn_in_length = 3",
                "TrainerConfig.mini_batch_length = 4",
            ],
            ["mini_batch_length=4 is too short", "burn_in_length=3 take 5 or more"],
            id="burn-in",
        ),
        pytest.param(
            "sac_pendulum",
            ["TrainerConfig.initial_collect_steps = 30_000"],
            ["initial_collect_steps=30000", "num_env_steps=20000: nothing would be"],
            id="collects-too-long",
        ),
        pytest.param(
            "sac_pendulum",
            ["TrainerConfig.replay_buffer_length = 1"],
            ["replay_buffer_length=1 is too short", "mini_batch_length=2 steps"],
            id="buffer-below-a-window",
        ),
        pytest.param(
            "sac_pendulum",
            [
                "TrainerConfig.replay_buffer_length = 100",
                "create_environment.num_parallel_environments = 4",
            ],
            ["initial_collect_steps=1000 must be stored", "4 environments hold 400"],
            id="buffer-below-what-is-collected",
        ),
        pytest.param(
            "sac_pendulum",
            ["TrainerConfig.unroll_length = 0"],
            ["unroll_length: got 0, expected a value > 0"],
            id="no-unroll",
        ),
        pytest.param(
            "sac_pendulum",
            ["TrainerConfig.num_updates_per_train_iter = 0"],
            ["num_updates_per_train_iter: got 0, expected a value >= 1"],
            id="no-update",
        ),
        pytest.param(
            "sac_pendulum",
            ["TrainerConfig.clear_replay_buffer = True"],
            ["whole_replay_buffer_training, which is False"],
            id="clears-too-early",
        ),
        pytest.param(
            "sac_pendulum",
            ["SacAlgorithm.target_update_tau = 0.0"],
            ["target_update_tau must lie in (0, 1], got 0.0"],
            id="tau",
        ),
        pytest.param(
            "sac_pendulum",
            ["SacAlgorithm.target_update_period = 0"],
            ["target_update_period must be a positive integer, got 0"],
            id="period",
        ),
        pytest.param(
            "sac_pendulum",
            ["SacAlgorithm.num_critics = 0"],
            ["num_critics must be at least 1, got 0"],
            id="critics",
        ),
        pytest.param(
            "her_point_goal",
            ["HindsightExperienceTransformer.achieved_goal_field = 'position'"],
            ["the observation has no field 'position'", "achieved_goal"],
            id="goal",
        ),
        pytest.param(
            "her_point_goal",
            [
                "import alf_lite.data_transformers.normalizing_transformers",
                "TrainerConfig.data_transformer_ctor = "
                "[@ObservationNormalizer, @HindsightExperienceTransformer]",
            ],
            [
                "HindsightExperienceTransformer (HINDSIGHT) must come before "
                "ObservationNormalizer"
            ],
            id="order-of-transformers",
        ),
        pytest.param(
            "ppo_cart_pole",
            ["TrainerConfig.priority_replay = True"],
            ["priority_replay is True, but PPOAlgorithm is on-policy"],
            id="on-policy-priorities",
        ),
        pytest.param(
            "ppo_cart_pole",
            ["TrainerConfig.unroll_length = 0.5"],
            ["unroll_length=0.5, but PPOAlgorithm is on-policy"],
            id="on-policy-fraction",
        ),
    ],
)
def test_a_mistake_is_one_message_before_training(
    conf, params, messages, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(RLAlgorithm, "train_iter", _must_not_be_called)
    arguments = [f"--conf={conf}", f"--root_dir={tmp_path / 'run'}", "--seed=0"]
    assert train.main([*arguments, *(f"--gin_param={param}" for param in params)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    for message in messages:
        assert message in output.err
    assert not (tmp_path / "run" / "checkpoints").exists()


def _must_not_be_called(algorithm: RLAlgorithm) -> int:
    raise AssertionError("training began")
