from __future__ import annotations

import pytest
import torch
from torch import nn

from alf_lite.config import files as config_files
from alf_lite.networks.critic_networks import CriticNetwork, ParallelMLP
from alf_lite.networks.parallel_layers import ParallelLayerNorm, ParallelLinear
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

VECTOR = TensorSpec((4,))
IMAGE = BoundedTensorSpec((12, 12, 1), torch.uint8, 0, 255)


@pytest.mark.parametrize("num_critics", [1, 3])
@pytest.mark.parametrize("output_shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("action_size", [0, 2])
def test_every_critic_values_every_action(num_critics, output_shape, action_size):
    network = CriticNetwork(VECTOR, action_size, num_critics, output_shape)
    x, action = torch.randn(5, 4), torch.rand(5, action_size)
    if action_size:
        values, state = network((x, action))
        assert state == ()
    else:
        values = network.evaluate(network.encode(x)[0], None)
    expected = network._critics(torch.cat([x, action], 1)).transpose(0, 1)
    assert values.equal(expected.reshape(5, num_critics, *output_shape))


def member(ensemble: ParallelMLP, k: int) -> nn.Sequential:
    """The network that the k-th member is."""
    layers: list[nn.Module] = []
    for layer in (*ensemble._hidden_layers, ensemble._output_layer):
        single = layer
        if isinstance(layer, ParallelLinear):
            single = nn.Linear(*layer.weight[k].shape)
            single.weight.data.copy_(layer.weight[k].T)
            single.bias.data.copy_(layer.bias[k, 0])
        elif isinstance(layer, ParallelLayerNorm):
            single = nn.LayerNorm(layer.weight.shape[-1])
            single.weight.data.copy_(layer.weight[k, 0])
            single.bias.data.copy_(layer.bias[k, 0])
        layers.append(single)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("num_members", [1, 3])
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("num_outputs", [1, 2])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_members_equal_networks_of_their_own(
    num_members, is_shared, num_outputs, layer_norm
):
    torch.manual_seed(0)
    ensemble = ParallelMLP(
        num_members, 4, (8, 6), num_outputs, "tanh", layer_norm=layer_norm
    )
    for parameter in ensemble.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(5, 4) if is_shared else torch.randn(num_members, 5, 4)
    x.requires_grad_()
    members = [member(ensemble, k) for k in range(num_members)]
    output = ensemble(x)
    expected = torch.stack([m(x if is_shared else x[k]) for k, m in enumerate(members)])
    torch.testing.assert_close(output, expected)
    weights, parameters = torch.randn_like(output), list(ensemble.parameters())
    found, *of_ours = torch.autograd.grad((output * weights).sum(), [x, *parameters])
    (wanted,) = torch.autograd.grad((expected * weights).sum(), x, retain_graph=True)
    torch.testing.assert_close(found, wanted)
    (expected * weights).sum().backward()
    for gradient, *of_members in zip(
        of_ours, *(m.parameters() for m in members), strict=True
    ):
        singles = [p.grad.T if p.ndim == 2 else p.grad[None] for p in of_members]
        torch.testing.assert_close(gradient, torch.stack(singles))


def test_a_vector_is_not_encoded_and_an_image_is_encoded_once_for_all():
    critics = CriticNetwork(VECTOR, 1, 2)
    x = torch.randn(3, 4)
    assert critics.encode(x)[0] is x
    network = CriticNetwork(IMAGE, 1, 2)
    features, _ = network.encode(torch.zeros(3, 12, 12, 1, dtype=torch.uint8))
    assert features.shape[0] == 3
    assert network.evaluate(features, torch.zeros(3, 1)).shape == (3, 2)


def test_the_encoder_may_be_recurrent():
    network = CriticNetwork(VECTOR, 1, 2, encoding_network_ctor=LSTMEncodingNetwork)
    x, action = torch.randn(3, 4), torch.zeros(3, 1)
    first, state = network((x, action), network.initial_state(3))
    second, _ = network((x, action), state)
    assert first.shape == (3, 2)
    assert not torch.equal(first, second)


def test_units_are_dropped_for_every_member_and_row_in_training_only():
    torch.manual_seed(0)
    ensemble = ParallelMLP(2, 4, (400,), 1, dropout=0.25)
    linear, dropout, _ = ensemble._hidden_layers
    x = torch.randn(3, 4)
    dropped = dropout(linear(x)) == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert not torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[0, 0], dropped[0, 1])
    assert not torch.equal(ensemble(x), ensemble(x))
    ensemble.eval()
    assert torch.equal(ensemble(x), ensemble(x))
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\), got 1"):
        ParallelMLP(2, 4, (4,), 1, dropout=1.0)


def test_every_member_is_initialised_orthogonally_and_differently():
    layer = ParallelLinear(4, 16, 8, gain=0.5)
    for weight in layer.weight:
        torch.testing.assert_close(
            weight.T @ weight, 0.25 * torch.eye(8), atol=1e-5, rtol=0
        )
    assert not torch.allclose(layer.weight[0], layer.weight[1])
    assert (layer.bias == 0).all()


def test_members_do_not_influence_each_other():
    ensemble = ParallelMLP(3, 2, (4,), 1)
    ensemble(torch.randn(6, 2))[1].sum().backward()
    for parameter in ensemble.parameters():
        assert (parameter.grad[[0, 2]] == 0).all()
        assert (parameter.grad[1] != 0).any()


def test_without_hidden_layers_it_is_linear():
    ensemble = ParallelMLP(2, 3, (), 1)
    x = torch.randn(4, 3)
    torch.testing.assert_close(ensemble(2 * x), 2 * ensemble(x))


def test_a_number_of_members_is_positive():
    with pytest.raises(ValueError, match="num_critics must be a positive integer"):
        CriticNetwork(VECTOR, 2, 0)
    with pytest.raises(ValueError, match="num_members must be a positive integer"):
        ParallelLinear(0, 4, 2)


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_input_for_another_number_of_members_is_refused(num_outputs):
    layer = ParallelLinear(3, 4, num_outputs)
    for shape in [(2, 5, 4), (1, 5, 4), (3, 3, 5, 4)]:
        with pytest.raises(ValueError, match=r"\[3, B, features\], got \("):
            layer(torch.zeros(shape))


def test_an_activation_that_is_bound_to_an_encoder_without_layers_is_told():
    with config_files.own_config():
        config_files.parse_config_text("EncodingNetwork.activation = 'relu'")
        CriticNetwork(VECTOR, 2)
        (line,) = config_files.unused_bindings()
        assert "every caller passed its own value" in line
        CriticNetwork(VECTOR, 2, encoder_fc_layer_params=(8,))
        assert not config_files.unused_bindings()
