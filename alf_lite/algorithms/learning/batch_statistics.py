"""Statistics over whole mini-batches, of which a process has only parts at a time."""

from __future__ import annotations

from collections.abc import Sequence

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.training_batches import TrainingBatch, flat_steps


def with_batch_statistics(
    algorithm: Algorithm, batches: Sequence[TrainingBatch]
) -> list[TrainingBatch]:
    """The mini-batches, with what the algorithm computes over each of them as a whole.

    See :meth:`Algorithm.add_batch_statistics`.
    """
    infos = [batch.rollout_info for batch in batches]
    if all(map(nest.is_empty, infos)):
        return list(batches)
    completed = algorithm.add_batch_statistics(infos)
    return [
        batch if info is batch.rollout_info else _with_info(batch, info)
        for batch, info in zip(batches, completed, strict=True)
    ]


def _with_info(batch: TrainingBatch, info: nest.Nest) -> TrainingBatch:
    if batch.flat == ():
        return batch._replace(rollout_info=info)
    inputs, _, state = batch.flat
    return batch._replace(rollout_info=info, flat=(inputs, flat_steps(info), state))
