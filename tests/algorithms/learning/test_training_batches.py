from __future__ import annotations

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import (
    TrainingBatch,
    cut_sequences,
    passes,
    shuffled_mini_batches,
    transpose,
)
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError


def numbered(num_rows: int, num_steps: int) -> dict:
    """[B, T] batch whose values are 100·b + t."""
    values = 100 * torch.arange(num_rows)[:, None] + torch.arange(num_steps)
    return {"x": values, "y": values[..., None].expand(-1, -1, 2)}


def test_transpose_swaps_the_first_two_dimensions():
    swapped = transpose(numbered(2, 3))
    assert swapped["x"].shape == (3, 2)
    assert swapped["y"].shape == (3, 2, 2)
    assert swapped["x"][2, 1] == 102


def test_sequences_are_consecutive_and_drop_the_bootstrap_row():
    sequences = cut_sequences(numbered(2, 7), num_steps=6, length=3)
    assert sequences["x"].tolist() == [
        [0, 1, 2],
        [3, 4, 5],
        [100, 101, 102],
        [103, 104, 105],
    ]
    assert sequences["y"].shape == (4, 3, 2)


def test_a_length_that_does_not_divide_the_unroll_is_refused():
    with pytest.raises(
        ConfigError, match="mini_batch_length=4 must divide the 6 steps"
    ):
        cut_sequences(numbered(2, 7), num_steps=6, length=4)


@pytest.mark.parametrize(
    ("num_rows", "size", "sizes"),
    [(12, 4, [4, 4, 4]), (264, 32, [33] * 8), (5, 2, [3, 2]), (3, 10, [3])],
)
def test_mini_batches_cover_every_row_once_and_none_is_small(num_rows, size, sizes):
    batches = list(shuffled_mini_batches(numbered(num_rows, 2), size))
    assert [nest.batch_size(transpose(b)) for b in batches] == sizes
    rows = torch.cat([b["x"][0] for b in batches])
    assert sorted(rows.tolist()) == [100 * i for i in range(num_rows)]
    for batch in batches:  # all leaves are shuffled alike, the steps stay in order
        assert torch.equal(batch["y"][..., 1], batch["x"])
        assert torch.equal(batch["x"][1], batch["x"][0] + 1)


def test_the_order_follows_torchs_seed():
    def order(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return next(shuffled_mini_batches(numbered(50, 1), 50))["x"][0].tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.parametrize(("length", "size"), [(1, None), (1, 4), (3, None), (3, 4)])
def test_mini_batches_without_their_time_are_the_same_steps(length, size):
    rows = numbered(9, length)
    valid = rows["x"] % 2 == 0
    batch = TrainingBatch(TimeStep(reward=rows["x"]), rows, (), valid)
    mini_batches = list(passes(batch, 2, size))
    assert len(mini_batches) == (2 if size is None else 4)
    for mini_batch in mini_batches:
        known = mini_batch.flattened()
        computed = mini_batch._replace(flat=()).flattened()
        assert nest.flatten(known)[0].shape == mini_batch.valid.flatten().shape
        torch.testing.assert_close(nest.flatten(known), nest.flatten(computed))
