from __future__ import annotations

import math

import pytest
import torch

from alf_lite.distributions.discrete import (
    Categorical,
    CategoryLayout,
    MultiBernoulli,
    MultiCategorical,
)
from alf_lite.distributions.masked_logits import mask_log_odds, mask_logits
from alf_lite.tensor_specs import BoundedTensorSpec

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_probabilities_are_exactly_zero_or_those_of_the_rest(dtype):
    logits = torch.tensor([[0.0, 1.0, 2.0, -3.0]], dtype=dtype)
    allowed = torch.tensor([[True, False, True, True]])
    probs = mask_logits(logits, allowed).softmax(-1)
    assert probs[0, 1] == 0
    total = 1 + math.exp(2) + math.exp(-3)
    expected = [1 / total, 0.0, math.exp(2) / total, math.exp(-3) / total]
    precision = {"abs": 4 * torch.finfo(dtype).eps}
    assert probs[0].tolist() == pytest.approx(expected, **precision)


@pytest.mark.parametrize("dtype", DTYPES)
def test_probabilities_of_binary_choices_are_exactly_zero_or_one(dtype):
    log_odds = torch.tensor([5.0, 5.0, -5.0, 0.0], dtype=dtype)
    allowed = torch.tensor([[True, True], [True, False], [False, True], [False, True]])
    probs = mask_log_odds(log_odds, allowed).sigmoid()
    assert probs[1:].tolist() == [0.0, 1.0, 1.0]
    assert probs[0] == log_odds[0].sigmoid()


PAIR = CategoryLayout(BoundedTensorSpec((2,), torch.int64, 0, [1, 2]))


def distributions_with_masks(dtype=torch.float32):
    """Each with two masks, and an action that is allowed by none, one or both."""
    torch.manual_seed(0)
    t, f = True, False
    return [
        (
            Categorical(torch.randn(3, 4, dtype=dtype)),
            torch.tensor([[t, f, t, f], [t, t, t, t], [f, f, t, f]]),
            torch.tensor([[f, t, f, t], [t, f, f, f], [t, t, f, t]]),
            torch.tensor([1, 1, 2]),
        ),
        (
            MultiCategorical(torch.randn(2, 5, dtype=dtype), PAIR),
            torch.tensor([[t, f, f, f, t], [t, t, f, t, t]]),
            torch.tensor([[f, t, t, t, f], [t, f, t, f, f]]),
            torch.tensor([[1, 0], [1, 2]]),
        ),
        (
            MultiBernoulli(torch.randn(2, 2, dtype=dtype)),
            torch.tensor([[t, f, f, t], [t, t, t, t]]),
            torch.tensor([[f, t, t, f], [t, f, t, t]]),
            torch.tensor([[1, 1], [0, 0]]),
        ),
    ]


@pytest.mark.parametrize("dtype", DTYPES[:1] + DTYPES[2:])
@pytest.mark.parametrize("index", range(3))
def test_everything_stays_finite_and_so_do_the_gradients(index, dtype):
    distribution, mask, other_mask, action = distributions_with_masks(dtype)[index]
    logits = distribution.logits.requires_grad_()
    masked, other = distribution.masked(mask), distribution.masked(other_mask)
    for values in (
        masked.log_prob(action),
        masked.entropy(),
        masked.kl_divergence(other),
        other.kl_divergence(masked),
        masked.kl_divergence(distribution),
        distribution.kl_divergence(masked),
        1e4 * masked.log_prob(action),
    ):
        logits.grad = None
        values.sum().backward(retain_graph=True)
        assert values.isfinite().all()
        assert logits.grad.isfinite().all()
    assert (masked.entropy() >= 0).all()


@pytest.mark.parametrize("index", range(3))
def test_a_divergence_is_that_over_the_values_left(index):
    distribution, mask, _, _ = distributions_with_masks()[index]
    logits = distribution.logits
    p = distribution.masked(mask)
    q = type(distribution)(logits + torch.randn_like(logits), *constants(distribution))
    q = q.masked(mask)
    torch.manual_seed(1)
    draws = p.sample((40000,))
    estimate = (p.log_prob(draws) - q.log_prob(draws)).mean(0)
    torch.testing.assert_close(p.kl_divergence(q), estimate, atol=0.02, rtol=0)
    torch.testing.assert_close(
        p.kl_divergence(p), torch.zeros(len(mask)), atol=1e-6, rtol=0
    )


def constants(distribution) -> tuple:
    return tuple(getattr(distribution, name) for name in distribution.constant_names)


@pytest.mark.parametrize("index", range(3))
def test_what_is_ruled_out_gets_no_gradient(index):
    distribution, mask, _, _ = distributions_with_masks()[index]
    logits = distribution.logits.requires_grad_()
    masked = distribution.masked(mask)
    (masked.log_prob(masked.mode) + masked.entropy()).sum().backward()
    if isinstance(distribution, MultiBernoulli):
        mask = mask.unflatten(-1, (2, 2)).all(-1)
    assert (logits.grad[~mask] == 0).all()
    assert (logits.grad[mask] != 0).any()


def test_the_constants_of_a_distribution_stay():
    allowed = torch.ones(1, 2, dtype=torch.bool)
    masked = Categorical(torch.zeros(1, 2), 5, torch.int32).masked(allowed)
    assert (masked.minimum, masked.dtype) == (5, torch.int32)
    switch = MultiBernoulli(torch.zeros(1), 0, torch.bool).masked(allowed)
    assert switch.mode.dtype == torch.bool
    assert switch.entropy().item() == pytest.approx(math.log(2))
