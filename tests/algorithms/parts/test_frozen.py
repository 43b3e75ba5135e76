from __future__ import annotations

import pytest
import torch
from torch import nn

from alf_lite.algorithms.parts.frozen import Frozen


def test_the_inputs_get_a_gradient_and_the_parameters_do_not():
    linear = nn.Linear(2, 1, bias=False)
    x = torch.ones(1, 2, requires_grad=True)
    with Frozen(linear):
        y = linear(x)
    y.sum().backward()
    assert x.grad.tolist() == linear.weight.tolist()
    assert linear.weight.grad is None


def test_one_backward_pass_trains_only_through_the_call_outside():
    linear = nn.Linear(2, 1, bias=False)
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    outside = linear(x.detach())
    with Frozen(linear):
        inside = linear(x)
    (3 * outside + 100 * inside).sum().backward()
    assert linear.weight.grad.tolist() == [[3.0, 6.0]]
    torch.testing.assert_close(x.grad, 100 * linear.weight.detach())


def test_parameters_are_left_as_they_were_even_after_an_error():
    linear = nn.Linear(2, 1)
    linear.bias.requires_grad_(False)
    with pytest.raises(KeyError), Frozen(linear):
        raise KeyError
    assert linear.weight.requires_grad
    assert not linear.bias.requires_grad
