"""The replay buffer of a run: what goes in, and the batches that come out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.training_batches import (
    with_executed_action,
    without_executed_action,
)
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.data_transformers.data_transformer import DataTransformer
from alf_lite.data_transformers.replay_source import ReplaySource
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.priorities import PriorityOptions
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.unrollers.sync_unroller import Unroll

Nest = Any


class ReplayTraining:
    """Stores untransformed unrolls and draws transformed batches.

    The buffer is made when the first unroll shows what is to be stored.

    Args:
        config: of the run.
        num_environments: E.
        num_history_steps: of the data transformer.
        buffer: what is stored already, of a source that gets no more.
    """

    def __init__(
        self,
        config: TrainerConfig,
        num_environments: int,
        num_history_steps: int = 0,
        buffer: ReplayBuffer | None = None,
    ) -> None:
        if config.mini_batch_length is None:
            raise ConfigError(
                "TrainerConfig.mini_batch_length is not set. Off-policy training draws "
                "windows of that many steps: 2 for one-step targets, n + 1 for n steps."
            )
        self._config = config
        self._mini_batch_length = config.mini_batch_length
        self._num_environments = num_environments
        self._num_history_steps = num_history_steps
        # Steps of an environment that one window takes.
        self.least_length = config.mini_batch_length + num_history_steps
        if config.replay_buffer_length < self.least_length:
            raise ConfigError(
                f"TrainerConfig.replay_buffer_length={config.replay_buffer_length} is "
                f"too short: a window is mini_batch_length={config.mini_batch_length} "
                f"steps, and the data transformers read {num_history_steps} steps "
                "before it"
            )
        self._has_collected = False
        self._saved_state: dict[str, Any] | None = None
        self.buffer = buffer

    @property
    def num_steps(self) -> int:
        """How many steps are stored, of all environments together."""
        return 0 if self.buffer is None else self.buffer.total_size

    @property
    def is_collecting(self) -> bool:
        """Whether there are fewer steps than ``initial_collect_steps``."""
        if not self._has_collected:  # asked at every step
            self._has_collected = self.num_steps >= self._config.initial_collect_steps
        return not self._has_collected

    @property
    def can_train(self) -> bool:
        """Whether there is something to train on."""
        least = self._num_environments * self.least_length
        return not self.is_collecting and self.num_steps >= least

    @property
    def mini_batch_size(self) -> int:
        """Windows per update."""
        return self._config.mini_batch_size or self._num_environments

    def store(self, unroll: Unroll) -> None:
        """Appends the T steps of an unroll to the buffer."""
        experience = Experience(
            # The last row is the first one of the next unroll.
            time_step=nest.map_structure(lambda t: t[:-1], unroll.time_steps),
            action=unroll.experience.action,
            rollout_info=without_executed_action(unroll.experience.rollout_info),
            state=unroll.experience.state if self._config.use_rollout_state else (),
        )
        if self.buffer is None:
            self.buffer = self._make_buffer(experience)
        self.buffer.add_batch(experience, time_major=True)

    def _make_buffer(self, experience: Experience) -> ReplayBuffer:
        config = self._config
        buffer = ReplayBuffer(
            nest.extract_spec(experience, from_dim=2),
            self._num_environments,
            config.replay_buffer_length,
            prioritized_sampling=config.priority_replay,
            priority=PriorityOptions() if config.priority_replay else None,
            num_earliest_frames_ignored=self._num_history_steps,
        )
        if self._saved_state is not None:
            buffer.load_state_dict(self._saved_state)
            # A resumed run starts new episodes.
            buffer.mark_truncated_end()
            self._saved_state = None
        return buffer

    def sample(
        self,
        data_transformer: DataTransformer,
        device: torch.device,
        num_windows: int,
        source_index: int | None = None,
    ) -> tuple[Experience, BatchInfo]:
        """Draws windows [B, T, ...] and transforms them.

        Args:
            data_transformer: of the run.
            device: of the result.
            num_windows: B. With ``whole_replay_buffer_training``, everything that is
                stored is taken instead, as one long sequence per environment.
            source_index: which of several sources this is; None if there is only one.
        """
        buffer = self._require_buffer()
        if self._config.whole_replay_buffer_training:
            experience, info = buffer.gather_all()
        else:
            experience, info = buffer.get_batch(num_windows, self._mini_batch_length)
        if source_index is not None:
            info = info._replace(source=torch.full_like(info.env_ids, source_index))
        experience, source = ReplaySource(buffer, info).with_history(
            experience, self._num_history_steps
        )
        if buffer.device != device:
            experience = nest.map_structure(
                lambda t: t.to(device, non_blocking=True), experience
            )
        experience = data_transformer.transform_experience(experience, source)
        info_with_action = with_executed_action(
            experience.rollout_info, experience.action
        )
        return experience._replace(rollout_info=info_with_action), info

    def update_priority(self, batch_info: BatchInfo, priority: Tensor) -> None:
        """Gives the windows of a mini-batch their new priorities [b]."""
        if isinstance(priority, tuple):
            raise ConfigError(
                "TrainerConfig.priority_replay is set, but the LossInfo of calc_loss "
                "has no priority"
            )
        self._require_buffer().update_priority(
            batch_info.env_ids, batch_info.positions, priority
        )

    def clear(self) -> None:
        """Forgets everything that is stored."""
        self._has_collected = False
        self._require_buffer().clear()

    def mark_truncated_end(self) -> None:
        """Says that what comes next does not continue what is stored."""
        if self.num_steps:
            self._require_buffer().mark_truncated_end()

    def state_dict(self) -> dict[str, Any]:
        """What is stored; empty before the first unroll."""
        return {} if self.buffer is None else self.buffer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with what was stored.

        What an algorithm stores is known only after its first unroll; a state that does
        not fit is a CheckpointError then.
        """
        if self.buffer is not None:
            self.buffer.load_state_dict(state)
        elif state:
            self._saved_state = state

    def _require_buffer(self) -> ReplayBuffer:
        if self.buffer is None:
            raise ConfigError("the replay buffer is empty: unroll before training")
        return self.buffer
