"""An iteration of off-policy training: unroll, store, train on what is stored.

With offline buffers the same path pre-trains, fine-tunes and mixes: the first
``TrainerConfig.rl_train_after_update_steps`` iterations train on them alone and take no
step in the environment; after that own steps join them in the batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.replay_mixture import ReplayMixture, Windows, alike, join
from alf_lite.algorithms.replay_training import ReplayTraining
from alf_lite.algorithms.root_algorithm import RootAlgorithm
from alf_lite.algorithms.training_batches import (
    TrainingBatch,
    Update,
    consecutive_mini_batches,
    passes_over_unroll,
    transpose,
)
from alf_lite.algorithms.update_loop import UpdateLoop
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.data_transformers.data_transformer import DataTransformer
from alf_lite.errors import CheckpointError, DataError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.unrollers.unroll import Unroll
from alf_lite.utils.rate_limiter import RateLimiter
from alf_lite.utils.summary import timed


class OffPolicyPath:
    """Trains an algorithm from its replay buffer and from offline ones.

    Args:
        algorithm: the root of the run.
        config: of the run.
        updates: makes the updates.
        num_environments: that the algorithm trains in.
    """

    def __init__(
        self,
        algorithm: RootAlgorithm,
        config: TrainerConfig,
        updates: UpdateLoop,
        num_environments: int,
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        self._updates = updates
        self.replay = self._make_source(num_environments)
        self._mixture = ReplayMixture(config, self.replay)
        self._offline: list[ReplayTraining] = []
        self._num_environments = num_environments
        self._limiter = self._make_limiter()
        self._num_iterations = 0
        self._unroll_remainder = 0.0  # of a fractional unroll_length

    def _make_source(
        self, num_environments: int, buffer: ReplayBuffer | None = None
    ) -> ReplayTraining:
        num_history_steps = self._algorithm.data_transformer.num_history_steps
        return ReplayTraining(self._config, num_environments, num_history_steps, buffer)

    @property
    def _num_samples(self) -> int:
        """Windows that one iteration trains on."""
        return self.replay.mini_batch_size * self._config.num_updates_per_train_iter

    def _make_limiter(self) -> RateLimiter | None:
        """Keeps trainer and unroll workers in step, if the config says how."""
        config = self._config
        ratio = config.samples_per_insert
        if ratio is None:
            return None
        least_size = max(config.initial_collect_steps, self.replay.least_length)
        at_once = max(self._num_samples, ratio * self._num_environments)
        return RateLimiter(
            ratio,
            tolerance=max(2 * at_once, 0.1 * ratio * least_size),
            min_size=least_size,
            samples_at_once=self._num_samples,
            inserts_at_once=self._num_environments // config.num_unroll_workers,
        )

    def add_offline_buffer(self, buffer: ReplayBuffer) -> None:
        """Adds one more source, which the data transformer observes first.

        Raises:
            DataError: if it has too few steps for one window.
        """
        least = self.replay.least_length
        if int(buffer.sizes.max()) < least:
            raise DataError(
                f"an offline buffer has {buffer.sizes.tolist()} steps of its "
                f"environments, but a window takes {least}: "
                "TrainerConfig.mini_batch_length and what data transformers read "
                "before it"
            )
        observe_buffer(self._algorithm.data_transformer, buffer)
        self._offline.append(self._make_source(buffer.num_environments, buffer))
        self._mixture = ReplayMixture(self._config, self.replay, self._offline)

    @property
    def has_offline(self) -> bool:
        return bool(self._offline)

    @property
    def _offline_sizes(self) -> list[int]:
        """How many steps each source has."""
        return [source.num_steps for source in self._offline]

    # One iteration

    def train_iter(self) -> int:
        """Returns the number of steps trained on."""
        algorithm, config = self._algorithm, self._config
        iteration = self._num_iterations
        self._num_iterations += 1
        self.replay.set_iteration(iteration)
        experience, with_own_steps = None, False
        if iteration >= config.rl_train_after_update_steps:
            experience = self._unroll()
            if not self.replay.can_train:
                return 0
            with_own_steps = iteration % config.rl_train_every_update_steps == 0
        if self._limiter is not None and with_own_steps:
            if not self._limiter.can_sample(self._num_samples):
                return 0
            self._limiter.sample(self._num_samples)
        algorithm.set_training(True)
        with timed("time/train"):
            steps = algorithm.train_from_replay_buffer(with_own_steps=with_own_steps)
        if experience is not None:
            with timed("time/after_train_iter"):
                algorithm.after_train_iter(
                    experience.time_step, experience.rollout_info
                )
        return steps

    def _unroll(self) -> Experience | None:
        """Unrolls whole steps; the fraction of ``unroll_length`` is left for later."""
        if self._config.unroll_length == 0:
            with timed("time/unroll"):
                return self._unroll_what_is_there()
        unroll_length = self._unroll_remainder + self._config.unroll_length
        self._unroll_remainder = unroll_length % 1
        if unroll_length < 1:
            return None
        with timed("time/unroll"):
            return self._algorithm.unroll(int(unroll_length))

    def _unroll_what_is_there(self) -> Experience | None:
        """Takes what unroll workers have finished, perhaps nothing."""
        num_workers = self._config.num_unroll_workers
        at_least = 0 if self.replay.can_train else 1
        at_most = num_workers * self._config.max_unroll_length
        if self._limiter is not None:
            # In steps of a worker, which are one of each of its environments.
            size = self._num_environments // num_workers
            missing = self._limiter.num_missing(self._num_samples)
            at_least = max(at_least, min(at_most, math.ceil(missing / size)))
            at_most = min(at_most, self._limiter.num_insertable // size)
        experience = self._algorithm.unroll_what_is_there(
            at_least, max(at_least, at_most)
        )
        if self._limiter is not None and experience is not None:
            self._limiter.insert(experience.time_step.step_type.numel())
        return experience

    def store(self, unroll: Unroll) -> None:
        """Appends the steps of an unroll to the run's own buffer."""
        self.replay.store(unroll)

    def train_from_replay_buffer(self, *, with_own_steps: bool) -> int:
        """See ``RLAlgorithm.train_from_replay_buffer``."""
        algorithm, config = self._algorithm, self._config
        parts = self._mixture.sample(
            algorithm.data_transformer, algorithm.device, with_own=with_own_steps
        )
        if config.whole_replay_buffer_training:
            # Of whole rows, not of windows.
            batch = self._preprocess(parts[0])._replace(batch_info=BatchInfo())
            steps = self._run(map(Update, passes_over_unroll(batch, config)))
            if config.clear_replay_buffer:
                self.replay.clear()
            return steps
        return self._run(self._updates_on(parts))

    def _run(self, updates: Iterable[Update]) -> int:
        use_priority = self._config.priority_replay
        return self._updates.run(
            updates,
            update_priority=self._mixture.update_priority if use_priority else None,
        )

    def _updates_on(self, parts: list[Windows]) -> Iterator[Update]:
        """The batches of all updates on windows of one or more sources."""
        algorithm = self._algorithm
        if algorithm.trains_offline_differently:
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

    # State

    def state_dict(self) -> dict[str, Any]:
        """What training needs to continue, but for the steps that are stored."""
        return {
            "unroll_remainder": self._unroll_remainder,
            "num_iterations": self._num_iterations,
            "offline_sizes": self._offline_sizes,
            "limiter": {} if self._limiter is None else self._limiter.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned.

        Raises:
            CheckpointError: if the offline buffers are not those of then.
        """
        if state["offline_sizes"] != self._offline_sizes:
            raise CheckpointError(
                "the offline buffers have changed since the checkpoint: then they had "
                f"{state['offline_sizes']} steps, now {self._offline_sizes}. Restore "
                "the data in TrainerConfig.offline_buffer_dir, or begin a new run."
            )
        if self._limiter is not None and state["limiter"]:
            self._limiter.load_state_dict(state["limiter"])
        self._unroll_remainder = state["unroll_remainder"]
        self._num_iterations = state["num_iterations"]


def observe_buffer(
    transformer: DataTransformer, buffer: ReplayBuffer, length: int = 1000
) -> None:
    """Takes all that is stored into the statistics, one environment after the other.

    Args:
        transformer: is changed.
        buffer: of ``Experience``.
        length: steps that are taken in at once.
    """
    if not transformer.has_statistics:
        return
    for env_id in range(buffer.num_environments):
        begin = int(buffer.begin_positions[env_id])
        end = int(buffer.end_positions[env_id])
        for position in range(begin, end, length):
            steps = buffer.get_windows(
                torch.tensor([env_id]),
                torch.tensor([position]),
                min(length, end - position),
            )
            transformer.observe(transpose(steps.time_step))
