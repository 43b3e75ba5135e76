"""Gradients of a loss are those of torch's own ``backward``, hooks included."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from alf_lite.algorithms.learning import gradients
from alf_lite.algorithms.learning.gradients import backward
from alf_lite.fast import Computation, Node


class SumOfProducts(Computation):
    """Σ x·y² of all pairs of inputs; counts how often it was asked."""

    def __init__(self):
        self.num_calls = 0

    def forward(self, *inputs):
        self.inputs = [x.detach().clone() for x in inputs]
        pairs = zip(self.inputs[::2], self.inputs[1::2], strict=True)
        return sum((x * y * y).sum() for x, y in pairs)

    def backward(self, needs, gradient):
        self.num_calls += 1
        assert not torch.is_grad_enabled()
        found = []
        for x, y in zip(self.inputs[::2], self.inputs[1::2], strict=True):
            found += [gradient * y * y, gradient * 2 * x * y]
        return [g if needed else None for g, needed in zip(found, needs, strict=True)]


def parameters(number: int = 4) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(3, 2)) for _ in range(number)]


def gradients_of(make_loss, backward_of, prepare=lambda _: None) -> list:
    leaves = parameters()
    prepare(leaves)
    backward_of(make_loss(leaves))
    return [leaf.grad for leaf in leaves]


LOSSES = {
    "of parameters": lambda p: Node.apply(SumOfProducts(), *p),
    "of what they are made into": lambda p: Node.apply(
        SumOfProducts(), p[0], p[1].exp(), (p[2] * p[3]), p[3]
    ),
    "of one that is there twice": lambda p: Node.apply(
        SumOfProducts(), p[0], p[0], p[1], p[2]
    ),
    "of one that needs none": lambda p: Node.apply(
        SumOfProducts(), p[0], p[1].detach(), p[2], p[3]
    ),
    "and more": lambda p: 2 * Node.apply(SumOfProducts(), *p) + p[0].sum(),
    "of torch": lambda p: (p[0] * p[1]).sum(),
}


@pytest.mark.parametrize("case", LOSSES)
def test_they_are_those_of_torch(case):
    expected = gradients_of(LOSSES[case], torch.Tensor.backward)
    for grad, other in zip(gradients_of(LOSSES[case], backward), expected, strict=True):
        assert (grad is None) == (other is None)
        if grad is not None:
            torch.testing.assert_close(grad, other, rtol=0, atol=0)
            assert grad.is_contiguous()


def transposed(p):
    """Gradients that do not lie in memory as the parameters do."""
    p[0].data = p[0].data.T.contiguous().T


def with_gradients(p):
    for leaf in p:
        leaf.grad = torch.ones_like(leaf)


def hooked(p):
    p[0].register_hook(lambda gradient: 3 * gradient)


def hooked_afterwards(p):
    def scale(leaf):
        leaf.grad.mul_(3)

    p[1].register_post_accumulate_grad_hook(scale)


@pytest.mark.parametrize(
    "prepare", [transposed, with_gradients, hooked, hooked_afterwards]
)
@pytest.mark.parametrize("case", list(LOSSES)[:3])
def test_hooks_and_gradients_that_are_there_are_honoured(prepare, case):
    expected = gradients_of(LOSSES[case], torch.Tensor.backward, prepare)
    found = gradients_of(LOSSES[case], backward, prepare)
    for grad, other in zip(found, expected, strict=True):
        assert (grad is None) == (other is None)
        if grad is not None:
            torch.testing.assert_close(grad, other, rtol=0, atol=0)
            assert grad.stride() == other.stride()


def test_a_hook_of_the_loss_is_called():
    p = parameters()
    loss = Node.apply(SumOfProducts(), *p)
    loss.register_hook(lambda gradient: 2 * gradient)
    backward(loss)
    loss = Node.apply(SumOfProducts(), *p)
    expected = torch.autograd.grad(2 * loss, p)
    for leaf, gradient in zip(p, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)


def test_a_loss_that_keeps_its_gradient_and_a_leaf_that_wants_none_any_more():
    p = parameters()
    loss = Node.apply(SumOfProducts(), *p)
    loss.retain_grad()
    backward(loss)
    assert loss.grad == 1
    p = parameters()
    loss = Node.apply(SumOfProducts(), *p)
    p[0].requires_grad_(False)
    backward(loss)
    assert p[0].grad is None
    assert p[1].grad is not None


def test_parameters_that_were_changed_in_the_meantime_are_noticed():
    p = parameters()
    loss = Node.apply(SumOfProducts(), *p)
    with torch.no_grad():
        p[2].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        backward(loss)


def test_a_gradient_of_another_shape_is_refused():
    class Wrong(SumOfProducts):
        def backward(self, needs, gradient):
            return [g[:1] for g in super().backward(needs, gradient)]

    with pytest.raises(RuntimeError):
        backward(Node.apply(Wrong(), *parameters()))


def test_a_node_is_asked_once_and_by_no_engine(monkeypatch):
    monkeypatch.setattr(gradients, "_run_engine", None)
    computation = SumOfProducts()
    backward(Node.apply(computation, *parameters()))
    assert computation.num_calls == 1
