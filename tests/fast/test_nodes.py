"""Losses and distributions in numpy are those of torch, and so are their gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from alf_lite.algorithms.parts.policy_gradient import ClippedLoss, PolicyGradientLoss
from alf_lite.distributions.continuous import DiagonalNormal
from alf_lite.distributions.discrete import Categorical
from alf_lite.fast import may_use_numpy
from alf_lite.utils import losses
from tests.fast.twins import watched, without_twins

SHAPE = (3, 20)


def both_ways(function, *inputs, order=1):
    """Values and gradients, of ``order``, in numpy and in torch."""
    with watched() as ran:
        found = outputs_and_gradients(function, inputs, order)
    assert ran
    with without_twins():
        expected = outputs_and_gradients(function, inputs, order)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def outputs_and_gradients(function, inputs, order):
    leaves = [x.clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum((o * (0.3 + i + o.detach().cos())).sum() for i, o in enumerate(outputs))
    gradients = torch.autograd.grad(total, leaves, create_graph=order > 1)
    if order > 1:
        total = sum((g * g).sum() for g in gradients)
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
    with torch.no_grad():
        again = function(*inputs)
    return *outputs, *gradients, *(again if isinstance(again, tuple) else (again,))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_clipped_loss(order, value_clip, is_weighted):
    torch.manual_seed(0)
    info = SimpleNamespace(
        log_prob=torch.randn(SHAPE),
        old_value=torch.randn(SHAPE),
        value_target=torch.randn(SHAPE),
        weights=SimpleNamespace(truncated=torch.rand(SHAPE)) if is_weighted else (),
    )
    loss = ClippedLoss(0.2, value_clip, 0.5, 0.01)
    advantage = torch.randn(SHAPE)
    inputs = [
        info.log_prob + 0.3 * torch.randn(SHAPE),
        info.old_value + 0.4 * torch.randn(SHAPE),
        torch.rand(SHAPE),
    ]

    def function(*inputs):
        total, parts = loss(*inputs, advantage, info)
        assert not parts.policy_loss.isnan().any()
        return total

    both_ways(function, *inputs, order=order)


@pytest.mark.parametrize("order", [1, 2])
def test_the_policy_gradient_loss(order):
    torch.manual_seed(0)
    advantage, target = torch.randn(2, *SHAPE)
    loss = PolicyGradientLoss(0.5, 0.1)

    def function(log_prob, value, entropy):
        entropy = entropy * log_prob.exp()
        return loss(log_prob, value, entropy, advantage, target)[0]

    both_ways(function, *torch.randn(3, *SHAPE), order=order)


@pytest.mark.parametrize("order", [1, 2])
def test_log_probabilities_and_entropies(order):
    torch.manual_seed(0)
    actions = torch.randint(5, SHAPE) + 2
    both_ways(
        lambda logits: Categorical(logits, 2).log_prob_and_entropy(actions),
        torch.randn(*SHAPE, 5),
        order=order,
    )
    vectors = torch.randn(*SHAPE, 4)
    both_ways(
        lambda loc, scale: DiagonalNormal(loc, scale).log_prob_and_entropy(vectors),
        torch.randn(*SHAPE, 4),
        0.5 + torch.rand(*SHAPE, 4),
        order=order,
    )


def test_what_is_ruled_out_has_no_gradient():
    logits = torch.tensor(
        [[0.5, -torch.inf, 1.0], [-3e38, 0.0, 2.0]], requires_grad=True
    )
    log_prob, entropy = Categorical(logits).log_prob_and_entropy(torch.tensor([2, 1]))
    (3 * log_prob + 5 * entropy).sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 1] == logits.grad[1, 0] == 0


@pytest.mark.parametrize("order", [1, 2])
def test_the_mean_over_valid_steps(order):
    torch.manual_seed(0)
    for valid in (torch.rand(SHAPE) < 0.7, torch.ones(SHAPE, dtype=torch.bool)):
        both_ways(
            lambda x, valid=valid: losses.masked_mean(x.square(), valid),
            torch.randn(SHAPE),
            order=order,
        )
    x = torch.tensor([[1.0, torch.nan]])
    assert losses.masked_mean(x, torch.tensor([[True, False]])) == 1
    assert losses.masked_mean(x, torch.tensor([[False, False]])) == 0


def test_what_was_changed_before_the_gradient_is_noticed():
    x = torch.randn(SHAPE, requires_grad=True)
    y = x * 1
    mean = losses.masked_mean(y, torch.ones(SHAPE, dtype=torch.bool))
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        mean.backward()


def test_numpy_is_left_alone_where_it_cannot_be_used():
    x = torch.randn(SHAPE)
    asked = []

    def function(x):
        asked.append(may_use_numpy(x))
        return x.sum()

    assert may_use_numpy(x)
    assert not may_use_numpy(x.double())
    torch.func.grad(function)(x)
    assert asked == [False]


@pytest.mark.ci
def test_a_graph_for_any_batch_is_not_asked_for_its_size():
    class Doubles(torch.nn.Module):
        def forward(self, x):
            return x + x if may_use_numpy(x) else 2 * x

    with torch.no_grad():
        program = torch.export.export(
            Doubles(),
            (torch.ones(2, 3),),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            strict=False,
        )
    x = torch.randn(20_000, 3)
    torch.testing.assert_close(program.module()(x), 2 * x)
