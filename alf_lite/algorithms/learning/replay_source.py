"""Where replayed windows are drawn from: the run's own steps, or recorded ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import (
    with_executed_action,
    without_executed_action,
)
from alf_lite.checkpoints.files import Stream
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.data_transformers.data_transformer import DataTransformer, WindowOrigin
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import FILE_NAME, ReplayFile
from alf_lite.replay_buffers.replay_settings import (
    ReplayOptions,
    check_replay_settings,
    draws_per_iteration,
    windows_per_update,
)
from alf_lite.unrollers.unroll import Unroll

Nest = Any

_logger = logging.getLogger(__name__)


class ReplaySource:
    """Draws transformed windows from a buffer of untransformed steps.

    Args:
        config: of the run.
        num_history_steps: of the data transformer.
        buffer: of ``Experience``, from which recorded steps are drawn.
    """

    def __init__(
        self,
        config: TrainerConfig,
        num_history_steps: int,
        buffer: ReplayBuffer | None = None,
    ) -> None:
        assert config.mini_batch_length is not None, "checked for the own steps"
        self._config = config
        self.mini_batch_length = config.mini_batch_length
        self._num_history_steps = num_history_steps
        # Steps of an environment that one window takes.
        self.least_length = config.mini_batch_length + num_history_steps
        self.buffer = buffer

    @property
    def num_steps(self) -> int:
        """How many steps are stored, of all environments together."""
        return 0 if self.buffer is None else self.buffer.total_size

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
            num_windows: B.
            source_index: which of several sources this is; None if there is only one.
        """
        buffer = self._require_buffer()
        experience, info = buffer.get_batch(num_windows, self.mini_batch_length)
        if source_index is not None:
            info = info._replace(source=torch.full_like(info.env_ids, source_index))
        return self._transform(experience, info, data_transformer, device), info

    def read(
        self, data_transformer: DataTransformer, device: torch.device, info: BatchInfo
    ) -> Experience:
        """As :meth:`sample`, the windows [B, T, ...] that begin where ``info`` says."""
        experience = self._require_buffer().get_windows(
            info.env_ids, info.positions, self.mini_batch_length
        )
        return self._transform(experience, info, data_transformer, device)

    def _transform(
        self,
        experience: Experience,
        info: BatchInfo,
        data_transformer: DataTransformer,
        device: torch.device,
    ) -> Experience:
        buffer = self._require_buffer()
        source = WindowOrigin(buffer, info)
        if self._num_history_steps:
            experience, source = source.with_history(
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
        return experience._replace(rollout_info=info_with_action)

    def update_priority(
        self, env_ids: Tensor, positions: Tensor, priority: Tensor
    ) -> None:
        """Gives the windows that begin there, [b], their new priorities [b]."""
        self._require_buffer().update_priority(env_ids, positions, priority)

    def _require_buffer(self) -> ReplayBuffer:
        if self.buffer is None:
            raise ConfigError("the replay buffer is empty: unroll before training")
        return self.buffer


class OwnReplay(ReplaySource):
    """The run's own replay buffer: stores unrolls, and says when they are enough.

    The buffer is made when the first unroll shows what is to be stored.

    Args:
        config: of the run.
        num_history_steps: of the data transformer.
        num_environments: E.

    Raises:
        ConfigError: if the settings contradict each other.
    """

    def __init__(
        self, config: TrainerConfig, num_history_steps: int, num_environments: int
    ) -> None:
        check_replay_settings(config, num_environments, num_history_steps)
        super().__init__(config, num_history_steps)
        self._num_environments = num_environments
        self.options = ReplayOptions(config)
        self.options.check_batches(num_environments, num_history_steps)
        self._has_collected = False
        self._is_begun = False  # steps were trained on; never False again
        self._num_to_collect = config.initial_collect_steps
        self._num_lost = 0  # steps that a checkpoint did not hold
        self._is_left_out = False  # of checkpoints, which was said
        self._saved: ReplayFile | None = None  # what the buffer will begin with
        at_once, self._num_batches = draws_per_iteration(config)
        # Windows of own steps that are drawn at once.
        self._batch_size = max(
            1, at_once * windows_per_update(config, num_environments)[0]
        )
        self._iteration = 0

    @property
    def num_steps(self) -> int:
        if self._saved is not None:
            max_length = self._config.replay_buffer_length
            return int(self._saved.lengths.clip(max=max_length).sum())
        return super().num_steps

    @property
    def is_collecting(self) -> bool:
        """Whether there are fewer steps than training wants.

        These are ``initial_collect_steps``; or those of one batch, if a resumed run has
        lost its steps.
        """
        if not self._has_collected:  # asked at every step
            self._has_collected = self.num_steps >= self._num_to_collect
            self._is_begun |= self._has_collected
        return not self._has_collected

    @property
    def is_beginning(self) -> bool:
        """Whether the first steps of the run are collected."""
        return self.is_collecting and not self._is_begun

    @property
    def can_train(self) -> bool:
        """Whether there are the windows that an iteration draws."""
        if self.buffer is None or self.is_collecting:
            return False
        return self.buffer.can_draw(
            self._batch_size, self.mini_batch_length, self._num_batches
        )

    @property
    def mini_batch_size(self) -> int:
        """Windows per update."""
        return self._config.mini_batch_size or self._num_environments

    def store(self, unroll: Unroll) -> None:
        """Appends the T steps of an unroll to the buffer."""
        experience = Experience(
            # The last row is the first one of the next unroll.
            time_step=nest.narrow(unroll.time_steps, 0, -1),
            action=unroll.experience.action,
            rollout_info=without_executed_action(unroll.experience.rollout_info),
            state=unroll.experience.state if self._config.use_rollout_state else (),
        )
        if self.buffer is None:
            self.buffer = self._make_buffer(experience)
            self.buffer.set_iteration(self._iteration)
        if unroll.is_first_unroll:
            # What was stored does not go on, as when a worker was replaced.
            self.buffer.mark_truncated_end(unroll.env_ids)
        elif unroll.new_columns:
            self.buffer.mark_truncated_end(np.array(unroll.new_columns))
        self.buffer.add_batch(experience, unroll.env_ids, time_major=True)

    def _make_buffer(self, experience: Experience) -> ReplayBuffer:
        options = self.options
        try:
            buffer = ReplayBuffer(
                nest.extract_spec(experience, from_dim=2),
                self._num_environments,
                self._config.replay_buffer_length,
                self._config.priority_replay,
                self._num_history_steps,
                priority=options.priority,
                sampling=options.sampling,
                device=options.storage.device,
                storage=options.storage.storage,
                directory=options.directory,
            )
        except ValueError as error:
            raise ConfigError(
                f"{error} (TrainerConfig.replay_buffer_length, StorageOptions)"
            ) from error
        buffer.set_iteration(self._iteration)
        if self._saved is not None:
            buffer.load(self._saved)
            self._saved = None
        return buffer

    def set_iteration(self, iteration: int) -> None:
        """Says which iteration begins, for ``SamplingOptions.max_staleness``."""
        self._iteration = iteration
        if self.buffer is not None:
            self.buffer.set_iteration(iteration)

    def covering_windows(self, num_bootstrap_steps: int) -> tuple[BatchInfo, Tensor]:
        """Where windows begin that train every transition that is stored once.

        They overlap by the steps that are not trained: those at the beginning that
        build up a state, and those at the end that are bootstrapped from.

        Args:
            num_bootstrap_steps: so many at the end of each window.

        Returns:
            B windows, and how many of the first steps of each [B] are not to be trained
            because the window before has trained them, or because they build up the
            state: where the length does not divide, the last window overlaps by more.
        """
        buffer, length = self._require_buffer(), self.mini_batch_length
        burn_in = self._config.burn_in_length
        stride = max(1, length - num_bootstrap_steps - burn_in)
        first = buffer.begin_positions + self._num_history_steps
        last = buffer.end_positions - length
        env_ids, positions, skipped = [], [], []
        for env_id in range(buffer.num_environments):
            begin, end = int(first[env_id]), int(last[env_id])
            if end < begin:
                continue
            starts = torch.arange(begin, end + stride, stride)
            num_repeated = torch.zeros_like(starts)
            num_repeated[-1] = starts[-1] - end
            starts[-1] = end
            env_ids.append(torch.full_like(starts, env_id))
            positions.append(starts)
            skipped.append(num_repeated + burn_in)
        info = BatchInfo(torch.cat(env_ids), torch.cat(positions))
        return info, torch.cat(skipped)

    def clear(self) -> None:
        """Forgets everything that is stored."""
        self._has_collected = False
        self._num_to_collect = self._config.initial_collect_steps
        self._require_buffer().clear()

    def mark_truncated_end(self) -> None:
        """Says that what comes next does not continue what is stored."""
        # What is still to be loaded will be marked then.
        if self.buffer is not None:
            self.buffer.mark_truncated_end()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know, even without what is stored."""
        return {
            "is_begun": self._is_begun or not self.is_collecting,
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned; to be followed by ``load_files``."""
        self._is_begun = state["is_begun"]
        self._num_lost = state["num_steps"]

    def files(self) -> dict[str, Stream]:
        """What is stored, as a file of a checkpoint, if it is to hold that.

        None before the first unroll.
        """
        is_wanted = self._config.checkpoint_replay_buffer
        if is_wanted is False or (self.buffer is None and self._saved is None):
            return {}
        if self.buffer is not None:
            stream = self.buffer.save()
        else:
            assert self._saved is not None
            stream = self._saved.as_stream()
        limit_gb = self._config.checkpoint_replay_buffer_gb
        if is_wanted is None and stream.num_bytes > limit_gb * 1e9:
            if not self._is_left_out:
                _logger.warning(
                    "Checkpoints are without the replay buffer from now on: it takes "
                    "%.2f GB, more than TrainerConfig.checkpoint_replay_buffer_gb=%g. "
                    "A resumed run would fill it anew with the trained policy. "
                    "TrainerConfig.checkpoint_replay_buffer=True saves it all the "
                    "same.",
                    stream.num_bytes / 1e9,
                    limit_gb,
                )
            self._is_left_out = True
            return {}
        return {FILE_NAME: stream}

    def load_files(self, files: Mapping[str, Path]) -> None:
        """Continues with what was stored, if there is a file of it.

        What an algorithm stores is known only after its first unroll; a file that does
        not fit is a CheckpointError then.
        """
        if FILE_NAME not in files:
            self._begin_without_steps()
            return
        # The checkpoint has been verified. The file stays mapped when it is deleted.
        file = ReplayFile(files[FILE_NAME], verify=False)
        if self.buffer is not None:
            self.buffer.load(file)
        else:
            self._saved = file

    def _begin_without_steps(self) -> None:
        """Has a run that was under way go on with what it will collect.

        The policy is trained already: it acts instead of the random one, and a batch of
        steps is enough to go on, as the run may not be long any more.
        """
        if not self._is_begun:
            return
        initial = self._config.initial_collect_steps
        self._num_to_collect = min(initial, self.mini_batch_size)
        if self._num_lost:
            _logger.warning(
                "The checkpoint is without the replay buffer: %d stored steps are "
                "lost. The trained policy collects new ones; training goes on after "
                "%d.",
                self._num_lost,
                max(self._num_to_collect, 1),
            )
