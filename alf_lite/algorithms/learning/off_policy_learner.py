"""An iteration of off-policy training: unroll, store, train on what is stored.

With offline buffers the same learner pre-trains, fine-tunes and mixes: the first
``TrainerConfig.rl_train_after_update_steps`` iterations train on them alone and take no
step in the environment; after that own steps join them in the batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.learner import Learner
from alf_lite.algorithms.learning.replay_batches import ReplayBatches, read_windows
from alf_lite.algorithms.learning.training_batches import (
    without_executed_action,
)
from alf_lite.checkpoints.files import Stream
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.datasets.offline_buffers import OfflineBuffers
from alf_lite.environments.environment import Environment
from alf_lite.replay_buffers.own_replay import OwnReplay, ReplayMonitor
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.unrollers.rate_limiter import TrainingPace
from alf_lite.unrollers.unroll import Unroll
from alf_lite.utils.ranks import ranks
from alf_lite.utils.summary import timed

if TYPE_CHECKING:
    from alf_lite.algorithms.rl_algorithm import RLAlgorithm


class OffPolicyLearner(Learner):
    """Trains an algorithm from its replay buffer and from offline ones.

    Args:
        algorithm: the root of the run.
        config: of the run.
        env: that it trains in.
    """

    def __init__(
        self, algorithm: RLAlgorithm, config: TrainerConfig, env: Environment
    ) -> None:
        super().__init__(algorithm, config, env)
        num_history_steps = algorithm.data_transformer.num_history_steps
        self.replay = OwnReplay(
            *(config, num_history_steps, env.batch_size),
            algorithm.rl_algorithm.default_settings,
        )
        if self.replay.options.priority is not None:
            self.replay.options.priority.follow(algorithm.progress)
        self.offline = OfflineBuffers(config, self.replay, env.batch_size)
        self._monitor = ReplayMonitor()
        self._batches = ReplayBatches(
            algorithm, config, self.replay, self.offline, self._monitor
        )
        # Of a fractional unroll_length; the sum of floats would fall behind.
        self._unroll_length = Fraction(config.unroll_length).limit_denominator(10**9)
        self._remainder = Fraction()
        self._pace: TrainingPace | None = None
        if config.unroll_length == 0 or config.samples_per_insert is not None:
            self._pace = TrainingPace(
                config,
                env.batch_size,
                self.replay.mini_batch_size * self._num_updates,
                self.replay.least_length,
            )
        self._all_can_train = False  # for good; not asked alone
        self._num_iterations = 0

    # One iteration

    def train_iter(self) -> int:
        """Returns the number of steps trained on."""
        steps = self._train_iter(self._num_iterations)
        self._num_iterations += 1  # not if it was broken off
        self._monitor.write(self.replay.buffer)
        return steps

    def _train_iter(self, iteration: int) -> int:
        algorithm, config = self._algorithm, self._config
        self.replay.set_iteration(iteration)
        experience, with_own_steps = None, False
        if iteration >= config.rl_train_after_update_steps:
            with timed("time/unroll"):
                experience = self._collect()
            if not self._can_train():
                return 0
            with_own_steps = iteration % config.rl_train_every_update_steps == 0
        if with_own_steps and self._pace and not self._pace.begin_training():
            return 0
        algorithm.set_training(True)
        with timed("time/train"):
            steps = algorithm.train_from_replay_buffer(with_own_steps=with_own_steps)
        if experience is not None:
            with timed("time/after_train_iter"):
                algorithm.after_train_iter(
                    experience.time_step, experience.rollout_info
                )
        return steps

    def _can_train(self) -> bool:
        """Whether there is enough to draw from, on all ranks of the run."""
        if ranks.size == 1:
            return self.replay.can_train
        if not self._all_can_train:
            can_train = ranks.all(self.replay.can_train)
            # What may be used up, or become too old, is asked for each time.
            self._all_can_train = can_train and self.replay.stays_trainable
            return can_train
        return True

    def _collect(self) -> Experience | None:
        """Unrolls as ``unroll_length`` says; None if there is nothing to unroll.

        A fraction of a step is left for a later iteration.
        """
        if self._unroll_length == 0:
            return self._take_what_is_there()
        length = self._remainder + self._unroll_length
        self._remainder = length % 1
        return self._algorithm.unroll(int(length)) if length >= 1 else None

    def _take_what_is_there(self) -> Experience | None:
        """Takes what unroll workers have finished, perhaps nothing."""
        pace = self._pace
        assert pace is not None, "made for this"
        limits = pace.num_steps_to_take(can_train=self.replay.can_train)
        experience = self._algorithm.unroll_what_is_there(*limits)
        if experience is not None:
            pace.take(experience.time_step.step_type.numel())
        return experience

    @property
    def replay_buffer(self) -> ReplayBuffer | None:
        return self.replay.buffer

    @property
    def acts_randomly(self) -> bool:
        return self._config.initial_random_policy and self.replay.is_beginning

    def store(self, unroll: Unroll) -> None:
        """Appends the steps of an unroll to the run's own buffer."""
        num_rows, num_columns = unroll.time_steps.step_type.shape
        device = self.replay.device
        experience = Experience(
            # The last row is the first one of the next unroll.
            time_step=unroll.rows_on(device, 0, num_rows - 1),
            action=unroll.action_on(device),
            rollout_info=without_executed_action(unroll.experience.rollout_info),
            state=unroll.experience.state if self._config.use_rollout_state else (),
        )
        buffer = self.replay.buffer_for(experience)
        if unroll.is_first_unroll:
            # What was stored does not go on, as when a worker was replaced.
            buffer.mark_truncated_end(unroll.env_ids)
        elif unroll.new_columns:
            buffer.mark_truncated_end(np.array(unroll.new_columns))
        if self._algorithm.prioritizes_new_steps:
            num_before = buffer.end_positions
            buffer.add_batch(experience, unroll.env_ids, time_major=True)
            self._prioritize_since(num_before, buffer)
        else:
            buffer.add_batch(experience, unroll.env_ids, time_major=True)
        self._monitor.add((num_rows - 1) * num_columns)

    def _prioritize_since(self, ends: Tensor, buffer: ReplayBuffer) -> None:
        """Gives the windows that have become complete their first priorities.

        Args:
            ends: [E], of the steps that were stored before.
            buffer: the run's own.
        """
        algorithm, length = self._algorithm, self.replay.mini_batch_length
        if not buffer.num_windows(length):
            return
        num_history_steps = algorithm.data_transformer.num_history_steps
        first = torch.maximum(
            ends - length + 1, buffer.begin_positions + num_history_steps
        )
        counts = (buffer.end_positions - length + 1 - first).clamp(min=0)
        env_ids = torch.arange(len(ends)).repeat_interleave(counts)
        offsets = torch.cat([torch.arange(count) for count in counts.tolist()])
        info = BatchInfo(env_ids, first[env_ids] + offsets)
        if not len(env_ids):
            return
        with torch.no_grad():
            experience = read_windows(buffer, info, length, algorithm)
            burn_in = self._config.burn_in_length
            trained = nest.narrow(experience, burn_in, None, dim=1)
            priority = algorithm.priority_of_new_steps(trained)
        buffer.update_priority(env_ids, info.positions, priority)

    def train_from_replay_buffer(self, *, with_own_steps: bool) -> int:
        """See ``RLAlgorithm.train_from_replay_buffer``."""
        batches, config = self._batches, self._config
        if not config.whole_replay_buffer_training:
            return self.updates.run(
                batches.updates(with_own_steps=with_own_steps),
                update_priority=(
                    batches.update_priority if config.priority_replay else None
                ),
            )
        batch = batches.all_steps()
        steps = self.updates.run(
            self._updates_of_passes(batch),
            num_bootstrap_rows=min(
                self._algorithm.num_bootstrap_steps, batch.valid.shape[1] - 1
            ),
        )
        if config.clear_replay_buffer:
            self.replay.clear()
        return steps

    # Offline buffers

    def load_offline_buffers(self) -> None:
        """See ``RLAlgorithm.load_offline_replay_buffer``."""
        if not self.offline:
            for buffer in self.offline.load(self._env):
                self.add_offline_buffer(buffer)

    def add_offline_buffer(self, buffer: ReplayBuffer) -> None:
        """Adds one more source, which the data transformer observes first."""
        transformer = self._algorithm.data_transformer
        observe = transformer.observe if transformer.has_statistics else None
        with ranks.alone():  # all have the same recorded steps
            self.offline.add(buffer, observe)
        self._batches.note_sources()

    @property
    def num_recorded_sources(self) -> int:
        return len(self.offline)

    # State

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "path": self._own_state_dict()}

    def _own_state_dict(self) -> dict[str, Any]:
        """What only this kind of learner has, but for the steps that are stored."""
        return {
            "collection": {
                "remainder": float(self._remainder),
                "limiter": {} if self._pace is None else self._pace.state_dict(),
            },
            "num_iterations": self._num_iterations,
            **self.offline.state_dict(),
            "replay": self.replay.state_dict(),
            "monitor": self._monitor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._load_own_state_dict(state["path"])

    def _load_own_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``_own_state_dict`` returned.

        Raises:
            CheckpointError: if the offline buffers are not those of then.
        """
        self.offline.load_state_dict(state)
        size = self._unroll_length.denominator
        remainder = round(state["collection"]["remainder"] * size)
        self._remainder = Fraction(remainder, size)
        limiter = state["collection"]["limiter"]
        if self._pace is not None:
            self._pace.load_state_dict(limiter)
        self._num_iterations = state["num_iterations"]
        self.replay.load_state_dict(state["replay"])
        self._monitor.load_state_dict(state["monitor"])

    def _cut_open_episodes(self) -> None:
        self.replay.mark_truncated_end()

    def files(self) -> dict[str, Stream]:
        return self.replay.files()

    def load_files(self, files: Mapping[str, Path]) -> None:
        self._batches.forget_returns()
        self.replay.load_files(files)
