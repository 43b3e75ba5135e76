"""Every node gives what torch gives of its layer, there and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from alf_lite.fast import array_nodes
from alf_lite.fast.array_nodes import NODES
from alf_lite.networks.value_networks import QNetwork
from alf_lite.tensor_specs import TensorSpec

SIZE = 12
LAYERS = {
    "linear": lambda: nn.Linear(SIZE, 7),
    "linear without bias": lambda: nn.Linear(SIZE, 1, bias=False),
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky relu": nn.LeakyReLU,
    "steeper": lambda: nn.LeakyReLU(-0.3),
    "flat": lambda: nn.LeakyReLU(0.0),
    "steeper elu": lambda: nn.ELU(0.5),
    "in place": lambda: nn.SiLU(inplace=True),
    "approximate": lambda: nn.GELU("tanh"),
    "layer norm": lambda: nn.LayerNorm(SIZE, eps=1e-3),
    "without gain": lambda: nn.LayerNorm(SIZE, elementwise_affine=False),
}
# One is more than what numpy does itself
NUM_ROWS = (1, 5, array_nodes._MANY // SIZE + 1)


def dueling(sizes=(4,), num_outputs=1):
    network = QNetwork(
        TensorSpec((SIZE,)), sizes, num_outputs, fc_layer_params=(), dueling=True
    )
    streams = [
        [array_nodes.Linear(own[0])] for own in (network._advantage, network._value)
    ]
    return array_nodes.Dueling(*streams, network), network


def random_parameters(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)


def assert_alike(node, in_torch, num_rows, needs=None):
    """Values and gradients; what is not needed may be left out."""
    x = 2 * torch.randn(num_rows, SIZE)
    x[0, :3] = torch.tensor([0.0, 90.0, -90.0])
    leaf = x.clone().requires_grad_()
    expected = in_torch(leaf + 0)
    gradient = torch.randn(expected.shape)
    wanted = [leaf, *(held[name] for held, name in node.parameters)]
    needs = needs or tuple(each is not None for each in wanted)
    chosen = [each for each, is_needed in zip(wanted, needs, strict=True) if is_needed]
    slopes = torch.autograd.grad(expected, chosen, gradient, retain_graph=True)
    with torch.no_grad(), np.errstate(all="ignore"):
        y, kept = node.forward(x.numpy().copy())
        torch.testing.assert_close(
            torch.from_numpy(y), expected.detach(), atol=1e-5, rtol=1e-5
        )
        for _ in range(2):  # a graph may be kept
            to_x, *found = node.pull_back(gradient.numpy().copy(), kept, needs)
            found = [None if to_x is None else torch.from_numpy(to_x), *found]
            found = [
                each for each, is_needed in zip(found, needs, strict=True) if is_needed
            ]
            for a, b in zip(found, slopes, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-4)
    torch.testing.assert_close(node.in_torch(leaf + 0, iter(wanted[1:])), expected)


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_node_is_its_layer(kind, num_rows):
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    random_parameters(layer)
    node = NODES[type(layer)](layer)
    assert_alike(node, layer, num_rows)
    if isinstance(layer, nn.Linear):
        assert_alike(node, layer, num_rows, (False, True, False))
        assert_alike(node, layer, num_rows, (True, False, False))
        node.min_rows_of_torch = 0  # the other way to multiply
        assert_alike(node, layer, num_rows)


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("shape", [((4,), 1), ((2, 4, 3), 1), ((3, 2), 5)])
def test_a_dueling_node_is_what_the_network_combines(shape, num_rows):
    torch.manual_seed(0)
    node, network = dueling(*shape)
    random_parameters(network)

    def in_torch(x):
        return network.combined(network._advantage(x), network._value(x)).flatten(1)

    assert_alike(node, in_torch, num_rows)
    for needs in ("01101", "00010", "10000"):  # of x, and of both streams
        assert_alike(node, in_torch, num_rows, tuple(n == "1" for n in needs))


def test_what_is_not_finite_stays_so():
    for kind in ("relu", "tanh", "elu", "silu", "leaky relu", "flat"):
        layer = LAYERS[kind]()
        x = torch.tensor([[torch.nan, torch.inf, -torch.inf]])
        with np.errstate(all="ignore"):
            y, _ = NODES[type(layer)](layer).forward(x.numpy().copy())
        torch.testing.assert_close(torch.from_numpy(y), layer(x), equal_nan=True)
