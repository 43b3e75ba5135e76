"""Losses and masked statistics equal the same statistic of the valid entries."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alf_lite.utils import losses

bounded = settings(max_examples=50)


@st.composite
def masked_tensors(draw):
    """(x [T, B, ...], y like x, valid [T, B]), x with NaN where it is not valid.

    float32 and float64 are computed by different bodies, see :mod:`alf_lite.fast`.
    """
    shape = draw(st.sampled_from([(1, 1), (7, 3), (4, 2, 2)]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x, y = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    valid = torch.rand(shape[:2], generator=generator) < draw(
        st.sampled_from([0.0, 0.5, 1.0])
    )
    x[~valid] = math.nan
    return x, y, valid


def test_squared_is_not_halved():
    got = losses.squared(torch.tensor([1.0, -2.0]), torch.tensor([3.0, 1.0]))
    assert got.tolist() == [4.0, 9.0]


@pytest.mark.parametrize("delta", [0.5, 1.0, 3.0])
def test_huber_equals_its_two_branches(delta):
    error = torch.linspace(-5, 5, 41)
    size = error.abs()
    expected = torch.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta))
    got = losses.huber(error, torch.zeros(41), delta)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("loss", [losses.squared, losses.huber])
def test_silent_broadcasting_is_an_error(loss):
    with pytest.raises(ValueError, match=r"\[4\] and \[4, 1\]"):
        loss(torch.zeros(4), torch.zeros(4, 1))


@bounded
@given(masked_tensors())
def test_masked_mean_is_the_mean_of_the_valid_entries(arrays):
    x, _, valid = arrays
    expected = x[valid].mean().item() if valid.any() else 0.0
    assert losses.masked_mean(x, valid).item() == pytest.approx(expected, abs=1e-6)


def test_masked_mean_without_mask_is_the_mean():
    x = torch.rand(3, 4)
    assert torch.equal(losses.masked_mean(x), x.mean())


def test_weights_scale_the_steps_but_not_the_divisor():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    valid = torch.tensor([[True, True], [True, False]])
    weights = torch.tensor([0.5, 0.25])  # [B]
    expected = (0.5 * 1 + 0.25 * 2 + 0.5 * 3) / 3
    assert losses.masked_mean(x, valid, weights).item() == pytest.approx(expected)
    by_step = weights.expand(2, 2)  # [T, B]
    assert losses.masked_mean(x, valid, by_step).item() == pytest.approx(expected)
    assert losses.masked_mean(x, None, weights).item() == pytest.approx(
        (0.5 * 1 + 0.25 * 2 + 0.5 * 3 + 0.25 * 4) / 4
    )


def test_weights_of_a_square_batch_are_by_sequence():
    x = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert losses.masked_mean(x, None, torch.tensor([4.0, 0.0])).item() == 1.0


def test_weights_apply_to_every_reward_dimension():
    x = torch.ones(2, 3, 5)
    weights = torch.tensor([1.0, 2.0, 3.0])
    valid = torch.ones(2, 3, dtype=torch.bool)
    assert losses.masked_mean(x, valid, weights).item() == pytest.approx(2.0)


def test_masked_entries_get_no_gradient():
    x = torch.tensor([[1.0, math.inf], [2.0, 3.0]], requires_grad=True)
    valid = torch.tensor([[True, False], [True, True]])
    losses.masked_mean(x, valid).backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1, 0], [1, 1]]) / 3)


def test_without_valid_steps_the_loss_is_zero_and_differentiable():
    x = torch.rand(2, 2, requires_grad=True)
    loss = losses.masked_mean(x, torch.zeros(2, 2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(x.grad, torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("valid", "weights"),
    [
        (torch.ones(3, 1, dtype=torch.bool), None),
        (torch.ones(2, dtype=torch.bool), None),
        (None, torch.ones(4)),
        (None, torch.ones(2, 3)),
    ],
)
def test_masks_and_weights_of_another_shape_are_errors(valid, weights):
    with pytest.raises(ValueError, match=r"\[3, 2\] does not begin with"):
        losses.masked_mean(torch.rand(3, 2), valid, weights)


@contextlib.contextmanager
def two_ranks(batches_of_other: int = 1) -> Iterator[None]:
    """This one, and another that has the same batch, or none."""
    factor = 1 + batches_of_other
    both = SimpleNamespace(size=2, sum_=lambda sums: sums.mul_(factor))
    with mock.patch.object(losses, "ranks", both):
        yield


def beside_an_empty_rank() -> contextlib.AbstractContextManager[None]:
    return two_ranks(batches_of_other=0)


RANKS = [contextlib.nullcontext, two_ranks, beside_an_empty_rank]


@pytest.mark.parametrize("together", RANKS)
@pytest.mark.parametrize("epsilon", [1e-8, 0.5])
@bounded
@given(arrays=masked_tensors())
def test_normalized_valid_entries_have_mean_0_and_std_1(together, epsilon, arrays):
    x, _, valid = arrays
    with together():
        got = losses.normalize(x, valid, epsilon)
    assert torch.all(got[~valid] == 0)
    entries = x[valid].double().numpy()
    if entries.size:
        expected = (entries - entries.mean()) / (entries.std() + epsilon)
        np.testing.assert_allclose(got[valid].numpy(), expected, atol=1e-4)


def test_several_batches_are_normalized_each_by_itself():
    x, y = torch.randn(4, 3), 5 + torch.randn(2, 2)
    valid = torch.rand(4, 3) < 0.7
    batches = [(x, valid), (y, torch.ones(2, 2, dtype=torch.bool))]
    expected = [losses.normalize(*batch) for batch in batches]
    torch.testing.assert_close(losses.normalize_each(batches), expected)
    with two_ranks():
        torch.testing.assert_close(losses.normalize_each(batches), expected)
        torch.testing.assert_close(losses.normalize(y), expected[1])


def test_normalize_without_mask_equals_a_full_mask():
    x = torch.randn(9, 4) + 5
    full = torch.ones(9, 4, dtype=torch.bool)
    torch.testing.assert_close(losses.normalize(x), losses.normalize(x, full))


@pytest.mark.parametrize("together", RANKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])
@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_entries_normalize_to_zero(together, dtype, value, count, masked):
    x = torch.full((count, 2), value, dtype=dtype)
    valid = torch.ones(count, 2, dtype=torch.bool) if masked else None
    with together():
        assert torch.equal(losses.normalize(x, valid), torch.zeros_like(x))


@bounded
@given(masked_tensors())
def test_explained_variance_equals_numpy(arrays):
    target, prediction, valid = arrays
    got = losses.explained_variance(prediction, target, valid).item()
    t, p = target[valid].double().numpy(), prediction[valid].double().numpy()
    expected = 1 - (t - p).var() / t.var() if t.size > 1 else 0.0
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_explained_variance_of_targets_that_do_not_vary_is_zero():
    target = torch.full((1000, 2), 0.1)
    assert losses.explained_variance(torch.rand(1000, 2), target).item() == 0.0


def test_errors_below_and_above_weigh_differently():
    error = torch.tensor([-2.0, -1e-9, 0.0, 3.0], requires_grad=True)
    weights = losses.expectile_weights(error, 0.8)
    assert weights.tolist() == pytest.approx([0.2, 0.2, 0.8, 0.8])
    assert not weights.requires_grad


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.7, 0.9])
def test_the_minimum_is_the_expectile(expectile):
    # Of 0 and 1, equally often: τ (1 − v) = (1 − τ) v, hence v = τ.
    x, v = torch.tensor([0.0, 1.0]), torch.tensor(0.3)
    for _ in range(50):  # the fixed point of the weighted mean
        w = losses.expectile_weights(x - v, expectile)
        v = (w * x).sum() / w.sum()
    assert v.item() == pytest.approx(expectile, abs=1e-5)


def test_weights_grow_with_the_advantage_up_to_the_largest():
    advantage = torch.tensor([-1.0, 0.0, 0.5, 1.0, 1e6], requires_grad=True)
    weights = losses.exponential_weights(advantage, 3.0, 10.0)
    expected = [math.exp(-3), 1.0, math.exp(1.5), 10.0, 10.0]
    assert weights.tolist() == pytest.approx(expected, rel=1e-5)
    assert not weights.requires_grad
    assert losses.exponential_weights(torch.tensor([-1e6]), 3.0, 10.0).item() == 0
