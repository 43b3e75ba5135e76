"""Mini-batches and losses of algorithms that are trained together, by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.data_structures import LossInfo
from alf_lite.errors import ConfigError
from alf_lite.utils.diagnostics import diagnostic
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


def with_rows(info: Nest, shape: Sequence[int], name: str, part: Algorithm) -> Nest:
    """[B, T or T-1, ...] → [B, T, ...] or less; a last row too few is not trained.

    Args:
        info: of ``preprocess_experience`` of a part.
        shape: [B, T] of the steps that the RL algorithm trains.
        name: of the part, for messages, as what follows.
        part: whose info it is.

    Raises:
        ConfigError: if there are not so many rows.
    """
    batch_size, num_rows = shape
    least = max(1, num_rows - 1)

    def cut(t: Tensor) -> Tensor:
        if t.ndim < 2 or len(t) != batch_size or t.shape[1] < least:
            raise ConfigError(
                f"{type(part).__name__}.preprocess_experience (part {name!r}): "
                "expected an info [B, T, ...] or [B, T-1, ...] of steps [B, T], of "
                f"which the RL algorithm trains {list(shape)}, got {list(t.shape)}"
            )
        if t.shape[1] == num_rows - 1:
            return torch.cat([t, t[:, -1:]], dim=1)
        return t[:, :num_rows]

    return nest.map_structure(cut, info)


def sum_of_losses(
    parts: Mapping[str, Algorithm], losses: Mapping[str, LossInfo]
) -> LossInfo:
    """One loss; its diagnostics by name, with what each of the parts adds to it.

    It has the rows of the RL algorithm's. Of a part that has fewer, the others are 0,
    so that what is left out there does not change how much a step counts.

    Args:
        parts: by name; "rl" is the RL algorithm.
        losses: what ``calc_loss`` of each returned.

    Raises:
        ConfigError: if a loss is not [T, B] with the B of the others.
    """
    order = ["rl", *(name for name in losses if name != "rl")]
    like = next((x for n in order if isinstance(x := losses[n].loss, Tensor)), None)
    if like is not None:
        shape = like.shape
        losses = {n: with_loss_of(shape, n, parts[n], x) for n, x in losses.items()}
    by_step = [x.loss for x in losses.values() if isinstance(x.loss, Tensor)]
    scalars = [
        x.scalar_loss for x in losses.values() if isinstance(x.scalar_loss, Tensor)
    ]
    return LossInfo(
        loss=total(by_step) if by_step else (),
        scalar_loss=total(scalars) if scalars else (),
        extra=diagnostic(lambda: {n: _extra(n, x) for n, x in losses.items()}),
        priority=losses["rl"].priority,
    )


def with_loss_of(
    shape: Sequence[int], name: str, part: Algorithm, loss_info: LossInfo
) -> LossInfo:
    """With ``loss`` of this shape [T, B]: cut, or 0 in the last rows; () stays.

    Raises:
        ConfigError: if it has not one number for each step.
    """
    loss: Any = loss_info.loss
    if isinstance(loss, tuple) and not loss:
        return loss_info
    fits = isinstance(loss, Tensor) and loss.ndim == 2 and len(shape) == 2
    if not (fits and loss.shape[1] == shape[1]):
        got = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        expected = "[T, B]"
        if name != "rl":
            expected += f" like that of the RL algorithm, {list(shape)}"
        raise ConfigError(
            f"{type(part).__name__}.calc_loss (part {name!r}): expected a loss "
            f"{expected}, one number for each step, got {got}. A single number for all "
            "steps is a scalar_loss."
        )
    missing = shape[0] - len(loss)
    if missing > 0:
        loss = torch.cat([loss, loss.new_zeros(missing, shape[1])])
    elif missing < 0:
        loss = loss[: shape[0]]
    return loss_info._replace(loss=loss)


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
