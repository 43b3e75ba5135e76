"""Cuts a batch of experience [B, T] into shuffled mini-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from alf_lite import nest
from alf_lite.errors import ConfigError

Nest = Any


def transpose(batch: Nest) -> Nest:
    """[T, B, ...] <-> [B, T, ...] as views."""
    return nest.map_structure(lambda t: t.transpose(0, 1), batch)


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


def shuffled_mini_batches(batch: Nest, mini_batch_size: int) -> Iterator[Nest]:
    """Time-major mini-batches [T, b, ...] that cover ``batch`` [N, T, ...] once.

    The rows are shuffled with torch's generator. If the size does not divide N, the
    mini-batches are made slightly larger so that none is much smaller than the others.
    """
    num_rows = nest.batch_size(batch)
    num_batches = max(1, num_rows // mini_batch_size)
    order = torch.randperm(num_rows, device=nest.flatten(batch)[0].device)
    # One gather per leaf for all mini-batches, which are then views of it.
    leaves = [
        leaf.index_select(0, order).tensor_split(num_batches)
        for leaf in nest.flatten(batch)
    ]
    for mini_batch in zip(*leaves, strict=True):
        yield nest.pack_sequence_as(batch, [t.transpose(0, 1) for t in mini_batch])
