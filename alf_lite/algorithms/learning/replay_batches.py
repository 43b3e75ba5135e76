"""The batches of off-policy training: windows of what is stored, as they are trained.

They are drawn from the run's own buffer, from offline ones, or from both, transformed
by the run's data transformer and preprocessed by the algorithm.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    consecutive_mini_batches,
    paired_batch,
    with_executed_action,
)
from alf_lite.algorithms.learning.updates import Update
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, StepType
from alf_lite.data_transformers.data_transformer import WindowOrigin
from alf_lite.datasets.offline_buffers import OfflineBuffers
from alf_lite.replay_buffers.episode_returns import EpisodeReturns
from alf_lite.replay_buffers.own_replay import OwnReplay, ReplayMonitor
from alf_lite.replay_buffers.packed_windows import PackedWindows
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_mixture import ReplayMixture, Windows, alike, join
from alf_lite.replay_buffers.row_layout import PackedSteps
from alf_lite.utils.devices import moved
from alf_lite.utils.ranks import ranks

Nest = Any


class ReplayBatches:
    """Draws the batches of updates, and notes the priorities that these give them.

    Args:
        algorithm: the root of the run.
        config: of the run.
        replay: with the run's own buffer.
        offline: the other buffers; :meth:`note_sources` when there is another one.
        monitor: is told what is drawn.
    """

    def __init__(
        self,
        algorithm: RLContract,
        config: TrainerConfig,
        replay: OwnReplay,
        offline: OfflineBuffers,
        monitor: ReplayMonitor,
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        self._replay = replay
        self._offline = offline
        self._monitor = monitor
        self._num_updates = config.num_updates
        self._updates_per_draw, _ = replay.options.draws_per_iteration()
        # Of the buffers that were asked about, if the algorithm wants them.
        self._episode_returns: dict[ReplayBuffer, EpisodeReturns] = {}
        if algorithm.uses_episode_returns:
            algorithm.data_transformer.transform_rewards(torch.zeros(1))  # checks
        self.note_sources()

    def note_sources(self) -> None:
        """From now on, draws from the offline buffers that there are now."""
        priority = self._replay.options.priority
        self._mixture = ReplayMixture(
            self._config,
            self._replay,
            self._offline,
            scale_weights=priority is not None and priority.normalization == "batch",
        )

    def forget_returns(self) -> None:
        """After other steps were loaded into the buffers."""
        self._episode_returns.clear()

    def update_priority(self, batch_info: BatchInfo, priority: Tensor) -> None:
        """Notes the priorities that an update gave its windows.

        Raises:
            ValueError: if one is negative or not finite.
            DivergedError: if that is because the update has diverged.
        """
        try:
            self._mixture.update_priority(batch_info, priority)
        except ValueError:
            guard = self._algorithm.update_guard
            if guard is not None:  # a loss that has diverged says more
                guard.look(self._algorithm.name)
            raise
        self._monitor.prioritize(priority)

    def all_steps(self) -> TrainingBatch:
        """Windows that cover all own steps, for passes over them."""
        algorithm, replay = self._algorithm, self._replay
        info, num_skipped = replay.covering_windows(algorithm.num_bootstrap_steps)
        buffer, length = replay.require_buffer(), replay.mini_batch_length
        if ranks.size > 1:  # as many updates on all of them
            least = int(ranks.least(len(info.env_ids)))
            info, num_skipped = nest.narrow((info, num_skipped), 0, least)
        experience = read_windows(buffer, info, length, algorithm)
        info = self.with_returns(info, buffer)
        valid = valid_steps(experience.time_step.step_type)
        row = torch.arange(valid.shape[1], device=valid.device)
        valid &= row >= num_skipped.to(valid.device).unsqueeze(1)
        # The mini-batches are shuffled; nobody asks where their rows are stored.
        batch = algorithm.preprocess(experience, valid, info)
        return batch._replace(batch_info=BatchInfo())

    def updates(self, *, with_own_steps: bool) -> Iterator[Update]:
        """The batches of an iteration, drawn when they are needed."""
        num_left = self._num_updates
        while num_left:
            num_updates = min(num_left, self._updates_per_draw)
            if with_own_steps and self._mixture.is_plain:
                yield from map(Update, self._own_batches(num_updates))
            else:
                yield from self._updates_on(self._draw(num_updates, with_own_steps))
            num_left -= num_updates

    # Of own steps alone

    def _own_batches(self, num_updates: int) -> Iterator[TrainingBatch]:
        pairing = self._algorithm.step_pairing() if self._may_take_pairs else None
        if pairing is not None:
            return self._paired_batches(num_updates, pairing)
        replay, algorithm = self._replay, self._algorithm
        buffer, size = replay.require_buffer(), replay.mini_batch_size
        experience, info = buffer.get_batch(
            size * num_updates, replay.mini_batch_length, self._device
        )
        self._monitor.draw([(True, info)], replay.mini_batch_length)
        info = self.with_returns(info, buffer)
        experience = _transform(experience, info, buffer, algorithm)
        valid = valid_steps(experience.time_step.step_type)
        batch = algorithm.preprocess(experience, valid, info)
        return consecutive_mini_batches(batch, size)

    @functools.cached_property
    def _may_take_pairs(self) -> bool:
        """Whether windows are nothing but a step and what it bootstraps from.

        As they are stored but for the scale of rewards, if the algorithm only pairs
        them. Those of numpy's arrays are put together in half of the time of tensors.
        """
        algorithm, device = self._algorithm, self._algorithm.device
        return (
            algorithm.is_temporally_independent
            and algorithm.data_transformer.reward_factor is not None
            and self._replay.mini_batch_length == algorithm.num_bootstrap_steps + 1
            and device == self._replay.require_buffer().device == torch.device("cpu")
        )

    def _paired_batches(
        self, num_updates: int, pairing: Callable[[PackedWindows], PackedSteps]
    ) -> Iterator[TrainingBatch]:
        """As :meth:`_own_batches`, where windows need not be preprocessed."""
        replay = self._replay
        buffer, size = replay.require_buffer(), replay.mini_batch_size
        length = replay.mini_batch_length
        windows, info = buffer.get_packed_batch(size * num_updates, length)
        self._monitor.draw([(True, info)], length)
        pairs = pairing(windows)
        factor = self._algorithm.data_transformer.reward_factor
        if factor != 1.0:  # of rewards, and so of their sums
            pairs.array("time_step.reward")[:] *= factor
        is_valid = np.not_equal(windows.step_types, int(StepType.LAST), order="C")
        valid = torch.from_numpy(is_valid)
        if num_updates == 1:
            yield paired_batch(pairs, valid, info)
            return
        for begin in range(0, size * num_updates, size):
            end = begin + size
            rows = nest.narrow(info, begin, end)
            yield paired_batch(pairs.narrow(begin, end), valid[:, begin:end], rows)

    # Of several sources

    def _draw(self, num_updates: int, with_own_steps: bool) -> list[Windows]:
        """The windows of some updates, transformed, source by source."""
        algorithm = self._algorithm
        parts = [
            part._replace(
                experience=_transform(
                    part.experience, part.batch_info, buffer, algorithm
                ),
                batch_info=self.with_returns(part.batch_info, buffer),
            )
            for part, buffer in self._mixture.draw(
                num_updates, with_own=with_own_steps, device=self._device
            )
        ]
        parts = self._mixture.weighted(parts, num_updates, algorithm.device)
        drawn = [(part.is_own, part.batch_info) for part in parts]
        self._monitor.draw(drawn, self._replay.mini_batch_length)
        return parts

    def _updates_on(self, parts: list[Windows]) -> Iterator[Update]:
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
        valid = valid_steps(windows.experience.time_step.step_type)
        batch = self._algorithm.preprocess(
            windows.experience, valid, windows.batch_info
        )
        return consecutive_mini_batches(batch, windows.per_update)

    # Of both

    @property
    def _device(self) -> torch.device | None:
        """Where windows shall be made; None: where they are stored.

        There the steps before a window are put in front of it, if it needs some.
        """
        has_history = self._algorithm.data_transformer.num_history_steps > 0
        return None if has_history else self._algorithm.device

    def with_returns(self, info: BatchInfo, buffer: ReplayBuffer) -> BatchInfo:
        """Adds the returns [B, T] that followed, if the algorithm wants them.

        The buffer may be another one than is drawn from: held-out data.
        """
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
        windows = returns.windows(
            info.env_ids, info.positions, self._replay.mini_batch_length
        )
        return info._replace(episode_returns=windows.to(algorithm.device))


def read_windows(
    buffer: ReplayBuffer, info: BatchInfo, length: int, algorithm: RLContract
) -> Experience:
    """The transformed windows [B, length, ...] that begin where ``info`` says."""
    experience = buffer.get_windows(info.env_ids, info.positions, length)
    return _transform(experience, info, buffer, algorithm)


def _transform(
    experience: Experience, info: BatchInfo, buffer: ReplayBuffer, algorithm: RLContract
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
