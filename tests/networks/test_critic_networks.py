from __future__ import annotations

import pytest
import torch

from alf_lite.networks.critic_networks import CriticNetwork
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
