from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as td

from alf_lite.distributions.discrete import (
    Categorical,
    CategoryLayout,
    MultiBernoulli,
    MultiCategorical,
    mask_log_odds,
    mask_logits,
)
from alf_lite.distributions.mixtures import NormalMixture
from alf_lite.tensor_specs import BoundedTensorSpec

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def layout(minimum, maximum, shape=None, dtype=torch.int64):
    shape = (len(maximum),) if shape is None else shape
    return CategoryLayout(BoundedTensorSpec(shape, dtype, minimum, maximum))


# Categorical


def test_categorical_starts_at_minimum():
    distribution = Categorical(torch.tensor([[0.0, 2.0]]).repeat(100, 1), minimum=5)
    torch.manual_seed(0)
    assert set(distribution.sample().tolist()) == {5, 6}
    assert set(distribution.mode.tolist()) == {6}
    expected = torch.tensor([0.0, 2.0]).log_softmax(-1)
    for value in (5, 6):
        log_prob = distribution.log_prob(torch.full((100,), value))
        torch.testing.assert_close(log_prob, expected[value - 5].expand(100))
    negative = Categorical(torch.zeros(100, 3), minimum=-1)
    assert set(negative.sample().tolist()) == {-1, 0, 1}


def test_categorical_keeps_the_dtype_of_the_spec():
    distribution = Categorical(torch.zeros(2, 3), dtype=torch.int32)
    action = distribution.sample()
    assert action.dtype == distribution.mode.dtype == torch.int32
    assert distribution.log_prob(action).shape == (2,)


@pytest.mark.parametrize("low", [-math.inf, -1e30])
def test_excluded_categories_are_never_drawn_and_leave_everything_finite(low):
    logits = torch.tensor([[0.0, low, 1.0]]).repeat(2000, 1).requires_grad_()
    distribution = Categorical(logits)
    torch.manual_seed(0)
    action = distribution.sample()
    assert (action != 1).all()
    loss = distribution.log_prob(action).sum() + distribution.entropy().sum()
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, 1] == 0).all()
    entropy = Categorical(torch.tensor([0.0, 1.0])).entropy()
    torch.testing.assert_close(distribution.entropy()[0], entropy)
    kl = distribution.kl_divergence(Categorical(logits * 1.0))
    torch.testing.assert_close(kl, torch.zeros(2000))


def test_excluded_categories_are_not_drawn_either_where_the_random_number_is_0(
    monkeypatch,
):
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)
    allowed = torch.tensor([False, True])
    assert Categorical(torch.zeros(2)).masked(allowed).sample() == 1
    layout = CategoryLayout(BoundedTensorSpec((2,), torch.int64, (0, 0), (2, 0)))
    choices = MultiCategorical(torch.tensor([-9.0, -9.0, 0.0, 0.0]), layout)
    assert choices.sample().tolist() == [2, 0]
    logits = torch.tensor([-torch.inf, 0.0])
    means = torch.tensor([[-1.0], [1.0]])
    mixture = NormalMixture(logits, means, torch.full((2, 1), 1e-6), torch.Size((1,)))
    assert mixture.sample() > 0


def test_half_precision_logits_are_sampled_with_enough_random_bits():
    torch.manual_seed(0)
    logits = torch.tensor([0.0, -6.0], dtype=torch.bfloat16)
    share = Categorical(logits).sample((40000,)).float().mean().item()
    assert share == pytest.approx(1 / (1 + math.exp(6)), rel=0.35)


def test_an_action_with_fewer_rows_is_refused():
    with pytest.raises(RuntimeError, match="expand"):
        Categorical(torch.zeros(8, 2)).log_prob(torch.zeros(4, dtype=torch.int64))


# MultiCategorical


