"""What a conf says about training from a replay buffer, and what that needs of it."""

from __future__ import annotations

import dataclasses

from alf_lite.config import TrainerConfig
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.priorities import PriorityOptions
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.storage_options import StorageOptions
from alf_lite.replay_buffers.weighted_sampler import check_options
from alf_lite.replay_buffers.window_sampler import SamplingOptions, all_windows


class ReplayOptions:
    """The options of the buffer, read before it is known what is stored.

    Args:
        config: of the run.

    Raises:
        ConfigError: if they contradict each other or the config.
    """

    def __init__(self, config: TrainerConfig) -> None:
        self._config = config
        self.storage = StorageOptions()
        self.sampling = SamplingOptions()
        self.priority = PriorityOptions() if config.priority_replay else None
        try:
            check_options(self.sampling, self.priority)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if config.whole_replay_buffer_training and self.sampling != all_windows():
            raise ConfigError(
                "SamplingOptions have no effect with "
                "TrainerConfig.whole_replay_buffer_training, which takes everything: "
                "set one of them"
            )
        self.directory: str | None = None
        if self.storage.storage == "memmap":
            self.directory = self.storage.directory or config.root_dir
            if not self.directory:
                raise ConfigError(
                    "StorageOptions.storage is 'memmap', but nothing says where the "
                    "file shall be: set StorageOptions.directory, or "
                    "TrainerConfig.root_dir"
                )

    def apply_to_recorded_steps(self, buffer: ReplayBuffer) -> None:
        """Has windows of an offline source drawn as the run's own ones.

        Recorded steps have no age and are not replaced: what makes room for newer
        steps is for a run's own ones, and refused if these are not trained.

        Raises:
            ConfigError: naming the options that cannot be for recorded steps.
        """
        plain, sampling = all_windows(), self.sampling
        if sampling.max_use is not None:
            raise ConfigError(
                f"SamplingOptions.max_use={sampling.max_use} cannot be with offline "
                "data, which would be used up: leave it out, or limit how long the "
                "run trains (TrainerConfig.num_iterations)"
            )
        ages = ("recent_data_ratio", "recent_data_steps", "max_staleness")
        of_own_steps = [
            f"SamplingOptions.{name}={getattr(sampling, name)}"
            for name in ages
            if getattr(sampling, name) != getattr(plain, name)
        ]
        if of_own_steps and not _trains_own_steps(self._config):
            raise ConfigError(
                f"{', '.join(of_own_steps)}: recorded steps have no age, and this run "
                "trains on no steps of its own. Leave it out."
            )
        if self.priority is not None and self.priority.normalization == "buffer":
            raise ConfigError(
                "PriorityOptions.normalization='buffer' scales every source on its "
                "own, so that batches of own steps and offline data would not have "
                "their TrainerConfig.mixing_ratios: take 'batch' or 'none'"
            )
        timeless = dataclasses.replace(
            sampling, **{name: getattr(plain, name) for name in ages}
        )
        if self.priority is not None or timeless != plain:
            buffer.sample_by(timeless, self.priority)


def _trains_own_steps(config: TrainerConfig) -> bool:
    if config.mixing_ratios is not None and config.mixing_ratios[0] == 0:
        return False
    num_iterations = config.num_iterations
    return not 0 < num_iterations <= config.rl_train_after_update_steps


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
