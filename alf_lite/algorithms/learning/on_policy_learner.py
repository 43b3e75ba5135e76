"""An iteration of on-policy training: unroll, then train on the unroll.

Recorded steps are not trained on, but parts of the algorithm may draw some to learn
from (``Algorithm.needs_recorded_steps``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.learner import Learner
from alf_lite.algorithms.learning.off_policy_learner import read_windows
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    cut_sequences,
    transpose,
    with_executed_action,
)
from alf_lite.data_structures import BatchInfo, Experience, StepType
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.utils.ranks import ranks
from alf_lite.utils.summary import timed

Nest = Any

# An episode that is longer has no end, as far as ``unroll_episodes`` is concerned.
_MAX_EPISODE_LENGTH = 100_000


class OnPolicyLearner(Learner):
    """Trains an algorithm on its unrolls, each with its bootstrap row."""

    # What the newest unroll has become, [B, T+1, ...]; valid until the next one.
    preprocessed: TrainingBatch | None = None
    _recorded: Sequence[ReplayBuffer] = ()

    def train_iter(self) -> int:
        """Collects an unroll and trains on it."""
        algorithm = self._algorithm
        with timed("time/unroll"):
            if self._config.unroll_episodes is None:
                experience = algorithm.unroll(int(self._config.unroll_length))
            else:
                experience = self._unroll_episodes(self._config.unroll_episodes)
        algorithm.set_training(True)
        with timed("time/train"):
            steps = algorithm.train_from_unroll(experience, experience.rollout_info)
        with timed("time/after_train_iter"):
            rows = nest.narrow((experience.time_step, experience.rollout_info), 0, -1)
            algorithm.after_train_iter(*rows)
        return steps

    def _unroll_episodes(self, number: int) -> Experience:
        """Whole episodes [T+1, B, ...], the first ``number`` that begin.

        The steps of others count as LAST: nothing is trained there. Unrolls go on until
        all are complete, so that short episodes are not preferred to long ones.
        """
        algorithm, length = self._algorithm, int(self._config.unroll_length)
        if algorithm.num_env_steps:  # episodes that are open belong to older policies
            self.reset_environment(None)
        pieces: list[Experience] = []
        step_types: list[np.ndarray] = []
        while True:
            piece = algorithm.unroll(length)
            step_type = _step_types(piece)
            belongs, is_complete = whole_episodes(
                np.concatenate([*step_types, step_type]), number
            )
            if ranks.all(is_complete):
                break  # with as many steps on every rank
            # The next unroll begins with the last row, and uses the memory again.
            pieces.append(nest.map_structure(lambda t: t[:-1].clone(), piece))
            step_types.append(step_type[:-1])
            if len(belongs) > _MAX_EPISODE_LENGTH:
                raise ConfigError(
                    f"TrainerConfig.unroll_episodes={number}: after {len(belongs)} "
                    "steps of every environment not all episodes have ended. Limit "
                    "them by create_environment.max_episode_steps, or leave "
                    "unroll_episodes out."
                )
        experience = nest.cat([*pieces, piece])
        steps = experience.time_step
        mask = torch.from_numpy(belongs).to(steps.step_type.device)
        masked = torch.where(mask, steps.step_type, int(StepType.LAST))
        return experience._replace(time_step=steps._replace(step_type=masked))

    def train_from_unroll(self, experience: Experience, train_info: Nest) -> int:
        """See ``RLAlgorithm.train_from_unroll``."""
        algorithm, config = self._algorithm, self._config
        valid = valid_steps(experience.time_step.step_type)
        valid[-1] = False
        if algorithm.unrolls_with_grad:
            batch = TrainingBatch(experience.time_step, train_info, (), valid)
            return self.updates.run_on_rollout(batch)

        # Preprocess the whole unroll once, [B, T+1, ...].
        train_info = with_executed_action(train_info, experience.action)
        experience = experience._replace(rollout_info=train_info)
        experience, valid = transpose((experience, valid))
        batch = algorithm.preprocess(experience, valid, BatchInfo())
        self.preprocessed = batch

        # Update on its mini-batches.
        length, num_steps = config.mini_batch_length, len(valid[0]) - 1
        if length is not None:  # else a sequence is the unroll with its bootstrap row
            batch = cut_sequences(batch, num_steps, length)
        return self.updates.run(
            self._updates_of_passes(batch),
            num_bootstrap_rows=int(length is None),
        )

    # Recorded steps

    def load_offline_buffers(self) -> None:
        """For the parts that draw from them; see ``RLAlgorithm``."""
        if self._recorded:
            return
        config, transformer = self._config, self._algorithm.data_transformer
        if not self._parts_with_recorded_steps():
            raise self._has_no_replay()
        for source in config.offline_sources:
            buffer = load_replay_buffer(
                source,
                self._env,
                config.offline_buffer_length,
                num_earliest_frames_ignored=transformer.num_history_steps,
            )
            self.add_offline_buffer(buffer)

    @property
    def num_recorded_sources(self) -> int:
        return len(self._recorded)

    def add_offline_buffer(self, buffer: ReplayBuffer) -> None:
        """As above, one more source."""
        parts = self._parts_with_recorded_steps()
        if not parts:
            raise self._has_no_replay()
        transformer = self._algorithm.data_transformer
        buffer.ignore_earliest(transformer.num_history_steps)
        self._recorded = [*self._recorded, buffer]
        for part in parts:
            part.recorded_steps = self._draw_recorded_steps

    def _draw_recorded_steps(self, number: int, length: int) -> Experience:
        """Windows [number, length, ...], transformed, of all sources alike."""
        sources, algorithm = self._recorded, self._algorithm
        windows = []
        for k, buffer in enumerate(sources):
            size = number * (k + 1) // len(sources) - number * k // len(sources)
            if size:
                _, info = buffer.get_batch(size, length)
                windows.append(read_windows(buffer, info, length, algorithm))
        return nest.cat(windows) if len(windows) > 1 else windows[0]


def whole_episodes(step_type: np.ndarray, number: int) -> tuple[np.ndarray, bool]:
    """Which steps belong to the first episodes that begin, and whether all have ended.

    Args:
        step_type: [T, B], FIRST in its first row.
        number: of episodes. Of those that begin together, the first columns' count.

    Returns:
        [T, B] bool, and whether so many LAST steps are among them.
    """
    is_first = step_type == int(StepType.FIRST)
    begun = is_first.cumsum().reshape(is_first.shape)  # in the order of time, column
    episode = np.maximum.accumulate(np.where(is_first, begun, 0), axis=0)
    belongs = (episode > 0) & (episode <= number)
    ended = np.count_nonzero(belongs & (step_type == int(StepType.LAST)))
    return belongs, ended == number


def _step_types(experience: Experience) -> np.ndarray:
    step_type = experience.time_step.step_type
    assert isinstance(step_type, Tensor)
    return step_type.cpu().numpy().copy()
