"""An iteration of on-policy training: unroll, then train on the unroll."""

from __future__ import annotations

from typing import Any

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.learning.batch_summaries import summarize_batch
from alf_lite.algorithms.learning.root_algorithm import RootAlgorithm
from alf_lite.algorithms.learning.training_batches import (
    Update,
    passes_over_unroll,
    transpose,
    with_executed_action,
)
from alf_lite.algorithms.learning.update_loop import UpdateLoop
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience
from alf_lite.utils.summary import timed

Nest = Any


class OnPolicyPath:
    """Trains an algorithm on its unrolls, each with its bootstrap row.

    Args:
        algorithm: the root of the run.
        config: of the run.
        updates: makes the updates.
    """

    def __init__(
        self, algorithm: RootAlgorithm, config: TrainerConfig, updates: UpdateLoop
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        self._updates = updates

    def train_iter(self) -> int:
        """Returns the number of steps trained on."""
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
            loss_info = algorithm.aggregate_loss(algorithm.calc_loss(train_info), valid)
            norms = algorithm.update_with_gradient(loss_info)
            algorithm.after_update(experience.time_step, train_info)
            self._updates.num_updates += 1
            algorithm.summarize_loss(loss_info, valid)
            algorithm.summarize_optimizers(norms)
            summarize_batch(config, experience.time_step, train_info)
            return valid[:-1].numel()
        train_info = with_executed_action(train_info, experience.action)
        experience = experience._replace(rollout_info=train_info)
        experience, valid = transpose((experience, valid))
        batch = algorithm.preprocess(experience, valid, BatchInfo())
        has_bootstrap_row = config.mini_batch_length is None
        return self._updates.run(
            map(Update, passes_over_unroll(batch, config)),
            num_bootstrap_rows=int(has_bootstrap_row),
        )
