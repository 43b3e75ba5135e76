from __future__ import annotations

import pytest
import torch
from torch import nn

from alf_lite.networks.critic_networks import CriticNetwork, ParallelMLP
from alf_lite.networks.parallel_layers import ParallelLayerNorm, ParallelLinear
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

VECTOR = TensorSpec((4,))
IMAGE = BoundedTensorSpec((12, 12, 1), torch.uint8, 0, 255)


@pytest.mark.parametrize("num_critics", [1, 2, 5])
@pytest.mark.parametrize("output_shape", [(), (3,), (2, 3)])
def test_every_critic_values_every_action(num_critics, output_shape):
    network = CriticNetwork(VECTOR, 2, num_critics, output_shape)
    values, state = network((torch.randn(8, 4), torch.rand(8, 2)))
    assert values.shape == (8, num_critics, *output_shape)
    assert state == ()


def test_members_are_what_separate_networks_would_be():
    torch.manual_seed(0)
    network = CriticNetwork(VECTOR, 2, 3, (2,), joint_fc_layer_params=(16,))
    x, action = torch.randn(5, 4), torch.rand(5, 2)
    values, _ = network((x, action))
    critics = network._critics
    first, last = critics._hidden_layers[0], critics._output_layer
    for k in range(3):
        hidden = torch.cat([x, action], 1) @ first.weight[k] + first.bias[k]
        expected = hidden.relu() @ last.weight[k] + last.bias[k]
        torch.testing.assert_close(values[:, k], expected)
    assert not torch.allclose(values[:, 0], values[:, 1])


def test_discrete_actions_need_no_action_input():
    network = CriticNetwork(VECTOR, 0, 2, (6,))
    features, _ = network.encode(torch.randn(5, 4))
    assert network.evaluate(features, None).shape == (5, 2, 6)


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


def separate(layer: ParallelLinear, member: int) -> nn.Linear:
    weight, bias = layer.weight[member], layer.bias[member]
    single = nn.Linear(*weight.shape)
    single.weight.data.copy_(weight.T)
    single.bias.data.copy_(bias.squeeze(0))
    return single


def with_random_bias(module):
    for layer in module.modules():
        if isinstance(layer, ParallelLinear):
            nn.init.normal_(layer.bias)
    return module


@pytest.mark.parametrize("num_members", [1, 3])
@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("num_outputs", [1, 2])
def test_parallel_mlp_equals_separate_mlps(num_members, is_shared, num_outputs):
    torch.manual_seed(0)
    ensemble = with_random_bias(
        ParallelMLP(num_members, 4, (8, 6), num_outputs, activation="tanh")
    )
    x = torch.randn(5, 4) if is_shared else torch.randn(num_members, 5, 4)
    x.requires_grad_()
    output = ensemble(x)
    assert output.shape == (num_members, 5, num_outputs)
    members = []
    for k in range(num_members):
        members.append(
            nn.Sequential(
                *(
                    separate(layer, k) if isinstance(layer, ParallelLinear) else layer
                    for layer in (*ensemble._hidden_layers, ensemble._output_layer)
                )
            )
        )
    expected = torch.stack(
        [member(x if is_shared else x[k]) for k, member in enumerate(members)]
    )
    torch.testing.assert_close(output, expected)

    weights = torch.randn_like(output)
    (gradient,) = torch.autograd.grad((output * weights).sum(), x, retain_graph=True)
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), x)
    torch.testing.assert_close(gradient, expected_gradient)


def test_normalized_members_equal_separate_ones_each_with_its_own_gain_and_bias():
    torch.manual_seed(0)
    ensemble = with_random_bias(ParallelMLP(3, 4, (8, 6), 2, layer_norm=True))
    for layer in ensemble.modules():
        if isinstance(layer, ParallelLayerNorm):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)

    def member(k: int) -> nn.Sequential:
        layers = []
        for layer in (*ensemble._hidden_layers, ensemble._output_layer):
            if isinstance(layer, ParallelLayerNorm):
                norm = nn.LayerNorm(layer.weight.shape[-1])
                norm.weight.data.copy_(layer.weight[k, 0])
                norm.bias.data.copy_(layer.bias[k, 0])
                layers.append(norm)
            elif isinstance(layer, ParallelLinear):
                layers.append(separate(layer, k))
            else:
                layers.append(layer)
        return nn.Sequential(*layers)

    x = torch.randn(5, 4, requires_grad=True)
    members = [member(k) for k in range(3)]
    output, expected = ensemble(x), torch.stack([m(x) for m in members])
    torch.testing.assert_close(output, expected)
    weights = torch.randn_like(output)
    (expected_gradient,) = torch.autograd.grad(
        (expected * weights).sum(), x, retain_graph=True
    )
    (expected * weights).sum().backward()
    x.grad = None
    (output * weights).sum().backward()
    torch.testing.assert_close(x.grad, expected_gradient)
    ours = [p for p in ensemble.parameters() if p.shape[1] == 1]
    assert len(ours) == 7  # three biases, two gains and their two biases
    for k, single in enumerate(members):
        norms = [m for m in single if isinstance(m, nn.LayerNorm)]
        parallel = [
            m for m in ensemble._hidden_layers if isinstance(m, ParallelLayerNorm)
        ]
        for norm, layer in zip(norms, parallel, strict=True):
            torch.testing.assert_close(layer.weight.grad[k, 0], norm.weight.grad)
            torch.testing.assert_close(layer.bias.grad[k, 0], norm.bias.grad)


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
