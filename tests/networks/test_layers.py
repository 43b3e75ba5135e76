import copy
import math

import pytest
import torch
from torch import nn

from alf_lite.networks.critic_networks import ParallelMLP
from alf_lite.networks.initializers import initialized
from alf_lite.networks.input_encoders import ImageEncoder
from alf_lite.networks.layers import (
    linear,
    make_activation,
    mlp,
)
from alf_lite.networks.lean_layers import (
    HiddenSequential,
    LeanSequential,
    hidden_layers_in,
)
from alf_lite.networks.parallel_layers import ParallelLinear
from alf_lite.tensor_specs import TensorSpec


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 64), (64, 4), (64, 64)])
def test_linear_weights_are_orthogonal_times_gain_and_bias_zero(inputs, outputs):
    layer = linear(inputs, outputs, gain=0.5)
    weight = layer.weight if outputs <= inputs else layer.weight.T
    identity = torch.eye(min(inputs, outputs)) * 0.25
    torch.testing.assert_close(weight @ weight.T, identity, atol=1e-5, rtol=0)
    assert (layer.bias == 0).all()


def test_orthogonal_accepts_layers_without_bias():
    layer = initialized(nn.Conv2d(3, 4, 2, bias=False), gain=1.0)
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
    with pytest.raises(ValueError, match=r"'rellu'.*Did you mean 'relu' or"):
        make_activation("rellu")
    with pytest.raises(TypeError, match="expected a name or a callable, got 3"):
        make_activation(3)


@pytest.mark.parametrize("sizes", [(10**9,), (900_000, 900_000)])
def test_layers_that_no_memory_holds_are_refused_before_it_is_taken(sizes):
    with pytest.raises(ValueError, match=r"at most 1,000,000|GB of memory"):
        mlp(4, sizes, "tanh")
    with pytest.raises(ValueError, match=r"at most 1,000,000|GB of memory"):
        ParallelMLP(2, 4, sizes, 1, "tanh")


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
