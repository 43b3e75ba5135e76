"""Stacks of layers compute what torch's do, and change nobody's tensor."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from alf_lite.networks.lean_sequential import HiddenSequential, LeanSequential
from alf_lite.networks.parallel_layers import ParallelLinear

STACKS = {
    "linear": [nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh()],
    "no bias": [nn.Linear(3, 5, bias=False), nn.Sigmoid(), nn.Linear(5, 2)],
    "parallel": [ParallelLinear(2, 3, 5), nn.ReLU(), ParallelLinear(2, 5, 1)],
    "activation first": [nn.ReLU(), nn.Tanh(), nn.Linear(3, 2)],
    "twice": [nn.Linear(3, 5), nn.Tanh(), nn.ReLU(), nn.SiLU(), nn.ReLU()],
    "image": [nn.Unflatten(1, (3, 1, 1)), nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Flatten()],
    "nothing": [],
}


@pytest.mark.parametrize("cls", [LeanSequential, HiddenSequential])
@pytest.mark.parametrize("name", STACKS)
def test_equals_sequential_with_its_gradients(name, cls):
    layers = copy.deepcopy(STACKS[name])
    stacks = [cls(*layers), nn.Sequential(*copy.deepcopy(layers))]
    given = torch.randn(4, 3)
    found = []
    for stack in stacks:
        x = given.clone().requires_grad_()
        y = stack(x)
        gradients = torch.autograd.grad(y.square().sum(), [x, *stack.parameters()])
        found.append([y, *gradients])
        assert x.equal(given)
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_a_layer_that_keeps_its_output_is_not_overwritten():
    class Keeping(nn.Module):
        def forward(self, x):
            self.output = 2 * x
            return self.output

    keeping = Keeping()
    LeanSequential(keeping, nn.ReLU())(torch.tensor([-1.0, 1.0]))
    assert keeping.output.tolist() == [-2.0, 2.0]


def test_parameters_that_are_replaced_are_used():
    stack = LeanSequential(nn.Linear(2, 2), nn.ReLU())
    x = torch.randn(3, 2)
    stack(x)
    stack.double()
    assert stack(x.double()).dtype == torch.float64
    stack[0].weight = nn.Parameter(torch.zeros(2, 2))
    stack[0].bias = nn.Parameter(torch.ones(2))
    assert stack(x).tolist() == [[1.0, 1.0]] * 3
