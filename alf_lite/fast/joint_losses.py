"""The loss of an algorithm of several parts, of which one is computed by one node."""

from __future__ import annotations

from typing import Any

import torch

from alf_lite.algorithms.composition import Composition, _needs_info
from alf_lite.algorithms.learning.batch_loss import aggregate_loss, info_at_once
from alf_lite.algorithms.learning.joint_training import (
    part_of_batch,
    with_loss_of,
)
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.off_policy_algorithm import PathwiseActorCriticAlgorithm
from alf_lite.data_structures import LossInfo
from alf_lite.utils.diagnostics import diagnostics_are_due

Nest = Any


def of_composition(
    algorithm: Composition, batch: TrainingBatch
) -> tuple[LossInfo, Nest] | None:
    """That of the RL algorithm, if nobody needs its info, and the other losses."""
    if algorithm._is_alone:
        return NotImplemented
    if isinstance(algorithm._rl, PathwiseActorCriticAlgorithm):
        return None  # there is no info that their loss could be computed from again
    others = {name: algorithm._named[name] for name in algorithm._before}
    if algorithm._after or any(map(_needs_info, others.values())):
        return None
    found = algorithm._rl.quick_loss(part_of_batch(batch, "rl"))
    if found is None:
        return None
    loss_info, info = found
    loss, (num_steps, batch_size) = loss_info.loss, batch.inputs.step_type.shape
    # As many as the loss of the RL algorithm has, of which the mean is known
    shape = max(1, num_steps - 1), batch_size
    infos, weights = {"rl": info}, batch.batch_info.importance_weights
    for name, part in others.items():
        infos[name], _ = info_at_once(part, part_of_batch(batch, name))
        own_loss = with_loss_of(shape, name, part, part.calc_loss(infos[name]))
        if not all(isinstance(x, tuple) for x in own_loss[:2]):
            loss = loss + aggregate_loss(own_loss, batch.valid, weights).loss
    if not diagnostics_are_due():
        return loss_info._replace(loss=loss), ()
    with torch.no_grad():
        seen = aggregate_loss(algorithm.calc_loss(infos), batch.valid, weights)
        # What is recorded is summed up step by step, which differs by rounding.
        difference = seen.loss - loss
    return seen._replace(loss=loss + difference), infos
