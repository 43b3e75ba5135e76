import pytest
import torch

from alf_lite.networks.hidden_precision import hidden_layers_in
from alf_lite.networks.input_encoders import ImageEncoder
from alf_lite.networks.layers import mlp
from alf_lite.networks.parallel_layers import ParallelMLP
from alf_lite.tensor_specs import TensorSpec

NETWORKS = {
    "mlp": (lambda: mlp(8, (32, 32), "relu"), (16, 8)),
    "critics": (lambda: ParallelMLP(2, 8, (32, 32), 1), (16, 8)),
    "images": (
        lambda: ImageEncoder(TensorSpec((2, 12, 12)), ((8, 3, 2),), "relu"),
        (4, 2, 12, 12),
    ),
}


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
