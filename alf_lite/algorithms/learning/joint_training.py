"""Mini-batches and losses of algorithms that are trained together, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.data_structures import LossInfo
from alf_lite.utils.summary import diagnostic
from alf_lite.utils.tensor_utils import total

Nest = Any
Infos = dict[str, Nest]  # by the names of the parts


def part_of_batch(batch: TrainingBatch, name: str) -> TrainingBatch:
    """The mini-batch with what belongs to one part."""

    def part_of(info: Infos, state: Nest) -> tuple[Nest, Nest]:
        return info[name], state.get(name, ()) if state else ()

    info, state = part_of(batch.rollout_info, batch.state)
    flat = batch.flat
    if flat != ():
        flat = (flat[0], *part_of(*flat[1:]))
    return batch._replace(rollout_info=info, state=state, flat=flat)


def with_rows(info: Nest, num_rows: int) -> Nest:
    """[B, T or T-1, ...] → [B, num_rows, ...]; a last row too few is not trained."""

    def cut(t: Tensor) -> Tensor:
        if t.shape[1] == num_rows - 1:
            return torch.cat([t, t[:, -1:]], dim=1)
        return t[:, :num_rows]

    return nest.map_structure(cut, info)


def sum_of_losses(losses: Mapping[str, LossInfo]) -> LossInfo:
    """One loss; its diagnostics by name, with what each of the parts adds to it."""
    by_step = [
        part.loss for part in losses.values() if not isinstance(part.loss, tuple)
    ]
    scalars = [
        part.scalar_loss
        for part in losses.values()
        if not isinstance(part.scalar_loss, tuple)
    ]
    num_rows = min(map(len, by_step), default=0)
    return LossInfo(
        loss=total(loss[:num_rows] for loss in by_step) if by_step else (),
        scalar_loss=total(scalars) if scalars else (),
        extra=diagnostic(lambda: {n: _extra(n, part) for n, part in losses.items()}),
        priority=losses["rl"].priority,
    )


def _extra(name: str, loss_info: LossInfo) -> Nest:
    extra = loss_info.extra
    if name == "rl":
        return extra
    if hasattr(extra, "_asdict"):
        extra = extra._asdict()
    loss = loss_info.loss
    if isinstance(loss, tuple):
        loss = loss_info.scalar_loss
    return {"loss": loss, **(extra if isinstance(extra, dict) else {"extra": extra})}
