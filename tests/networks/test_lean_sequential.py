"""Stacks of layers compute what torch's do, and change nobody's tensor."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from alf_lite.networks.input_encoders import ImageEncoder
from alf_lite.networks.layers import mlp
from alf_lite.networks.lean_sequential import (
    HiddenSequential,
    LeanSequential,
    hidden_layers_in,
)
from alf_lite.networks.parallel_layers import ParallelLinear, ParallelMLP
from alf_lite.tensor_specs import TensorSpec

STACKS = {
    "linear": [nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh()],
    "no bias": [nn.Linear(3, 5, bias=False), nn.Sigmoid(), nn.Linear(5, 2)],
    "parallel": [ParallelLinear(2, 3, 5), nn.ReLU(), ParallelLinear(2, 5, 1)],
    "activation first": [nn.ReLU(), nn.Tanh(), nn.Linear(3, 2)],
    "twice": [nn.Linear(3, 5), nn.Tanh(), nn.ReLU(), nn.SiLU(), nn.ReLU()],
    "image": [nn.Unflatten(1, (3, 1, 1)), nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Flatten()],
    "nothing": [],
}
NETWORKS = {
    "mlp": (lambda: mlp(8, (32, 32), "relu"), (16, 8)),
    "critics": (lambda: ParallelMLP(2, 8, (32, 32), 1), (16, 8)),
    "images": (
        lambda: ImageEncoder(TensorSpec((2, 12, 12)), ((8, 3, 2),), "relu"),
        (4, 2, 12, 12),
    ),
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


@pytest.fixture(params=list(NETWORKS))
def network_and_input(request):
    torch.manual_seed(0)
    make, shape = NETWORKS[request.param]
    return make(), torch.randn(shape)


def gradients(network, x, loss):
    return torch.autograd.grad(loss(network(x)), list(network.parameters()))


def test_results_are_float32_and_close(network_and_input):
    network, x = network_and_input
    exact = network(x)
    with hidden_layers_in(torch.bfloat16):
        reduced = network(x)
    assert reduced.dtype == torch.float32
    assert not reduced.equal(exact)  # they were computed in another way
    torch.testing.assert_close(reduced, exact, atol=0.05, rtol=0.05)
    assert network(x).equal(exact)


def test_gradients_are_float32_and_close_outside(network_and_input):
    network, x = network_and_input
    exact = gradients(network, x, lambda y: y.square().mean())
    with hidden_layers_in(torch.bfloat16):
        loss = network(x).square().mean()
    reduced = torch.autograd.grad(loss, list(network.parameters()))
    for one, other in zip(reduced, exact, strict=True):
        assert one.dtype == torch.float32
        scale = other.abs().max().item()
        torch.testing.assert_close(one, other, atol=0.05 * scale, rtol=0.05)


def test_what_was_evaluated_without_gradient_has_one_later(network_and_input):
    network, x = network_and_input
    with hidden_layers_in(torch.bfloat16):
        with torch.no_grad():
            network(x)
        found = gradients(network, x, torch.sum)
    assert all(gradient.abs().sum() > 0 for gradient in found)


def test_the_output_layer_is_exact():
    torch.manual_seed(0)
    network = ParallelMLP(2, 8, (32,), 1)
    network._output_layer.bias.data.fill_(1000.0)
    x = torch.zeros(1, 8)
    x[0, 0] = 0.01
    with hidden_layers_in(torch.bfloat16):
        assert (network(x) - 1000.0).abs().max() < 0.1  # 4 is bfloat16's step there
    assert not network(x).equal(torch.full((2, 1, 1), 1000.0))


def test_the_precision_returns_after_an_error():
    network, x = mlp(8, (32, 32), "relu"), torch.randn(16, 8)
    exact = network(x)
    with pytest.raises(RuntimeError), hidden_layers_in(torch.bfloat16):
        raise RuntimeError
    assert network(x).equal(exact)
