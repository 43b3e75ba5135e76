"""An iteration of off-policy training: unroll, store, train on what is stored.

With offline buffers the same learner pre-trains, fine-tunes and mixes: the first
``TrainerConfig.rl_train_after_update_steps`` iterations train on them alone and take no
step in the environment; after that own steps join them in the batches.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.learner import Learner
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    consecutive_mini_batches,
    paired_batch,
    with_executed_action,
    without_executed_action,
)
from alf_lite.algorithms.learning.updates import Update
from alf_lite.checkpoints.files import Stream
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.data_transformers.data_transformer import WindowOrigin
from alf_lite.datasets.offline_buffers import OfflineBuffers
from alf_lite.environments.environment import Environment
from alf_lite.replay_buffers.episode_returns import EpisodeReturns
from alf_lite.replay_buffers.own_replay import OwnReplay, ReplayMonitor
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_mixture import (
    ReplayMixture,
    Windows,
    alike,
    join,
)
from alf_lite.unrollers.rate_limiter import TrainingPace
from alf_lite.unrollers.unroll import Unroll
from alf_lite.utils.devices import moved
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
        self._num_history_steps = algorithm.data_transformer.num_history_steps
        self.replay = OwnReplay(config, self._num_history_steps, env.batch_size)
        if self.replay.options.priority is not None:
            self.replay.options.priority.follow(algorithm.progress)
        self.offline = OfflineBuffers(config, self.replay, env.batch_size)
        self._mixture = self._make_mixture()
        self._monitor = ReplayMonitor()
        self._remainder = 0.0  # of a fractional unroll_length
        self._pace: TrainingPace | None = None
        if config.unroll_length == 0 or config.samples_per_insert is not None:
            self._pace = TrainingPace(
                config,
                env.batch_size,
                self.replay.mini_batch_size * self._num_updates,
                self.replay.least_length,
            )
        self._all_can_train = False  # for good; not asked alone
        self._updates_per_draw, _ = self.replay.options.draws_per_iteration()
        self._num_iterations = 0
        # Of the buffers that were drawn from, if the algorithm wants them.
        self._episode_returns: dict[ReplayBuffer, EpisodeReturns] = {}
        if algorithm.uses_episode_returns:
            algorithm.data_transformer.transform_rewards(torch.zeros(1))  # checks

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
        algorithm, unroll_length = self._algorithm, self._config.unroll_length
        if unroll_length == 0:
            return self._take_what_is_there()
        length = self._remainder + unroll_length
        self._remainder = length % 1
        return algorithm.unroll(int(length)) if length >= 1 else None

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
        first = torch.maximum(
            ends - length + 1, buffer.begin_positions + self._num_history_steps
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

    def _with_returns(
        self, info: BatchInfo, buffer: ReplayBuffer, length: int
    ) -> BatchInfo:
        """Adds the returns [B, length] that followed, if the algorithm wants them."""
        algorithm = self._algorithm
        if not algorithm.uses_episode_returns:
            return info
        if buffer not in self._episode_returns:
            gamma, transformer = algorithm.gamma, algorithm.data_transformer
            assert gamma is not None, "an algorithm with targets has one"
            self._episode_returns[buffer] = EpisodeReturns(
                buffer, gamma, transformer.transform_rewards
            )
        returns = self._episode_returns[buffer]
        windows = returns.windows(info.env_ids, info.positions, length)
        return info._replace(episode_returns=windows.to(algorithm.device))

    def train_from_replay_buffer(self, *, with_own_steps: bool) -> int:
        """See ``RLAlgorithm.train_from_replay_buffer``."""
        config = self._config
        if config.whole_replay_buffer_training:
            steps = self._train_on_everything()
            if config.clear_replay_buffer:
                self.replay.clear()
            return steps
        return self._run(self._drawn_updates(with_own_steps))

    def _train_on_everything(self) -> int:
        """Passes over windows that cover all that is stored."""
        algorithm = self._algorithm
        num_bootstrap_steps = algorithm.num_bootstrap_steps
        info, num_skipped = self.replay.covering_windows(num_bootstrap_steps)
        buffer = self.replay.require_buffer()
        if ranks.size > 1:  # as many updates on all of them
            least = int(ranks.least(len(info.env_ids)))
            info, num_skipped = nest.narrow((info, num_skipped), 0, least)
        length = self.replay.mini_batch_length
        experience = read_windows(buffer, info, length, algorithm)
        info = self._with_returns(info, buffer, length)
        valid = valid_steps(experience.time_step.step_type)
        row = torch.arange(valid.shape[1], device=valid.device)
        valid &= row >= num_skipped.to(valid.device).unsqueeze(1)
        # The mini-batches are shuffled; nobody asks where their rows are stored.
        batch = algorithm.preprocess(experience, valid, info)._replace(
            batch_info=BatchInfo()
        )
        return self.updates.run(
            self._updates_of_passes(batch),
            num_bootstrap_rows=min(num_bootstrap_steps, batch.valid.shape[1] - 1),
        )

    def _drawn_updates(self, with_own_steps: bool) -> Iterator[Update]:
        """The batches of an iteration, drawn when they are needed."""
        num_left = self._num_updates
        while num_left:
            num_updates = min(num_left, self._updates_per_draw)
            if with_own_steps and self._mixture.is_plain:
                yield from map(Update, self._own_batches(num_updates))
            else:
                yield from self._updates_on(self._draw(num_updates, with_own_steps))
            num_left -= num_updates

    def _own_batches(self, num_updates: int) -> Iterator[TrainingBatch]:
        """The batches of some updates on the run's own steps alone."""
        if self._takes_pairs:
            return self._paired_batches(num_updates)
        replay, algorithm = self.replay, self._algorithm
        buffer, size = replay.require_buffer(), replay.mini_batch_size
        experience, info = buffer.get_batch(
            size * num_updates, replay.mini_batch_length, self._batch_device
        )
        self._monitor.draw([(True, info)], replay.mini_batch_length)
        info = self._with_returns(info, buffer, replay.mini_batch_length)
        experience = _transform(experience, info, buffer, algorithm)
        valid = valid_steps(experience.time_step.step_type)
        batch = algorithm.preprocess(experience, valid, info)
        return consecutive_mini_batches(batch, size)

    @property
    def _batch_device(self) -> torch.device | None:
        """Where windows shall be made; None: where they are stored.

        There the steps before a window are put in front of it, if it needs some.
        """
        return None if self._num_history_steps else self._algorithm.device

    @functools.cached_property
    def _takes_pairs(self) -> bool:
        """Whether windows are nothing but a step and the next one, as they are stored.

        Those of numpy's arrays are put together in half of the time of tensors.
        """
        algorithm, device = self._algorithm, self._algorithm.device
        return (
            algorithm.only_pairs_steps
            and algorithm.is_temporally_independent
            and algorithm.data_transformer.is_identity
            and self.replay.mini_batch_length == 2
            and device == self.replay.require_buffer().device == torch.device("cpu")
        )

    def _paired_batches(self, num_updates: int) -> Iterator[TrainingBatch]:
        """As :meth:`_own_batches`, where windows need not be preprocessed."""
        replay, algorithm = self.replay, self._algorithm
        buffer, size = replay.require_buffer(), replay.mini_batch_size
        windows, info = buffer.get_packed_batch(size * num_updates, 2)
        self._monitor.draw([(True, info)], 2)
        if num_updates == 1:
            yield paired_batch(windows, info, algorithm.transitions_to)
            return
        for begin in range(0, size * num_updates, size):
            end = begin + size
            rows = nest.narrow(info, begin, end)
            yield paired_batch(
                windows.narrow(begin, end), rows, algorithm.transitions_to
            )

    def _draw(self, num_updates: int, with_own_steps: bool) -> list[Windows]:
        """The windows of some updates, transformed, source by source."""
        algorithm = self._algorithm
        parts = [
            part._replace(
                experience=_transform(
                    part.experience, part.batch_info, buffer, algorithm
                ),
                batch_info=self._with_returns(
                    part.batch_info, buffer, self.replay.mini_batch_length
                ),
            )
            for part, buffer in self._mixture.draw(
                num_updates, with_own=with_own_steps, device=self._batch_device
            )
        ]
        parts = self._mixture.weighted(parts, num_updates, algorithm.device)
        drawn = [(part.is_own, part.batch_info) for part in parts]
        self._monitor.draw(drawn, self.replay.mini_batch_length)
        return parts

    def _run(self, updates: Iterable[Update]) -> int:
        use_priority = self._config.priority_replay
        return self.updates.run(
            updates, update_priority=self._update_priority if use_priority else None
        )

    def _update_priority(self, batch_info: BatchInfo, priority: Tensor) -> None:
        try:
            self._mixture.update_priority(batch_info, priority)
        except ValueError:
            algorithm, guard = self._algorithm, self._algorithm.update_guard
            if guard is not None:  # a loss that has diverged says more
                guard.look(algorithm.name)
            raise
        self._monitor.prioritize(priority)

    def _updates_on(self, parts: list[Windows]) -> Iterator[Update]:
        """The batches of all updates on windows of one or more sources."""
        algorithm = self._algorithm
        if algorithm.has_offline_loss:
            own = [part for part in parts if part.is_own]
            offline = [part for part in parts if not part.is_own]
        else:
            own, offline = alike(parts, algorithm.train_state_spec), []
        return map(Update, self._batches_of(own), self._batches_of(offline))

    def _batches_of(self, parts: list[Windows]) -> Iterable[TrainingBatch | None]:
        """One for each update; without parts, None again and again."""
        if not parts:
            return itertools.repeat(None)
        windows = join(parts)
        return consecutive_mini_batches(self._preprocess(windows), windows.per_update)

    def _preprocess(self, windows: Windows) -> TrainingBatch:
        experience = windows.experience
        valid = valid_steps(experience.time_step.step_type)
        return self._algorithm.preprocess(experience, valid, windows.batch_info)

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
        self._mixture = self._make_mixture()

    @property
    def num_recorded_sources(self) -> int:
        return len(self.offline)

    def _make_mixture(self) -> ReplayMixture:
        priority = self.replay.options.priority
        return ReplayMixture(
            self._config,
            self.replay,
            self.offline,
            scale_weights=priority is not None and priority.normalization == "batch",
        )

    # State

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "path": self._own_state_dict()}

    def _own_state_dict(self) -> dict[str, Any]:
        """What only this kind of learner has, but for the steps that are stored."""
        return {
            "collection": {
                "remainder": self._remainder,
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
        self._remainder = state["collection"]["remainder"]
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
        self._episode_returns.clear()  # of other steps
        self.replay.load_files(files)


def read_windows(
    buffer: ReplayBuffer, info: BatchInfo, length: int, algorithm: RLAlgorithm
) -> Experience:
    """The transformed windows [B, length, ...] that begin where ``info`` says."""
    experience = buffer.get_windows(info.env_ids, info.positions, length)
    return _transform(experience, info, buffer, algorithm)


def _transform(
    experience: Experience,
    info: BatchInfo,
    buffer: ReplayBuffer,
    algorithm: RLAlgorithm,
) -> Experience:
    """Stored windows [B, T, ...] → what the algorithm trains on, on its device."""
    transformer, device = algorithm.data_transformer, algorithm.device
    origin = WindowOrigin(buffer, info)
    if not transformer.is_identity:
        experience, origin = origin.with_history(
            experience, transformer.num_history_steps
        )
    if experience.time_step.reward.device != device:
        experience = moved(experience, device)
    if not transformer.is_identity:
        experience = transformer.transform_experience(experience, origin)
    rollout_info = with_executed_action(experience.rollout_info, experience.action)
    return experience._replace(rollout_info=rollout_info)
