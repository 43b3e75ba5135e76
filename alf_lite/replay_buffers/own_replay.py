"""The run's own replay buffer: when there is enough in it, and how it is saved."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.checkpoints.files import Stream
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import FILE_NAME, ReplayFile
from alf_lite.replay_buffers.replay_settings import (
    ReplayOptions,
    check_replay_settings,
    draws_per_iteration,
    windows_per_update,
)

_logger = logging.getLogger(__name__)


class OwnReplay:
    """The replay buffer of a run, which is made when it is known what to store.

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
        assert config.mini_batch_length is not None, "just checked"
        self._config = config
        self._num_history_steps = num_history_steps
        self._num_environments = num_environments
        self.buffer: ReplayBuffer | None = None  # until the first unroll
        self.mini_batch_length = config.mini_batch_length
        # Steps of an environment that one window takes.
        self.least_length = config.mini_batch_length + num_history_steps
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
        """How many steps are stored, of all environments together."""
        if self.buffer is not None:
            return self.buffer.total_size
        if self._saved is not None:
            max_length = self._config.replay_buffer_length
            return int(self._saved.lengths.clip(max=max_length).sum())
        return 0

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

    def buffer_for(self, experience: Experience) -> ReplayBuffer:
        """The buffer; the first time, one for experience like this [T, B, ...]."""
        if self.buffer is None:
            self.buffer = self._make_buffer(experience)
        return self.buffer

    def require_buffer(self) -> ReplayBuffer:
        """The buffer; ConfigError before the first unroll."""
        if self.buffer is None:
            raise ConfigError("the replay buffer is empty: unroll before training")
        return self.buffer

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
            # The file has its clock, too: that of the checkpoint.
            buffer.set_iteration(self._iteration)
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
        buffer, length = self.require_buffer(), self.mini_batch_length
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
        self.require_buffer().clear()

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
