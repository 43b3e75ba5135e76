"""The run's own replay buffer: when there is enough in it, and how it is saved."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.checkpoints.files import Stream
from alf_lite.config import DefaultSettings, TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import FILE_NAME, ReplayFile
from alf_lite.replay_buffers.replay_settings import ReplayOptions, windows_per_update
from alf_lite.utils import summary
from alf_lite.utils.ranks import ranks

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
        self,
        config: TrainerConfig,
        num_history_steps: int,
        num_environments: int,
        declared: DefaultSettings,
    ) -> None:
        assert config.mini_batch_length is not None, "as was checked"
        self._config = config
        self.num_history_steps = num_history_steps
        self._num_environments = num_environments
        self.buffer: ReplayBuffer | None = None  # until the first unroll
        self.mini_batch_size = config.mini_batch_size or num_environments  # per update
        self.mini_batch_length = config.mini_batch_length
        # Steps of an environment that one window takes.
        self.least_length = config.mini_batch_length + num_history_steps
        self.options = ReplayOptions(config, declared)
        self.options.check_batches(num_environments, num_history_steps)
        # Where the steps are kept, with its index.
        self.device = torch.empty(0, device=self.options.storage.device).device
        self._has_collected = False
        self._is_begun = False  # steps were trained on; never False again
        self._num_to_collect = config.initial_collect_steps
        self._num_lost = 0  # steps that a checkpoint did not hold
        self._is_left_out = False  # of checkpoints, which was said
        # What a checkpoint held, until an experience tells how it is nested
        self.waiting_steps: ReplayFile | None = None
        at_once, self._num_batches = self.options.draws_per_iteration()
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
        if self.waiting_steps is not None:
            max_length = self._config.replay_buffer_length
            return int(self.waiting_steps.lengths.clip(max=max_length).sum())
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
    def stays_trainable(self) -> bool:
        """Whether there are always enough windows, once there are."""
        options = self.options.sampling
        is_kept = not self._config.clear_replay_buffer
        return is_kept and options.with_replacement and not options.has_limits

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
                self.num_history_steps,
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
        if self.waiting_steps is not None:
            buffer.load(self.waiting_steps)
            self.waiting_steps = None
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
        first = buffer.begin_positions + self.num_history_steps
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

    def forget_trained(self, num_bootstrap_steps: int) -> None:
        """Forgets what :meth:`covering_windows` train, but not what is yet to be.

        These are the last steps and those before them that later windows begin with;
        all, where an environment has no window yet.
        """
        self._has_collected = False
        self._num_to_collect = self._config.initial_collect_steps
        buffer = self.require_buffer()
        lengths = (buffer.end_positions - buffer.begin_positions).numpy()
        num_repeated = self._config.burn_in_length + num_bootstrap_steps
        num_kept = min(num_repeated, self.mini_batch_length - 1)
        num_kept += self.num_history_steps
        buffer.forget_oldest(np.where(lengths < self.least_length, lengths, num_kept))

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
        if is_wanted is False or (self.buffer is None and self.waiting_steps is None):
            return {}
        if self.buffer is not None:
            stream = self.buffer.save()
        else:
            assert self.waiting_steps is not None
            stream = self.waiting_steps.as_stream()
        limit_gb = self._config.checkpoint_replay_buffer_gb
        size_gb = stream.num_bytes * ranks.size / 1e9  # of all of the run, about
        if is_wanted is None and size_gb > limit_gb:
            if not self._is_left_out:
                _logger.warning(
                    "Checkpoints are without the replay buffer from now on: it takes "
                    "%.2f GB, more than TrainerConfig.checkpoint_replay_buffer_gb=%g. "
                    "A resumed run would fill it anew with the trained policy. "
                    "TrainerConfig.checkpoint_replay_buffer=True saves it all the "
                    "same.",
                    size_gb,
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
            self.waiting_steps = file

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


class ReplayMonitor:
    """What is drawn, in numbers: those below ``replay/`` in docs/logged_metrics.md.

    They are computed only where summaries are recorded; in between two integers are
    counted.
    """

    def __init__(self) -> None:
        # Since the run began.
        self._num_added = 0  # own steps
        self._num_own_windows = 0
        self._num_drawn = 0  # steps of windows of all sources
        self._at_last: tuple[float, int, int] | None = None
        self._drawn: list[tuple[bool, BatchInfo]] = []
        self._priority: Tensor | tuple = ()

    def add(self, num_steps: int) -> None:
        """Counts own steps that are stored."""
        self._num_added += num_steps

    def draw(self, drawn: Sequence[tuple[bool, BatchInfo]], length: int) -> None:
        """Takes note of windows that were drawn at once.

        Args:
            drawn: of every source, whether it is the run's own buffer, and [B].
            length: steps of a window.
        """
        self._drawn = list(drawn)
        for is_own, info in self._drawn:
            num_windows = info.env_ids.shape[0]  # len() is a call of Python
            self._num_drawn += num_windows * length
            if is_own:
                self._num_own_windows += num_windows

    def prioritize(self, priority: Tensor) -> None:
        """Takes note of the priorities that an update gives [B]."""
        self._priority = priority

    def write(self, own: OwnReplay) -> None:
        """Writes what is known, of ``own`` and the last windows drawn."""
        if not summary.should_record():
            return
        with summary.scope("replay"):
            summary.scalar("size", own.num_steps)
            if self._num_added:
                times_drawn = self._num_own_windows / self._num_added
                summary.scalar("times_drawn", times_drawn)
            self._write_speeds()
            self._write_drawn(own.buffer)
            if isinstance(self._priority, Tensor):
                _write("priority", self._priority)
        self._drawn = []
        self._priority = ()

    def _write_speeds(self) -> None:
        now = time.monotonic()
        if self._at_last is not None:
            then, added, drawn = self._at_last
            seconds = max(now - then, 1e-9)
            added, drawn = self._num_added - added, self._num_drawn - drawn
            summary.scalar("steps_added_per_second", added / seconds)
            summary.scalar("steps_drawn_per_second", drawn / seconds)
        self._at_last = now, self._num_added, self._num_drawn

    def _write_drawn(self, buffer: ReplayBuffer | None) -> None:
        total = sum(len(info.env_ids) for _, info in self._drawn)
        weights = []
        for is_own, info in self._drawn:
            if is_own:
                assert buffer is not None, "something was drawn from it"
                newest = buffer.end_positions[info.env_ids.cpu()] - 1
                _write("age", newest - info.positions.cpu())
            source = 0 if is_own else int(info.source[0])
            name = f"offline_{source}" if source else "own"
            summary.scalar(f"share/{name}", len(info.env_ids) / total)
            if isinstance(info.importance_weights, Tensor):
                weights.append(info.importance_weights)
        if weights:
            _write("importance_weight", torch.cat(weights))

    def state_dict(self) -> dict[str, Any]:
        """What is counted since the run began."""
        return {
            "num_added": self._num_added,
            "num_own_windows": self._num_own_windows,
            "num_drawn": self._num_drawn,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""
        self._num_added = state["num_added"]
        self._num_own_windows = state["num_own_windows"]
        self._num_drawn = state["num_drawn"]


def _write(name: str, values: Tensor) -> None:
    values = values.detach().float()
    summary.scalar(f"{name}/mean", values.mean())
    summary.scalar(f"{name}/max", values.max())