@pytest.mark.parametrize(
    ("minimum", "maximum", "shape"),
    [
        ([0, 0, 0], [1, 4, 2], (3,)),  # padded
        ([2, 0, -1], [3, 4, 1], (3,)),  # padded, shifted
        ([0, 0], [2, 2], (2,)),  # rectangular
        ([5, -5], [7, -3], (2,)),  # rectangular, shifted
        ([[0, 1], [0, 0]], [[1, 2], [3, 0]], (2, 2)),  # two-dimensional
        ([4], [6], (1,)),
    ],
)
def test_multi_categorical_equals_one_categorical_per_element(minimum, maximum, shape):
    torch.manual_seed(0)
    categories = layout(minimum, maximum, shape)
    low = torch.tensor(minimum).flatten().tolist()
    sizes = [
        b - a + 1 for a, b in zip(low, torch.tensor(maximum).flatten(), strict=True)
    ]
    sizes = [int(n) for n in sizes]
    assert categories.num_logits == sum(sizes)
    batch = 50
    logits, other = torch.randn(batch, sum(sizes)), torch.randn(batch, sum(sizes))
    distribution = MultiCategorical(logits, categories)
    parts = [
        td.Categorical(logits=part, validate_args=False)
        for part in logits.split(sizes, -1)
    ]

    action = distribution.sample()
    assert action.shape == (batch, *shape)
    assert action.dtype == torch.int64
    index = action.flatten(1) - torch.tensor(low)
    assert (index >= 0).all()
    assert (index < torch.tensor(sizes)).all()
    for i, n in enumerate(sizes):
        assert set(index[:, i].tolist()) == set(range(n))
    torch.testing.assert_close(
        distribution.log_prob(action),
        sum(part.log_prob(index[:, i]) for i, part in enumerate(parts)),
    )
    torch.testing.assert_close(
        distribution.entropy(), sum(part.entropy() for part in parts)
    )
    modes = torch.stack([part.mode for part in parts], -1) + torch.tensor(low)
    assert torch.equal(distribution.mode, modes.reshape(batch, *shape))
    torch.testing.assert_close(
        distribution.kl_divergence(MultiCategorical(other, categories)),
        sum(
            td.kl_divergence(p, td.Categorical(logits=q))
            for p, q in zip(parts, other.split(sizes, -1), strict=True)
        ),
    )


def test_layouts_are_equal_if_their_specs_are():
    assert layout(0, [1, 2]) == layout(0, [1, 2])
    assert hash(layout(0, [1, 2])) == hash(layout(0, [1, 2]))
    assert layout(0, [1, 2]) != layout(0, [2, 2])


def test_constants_made_in_inference_mode_can_be_trained_with():
    with torch.inference_mode():
        categories = layout([1, 0], [2, 2])
        MultiCategorical(torch.zeros(2, 5), categories).sample()
    logits = torch.zeros(2, 5, requires_grad=True)
    distribution = MultiCategorical(logits, categories)
    distribution.log_prob(torch.tensor([[1, 0], [2, 2]])).sum().backward()
    assert logits.grad.isfinite().all()


# What all have in common


LOGITS = torch.tensor([0.0, 1.0, -2.0, 3.0, 0.5])
OF_LOGITS = {
    "categorical": (Categorical, [LOGITS.softmax(-1)]),
    "multi categorical": (
        lambda logits: MultiCategorical(logits, layout(0, [1, 2])),
        [part.softmax(-1) for part in LOGITS.split([2, 3], -1)],
    ),
    "bernoulli": (
        lambda logits: MultiBernoulli(logits, 1, torch.bool),
        [torch.stack([1 - p, p]) for p in LOGITS.sigmoid()],
    ),
}


@pytest.mark.parametrize("kind", OF_LOGITS)
def test_they_draw_their_probabilities(kind):
    torch.manual_seed(0)
    make, probs = OF_LOGITS[kind]
    draws = make(LOGITS).sample((40_000,)).reshape(40_000, -1).long()
    for column, p in zip(draws.T, probs, strict=True):
        expected = p * 40_000
        counts = torch.bincount(column, minlength=len(p))
        chi_squared = ((counts - expected).square() / expected).sum().item()
        assert chi_squared < 23  # well beyond the 0.1 % quantile


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("kind", OF_LOGITS)
def test_all_is_finite_and_reaches_every_logit(kind, scale):
    torch.manual_seed(0)
    make, _ = OF_LOGITS[kind]
    logits = (scale * torch.randn(4, 5)).requires_grad_()
    distribution = make(logits)
    loss = distribution.log_prob(make(-logits).mode) + distribution.entropy()
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logits.grad.isfinite().all()
    assert scale > 1 or (logits.grad != 0).all()


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
