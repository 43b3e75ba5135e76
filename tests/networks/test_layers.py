import math

import pytest
import torch
from torch import nn

from alf_lite.networks.layers import linear, make_activation, mlp, orthogonal
from alf_lite.networks.parallel_layers import ParallelMLP


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 64), (64, 4), (64, 64)])
def test_linear_weights_are_orthogonal_times_gain_and_bias_zero(inputs, outputs):
    layer = linear(inputs, outputs, gain=0.5)
    weight = layer.weight if outputs <= inputs else layer.weight.T
    identity = torch.eye(min(inputs, outputs)) * 0.25
    torch.testing.assert_close(weight @ weight.T, identity, atol=1e-5, rtol=0)
    assert (layer.bias == 0).all()


def test_orthogonal_accepts_layers_without_bias():
    layer = orthogonal(nn.Conv2d(3, 4, 2, bias=False), gain=1.0)
    rows = layer.weight.flatten(1)
    torch.testing.assert_close(rows @ rows.T, torch.eye(4), atol=1e-5, rtol=0)


def test_mlp_applies_the_activation_after_every_layer():
    network = mlp(3, (5, 4), "tanh")
    x = torch.randn(7, 3)
    first, _, second, _ = network
    expected = second(first(x).tanh()).tanh()
    torch.testing.assert_close(network(x), expected)
    weight = first.weight.T @ first.weight
    torch.testing.assert_close(weight, 2 * torch.eye(3), atol=1e-5, rtol=0)


def test_mlp_without_layers_is_the_identity():
    x = torch.randn(2, 3)
    assert mlp(3, (), "tanh")(x) is x


@pytest.mark.parametrize("sizes", [64, (64, 0), (64, -1), (64.0,), "64", None])
def test_mlp_refuses_sizes_that_are_no_positive_integers(sizes):
    with pytest.raises(ValueError, match=r"fc_layer_params: expected .*\(64, 64\)"):
        mlp(3, sizes, "tanh")


@pytest.mark.parametrize(
    "activation", ["tanh", torch.tanh, nn.Tanh, nn.Tanh(), lambda x: x.tanh()]
)
def test_activation_by_name_class_module_or_function(activation):
    x = torch.randn(5)
    torch.testing.assert_close(make_activation(activation)(x), x.tanh())


def test_module_given_as_activation_is_copied_for_every_use():
    prelu = nn.PReLU()
    network = mlp(2, (3, 3), prelu)
    assert network[1] is not prelu
    assert network[1].weight is not network[3].weight


@pytest.mark.parametrize(
    ("name", "at_minus_one"),
    [("relu", 0.0), ("elu", math.exp(-1) - 1), ("identity", -1.0), ("silu", -0.26894)],
)
def test_activations_by_name(name, at_minus_one):
    value = make_activation(name)(torch.tensor(-1.0)).item()
    assert value == pytest.approx(at_minus_one, abs=1e-4)


def test_unknown_activation_suggests_the_nearest_name():
    with pytest.raises(ValueError, match=r"'rellu'.*Did you mean 'relu'\?"):
        make_activation("rellu")
    with pytest.raises(TypeError, match="expected a name or a callable, got 3"):
        make_activation(3)


@pytest.mark.parametrize("sizes", [(10**9,), (900_000, 900_000)])
def test_layers_that_no_memory_holds_are_refused_before_it_is_taken(sizes):
    with pytest.raises(ValueError, match=r"at most 1,000,000|GB of memory"):
        mlp(4, sizes, "tanh")
    with pytest.raises(ValueError, match=r"at most 1,000,000|GB of memory"):
        ParallelMLP(2, 4, sizes, 1, "tanh")
