"""Mini-batches of which only a part is there at a time, for memory or on this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.algorithms.learning.batch_loss import BatchLoss
from alf_lite.algorithms.learning.training_batches import TrainingBatch, parts_of
from alf_lite.data_structures import LossInfo
from alf_lite.errors import ConfigError
from alf_lite.networks.batch_norm import normalizes_by_batch
from alf_lite.optimizers.optimizer import Optimizer
from alf_lite.utils.losses import losses_of_part
from alf_lite.utils.tensor_utils import flatten_outer


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
    return batch._replace(rollout_info=info, flat=(inputs, flatten_outer(info), state))


def accumulate_gradient(
    algorithm: Algorithm,
    batch: TrainingBatch,
    num_parts: int,
    loss_of: Callable[[TrainingBatch], BatchLoss],
    optimizers: Iterable[Optimizer],
) -> BatchLoss:
    """The gradient of the mean loss of a batch that is cut in parts, one graph a time.

    Args:
        algorithm: whose parameters get it.
        batch: [T, B, ...].
        num_parts: of about B / ``num_parts`` columns each.
        loss_of: a part, with ``num_valid``.
        optimizers: that train the parameters.

    Returns:
        As of the whole batch, without graph.
    """
    for optimizer in optimizers:
        optimizer.zero_grad()
    total, count = torch.zeros(()), torch.zeros(())
    parts: list[BatchLoss] = []
    (whole,) = with_batch_statistics(algorithm, [batch])
    for columns in parts_of(whole, num_parts):
        with losses_of_part():
            part = loss_of(columns)
        loss, num_valid = part.loss_info.loss, part.loss_info.num_valid
        assert isinstance(loss, Tensor), "it was aggregated"
        weighted = loss * num_valid
        weighted.backward()
        total = total.to(weighted.device) + weighted.detach()
        count = count.to(weighted.device) + num_valid
        parts.append(_without_graph(part))
    divisor = count.clamp(min=1)
    gradients = [
        parameter.grad
        for optimizer in optimizers
        for parameter in optimizer.parameters
        if parameter.grad is not None
    ]
    torch._foreach_div_(gradients, divisor)
    together = LossInfo(
        loss=total / divisor,
        extra=_joined([part.loss_info.extra for part in parts]),
        priority=_joined([part.loss_info.priority for part in parts]),
        num_valid=count,
    )
    return BatchLoss(batch, together, _joined([part.info for part in parts]))


def _without_graph(part: BatchLoss) -> BatchLoss:
    """The graph's memory is what parts save."""
    loss_info, info = nest.map_structure(torch.detach, (part.loss_info, part.info))
    return part._replace(loss_info=loss_info, info=info)


def _joined(parts: Sequence[nest.Nest]) -> nest.Nest:
    """What the parts of a batch [T, b, ...] say, or [b], as that of the batch.

    Of single numbers [] it is their mean.
    """

    def join(*leaves: Tensor) -> Tensor:
        if leaves[0].ndim == 0:
            return torch.stack(leaves).float().mean()
        return torch.cat(leaves, dim=min(1, leaves[0].ndim - 1))

    return nest.map_structure(join, *parts)


def check_parts(algorithm: Algorithm) -> None:
    """Refuses to cut batches where their parts would not add up to the whole."""
    name = algorithm.name
    for module in algorithm.modules():
        if normalizes_by_batch(module):
            raise ConfigError(
                f"TrainerConfig.gradient_accumulation: {name} normalizes by the "
                f"statistics of its batch ({type(module).__name__}), which parts of it "
                "do not have. Set gradient_accumulation = 1, or batch_norm = False."
            )
    if algorithm.has_offline_loss:
        raise ConfigError(
            f"TrainerConfig.gradient_accumulation: {name} has a loss of its own for "
            "recorded steps, whose batches are not cut. Set gradient_accumulation = 1."
        )
