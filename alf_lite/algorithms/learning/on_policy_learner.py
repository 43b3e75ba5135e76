"""An iteration of on-policy training: unroll, then train on the unroll."""

from __future__ import annotations

from typing import Any

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.learner import Learner
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    cut_sequences,
    passes,
    transpose,
    with_executed_action,
)
from alf_lite.algorithms.learning.updates import Update
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.utils.summary import timed

Nest = Any


class OnPolicyLearner(Learner):
    """Trains an algorithm on its unrolls, each with its bootstrap row."""

    def train_iter(self) -> int:
        """Collects an unroll and trains on it."""
        algorithm = self._algorithm
        with timed("time/unroll"):
            experience = algorithm.unroll(int(self._config.unroll_length))
        algorithm.set_training(True)
        with timed("time/train"):
            steps = algorithm.train_from_unroll(experience, experience.rollout_info)
        with timed("time/after_train_iter"):
            rows = nest.map_structure(lambda t: t[:-1], experience)
            algorithm.after_train_iter(rows.time_step, rows.rollout_info)
        return steps

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

        # Update on its mini-batches.
        length, num_steps = config.mini_batch_length, len(valid[0]) - 1
        if length is not None:  # else a sequence is the unroll with its bootstrap row
            batch = cut_sequences(batch, num_steps, length)
        return self.updates.run(
            map(Update, passes(batch, self._num_updates, config.mini_batch_size)),
            num_bootstrap_rows=int(length is None),
        )
