"""What updates are made on: batches of experience, and mini-batches cut from them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts.transitions import Transition
from alf_lite.data_structures import BatchInfo, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.row_layout import PackedSteps
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any

# What a transition has of its steps: neither env_id nor env_info.
_STEP = tuple(f"time_step.{name}" for name in TimeStep._fields[:5])
_NEXT = tuple(
    f"time_step.{name}" for name in ("prev_action", "reward", "discount", "observation")
)

_transpose = operator.methodcaller("transpose", 0, 1)


class TrainingBatch(NamedTuple):
    """Preprocessed experience; [B, T, ...] as a whole and [T, B, ...] as mini-batch."""

    inputs: TimeStep
    rollout_info: Nest
    state: Nest  # passed into rollout_step; the first of T starts training
    valid: Tensor  # bool, the steps that count
    batch_info: Nest = BatchInfo()  # [B], of a batch from a replay buffer
    # Of a mini-batch, (inputs, rollout_info, state) [T·B, ...], if this is known. The
    # latter two may be nowhere else.
    flat: Nest = ()

    def flattened(self) -> Nest:
        """(inputs, rollout_info, state) of a mini-batch, with all steps in a row."""
        return flatten_outer(self[:3]) if self.flat == () else self.flat

    def rows(self, begin: int, end: int | None) -> TrainingBatch:
        """Steps ``begin`` to ``end`` (exclusive) of a time-major mini-batch."""
        if begin == 0 and end is None:
            return self
        batch_info = self.batch_info
        steps = self._replace(batch_info=(), flat=())
        cut = nest.map_structure(lambda t: t[begin:end], steps)
        return cut._replace(batch_info=batch_info)


def transpose(batch: Nest) -> Nest:
    """[T, B, ...] <-> [B, T, ...] as views."""
    return nest.map_structure(_transpose, batch)


def time_major(batch: TrainingBatch) -> TrainingBatch:
    """The batch-major ``batch`` with time first."""
    inputs, rollout_info, state, valid = transpose(batch[:4])
    return TrainingBatch(inputs, rollout_info, state, valid, batch.batch_info)


def cut_sequences(batch: Nest, num_steps: int, length: int) -> Nest:
    """The first ``num_steps`` steps as sequences of ``length``: [B·n, length, ...].

    Args:
        batch: [B, T, ...] with T >= num_steps.
        num_steps: how many of the T steps to use.
        length: steps per sequence; must divide ``num_steps``.

    Raises:
        ConfigError: if it does not.
    """
    if num_steps % length:
        raise ConfigError(
            f"mini_batch_length={length} must divide the {num_steps} steps of an "
            "unroll (TrainerConfig.unroll_length)"
        )
    return nest.map_structure(
        lambda t: t[:, :num_steps].unflatten(1, (-1, length)).flatten(0, 1), batch
    )


def num_mini_batches(num_rows: int, mini_batch_size: int | None) -> int:
    """How many mini-batches ``num_rows`` sequences are cut into; None: all are one."""
    return 1 if mini_batch_size is None else max(1, num_rows // mini_batch_size)


def shuffled_mini_batches(batch: Nest, mini_batch_size: int) -> Iterator[Nest]:
    """Time-major mini-batches [T, b, ...] that cover ``batch`` [N, T, ...] once.

    The rows are shuffled with torch's generator. If the size does not divide N, the
    mini-batches are made slightly larger so that none is much smaller than the others.
    Those of single steps are also given without their time.
    """
    num_rows = nest.batch_size(batch)
    num_batches = num_mini_batches(num_rows, mini_batch_size)
    order = torch.randperm(num_rows, device=nest.flatten(batch)[0].device)
    sizes = [len(piece) for piece in order.tensor_split(num_batches)]
    leaves = nest.flatten(batch)
    # One gather per leaf for all mini-batches, which are then views of it.
    if not isinstance(batch, TrainingBatch) or batch.valid.shape[1] > 1:
        rows = [leaf.index_select(0, order).transpose(0, 1) for leaf in leaves]
        split = [leaf.split_with_sizes(sizes, dim=1) for leaf in rows]
        for pieces in zip(*split, strict=True):
            yield nest.pack_sequence_as(batch, pieces)
        return
    split = [leaf.squeeze(1).index_select(0, order).split(sizes) for leaf in leaves]
    parts = batch[:3]  # inputs, rollout_info, state
    num_flat = len(nest.flatten(parts))
    for pieces in zip(*split, strict=True):
        timed = nest.pack_sequence_as(batch, [piece.unsqueeze(0) for piece in pieces])
        yield timed._replace(flat=nest.pack_sequence_as(parts, pieces[:num_flat]))


def passes(
    batch: TrainingBatch,
    number: int,
    mini_batch_size: int | None,
    prepare: Callable[[list[TrainingBatch]], Iterable[TrainingBatch]] = iter,
) -> Iterator[TrainingBatch]:
    """The mini-batches of all passes over sequences [N, T, ...], time-major.

    Args:
        batch: the sequences.
        number: of passes.
        mini_batch_size: how many of them are in a mini-batch, see
            :func:`shuffled_mini_batches`; None: all.
        prepare: is given all mini-batches of a pass, once if they stay the same.
    """
    if mini_batch_size is not None and mini_batch_size < batch.valid.shape[0]:
        for _ in range(number):
            yield from prepare([*shuffled_mini_batches(batch, mini_batch_size)])
        return
    mini_batch = time_major(batch)
    if number > 1 and nest.is_empty(batch.state):
        mini_batch = mini_batch._replace(flat=mini_batch.flattened())
    (mini_batch,) = prepare([mini_batch])
    yield from itertools.repeat(mini_batch, number)


def consecutive_mini_batches(
    batch: TrainingBatch, mini_batch_size: int
) -> Iterator[TrainingBatch]:
    """A batch [B, T, ...] whose rows are random already, in pieces, time-major."""
    num_rows = batch.valid.shape[0]
    if num_rows <= mini_batch_size:
        yield time_major(batch)
        return
    for begin in range(0, num_rows, mini_batch_size):
        yield time_major(nest.narrow(batch, begin, begin + mini_batch_size))


def paired_batch(pairs: PackedSteps, valid: Tensor, info: BatchInfo) -> TrainingBatch:
    """The mini-batch of a step each and what it bootstraps from.

    Args:
        pairs: [B, 2], as :meth:`RLContract.step_pairing` makes them.
        valid: [T, B], of the windows that they were made of.
        info: where these begin, [B].
    """
    step = TimeStep(*pairs.part(np.s_[:, 0], _STEP))
    inputs = TimeStep(*pairs.part(np.s_[None, :, 0], _STEP))
    action, reward, discount, observation = pairs.part(np.s_[:, 1], _NEXT)
    transition = Transition(action, reward, discount, next_observation=observation)
    return TrainingBatch(
        inputs,
        rollout_info=(),
        state=(),
        valid=valid,
        batch_info=info,
        flat=(step, transition, ()),
    )


def parts_of(batch: TrainingBatch, number: int) -> Iterator[TrainingBatch]:
    """A mini-batch [T, B, ...] in parts of about B / ``number`` columns each."""
    num_columns = batch.valid.shape[1]
    for columns in torch.arange(num_columns).tensor_split(min(number, num_columns)):
        begin, end = int(columns[0]), int(columns[-1]) + 1
        inputs, rollout_info, state, valid = nest.narrow(batch[:4], begin, end, dim=1)
        batch_info = nest.narrow(batch.batch_info, begin, end)
        flat = nest.map_structure(
            lambda t, b=begin, e=end: t.unflatten(0, (-1, num_columns))[:, b:e].flatten(
                0, 1
            ),
            batch.flat,
        )
        yield TrainingBatch(inputs, rollout_info, state, valid, batch_info, flat)


def with_executed_action(rollout_info: Nest, action: Nest) -> Nest:
    """``rollout_info`` with the action that was executed in its ``action``.

    A random policy or an expert may have acted in place of the algorithm. Info without
    such a field or key stays as it is.
    """
    if isinstance(rollout_info, dict) and "action" in rollout_info:
        return rollout_info | {"action": action}
    if "action" in getattr(rollout_info, "_fields", ()):
        return rollout_info._replace(action=action)
    return rollout_info
