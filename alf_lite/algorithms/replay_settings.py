"""What training from a replay buffer needs of the settings of a run."""

from __future__ import annotations

from alf_lite.config import TrainerConfig
from alf_lite.errors import ConfigError


def check_replay_settings(
    config: TrainerConfig, num_environments: int, num_history_steps: int
) -> None:
    """Checks what training from a replay buffer needs of the settings.

    Args:
        config: of the run.
        num_environments: E.
        num_history_steps: of the data transformer.

    Raises:
        ConfigError: if the length of a window is not set, or the buffer is too short
            for a window or for the steps to collect.
    """
    if config.mini_batch_length is None:
        raise ConfigError(
            "TrainerConfig.mini_batch_length is not set. Off-policy training draws "
            "windows of that many steps: 2 for one-step targets, n + 1 for n steps."
        )
    length = config.replay_buffer_length
    if length < config.mini_batch_length + num_history_steps:
        raise ConfigError(
            f"TrainerConfig.replay_buffer_length={length} is too short: a window is "
            f"mini_batch_length={config.mini_batch_length} steps, and the data "
            f"transformers read {num_history_steps} steps before it"
        )
    if num_environments * length < config.initial_collect_steps:
        raise ConfigError(
            f"TrainerConfig.replay_buffer_length={length} is too short: "
            f"initial_collect_steps={config.initial_collect_steps} must be stored "
            f"before training begins, but {num_environments} environments with "
            f"{length} steps each hold {num_environments * length}. Make the buffer "
            "longer or collect less."
        )
