from __future__ import annotations

import pytest
import torch

from alf_lite.networks.recurrent_networks import GRUEncodingNetwork, LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.tensor_specs import TensorSpec

VECTOR = TensorSpec((4,))


@pytest.mark.parametrize("outer", [(8,), (5, 8)])
@pytest.mark.parametrize("reward_shape", [(), (1,), (3,)])
def test_one_value_per_dimension_of_the_reward(outer, reward_shape):
    network = ValueNetwork(VECTOR, TensorSpec(reward_shape))
    values, state = network(torch.randn(*outer, 4))
    assert values.shape == (*outer, *reward_shape)
    assert state == ()


def test_output_layer_has_gain_one_and_zero_bias():
    network = ValueNetwork(VECTOR)
    *_, weight, bias = network.parameters()
    assert torch.linalg.vector_norm(weight).item() == pytest.approx(1.0)
    assert (bias == 0).all()


def test_value_is_linear_in_the_last_features():
    torch.manual_seed(0)
    network = ValueNetwork(VECTOR, fc_layer_params=())
    x = torch.randn(3, 4)
    torch.testing.assert_close(network(2 * x)[0], 2 * network(x)[0])


def test_recurrent_value_passes_its_state_on():
    network = ValueNetwork(VECTOR, encoding_network_ctor=LSTMEncodingNetwork)
    x = torch.randn(8, 4)
    first, state = network(x, network.initial_state(8))
    second, _ = network(x, state)
    assert first.shape == (8,)
    assert not torch.equal(first, second)


def test_reward_with_two_dimensions_is_refused():
    with pytest.raises(ValueError, match="reward_spec: expected rank 0 or 1"):
        ValueNetwork(VECTOR, TensorSpec((2, 2)))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("head", [(), (16,), (16, 8)])
def test_one_row_of_outputs_for_every_value_of_every_component(dueling, head):
    network = QNetwork(VECTOR, [3, 2], 5, dueling=dueling, head_fc_layer_params=head)
    outputs, state = network(torch.randn(8, 4))
    assert outputs.shape == (8, 2, 3, 5)
    assert state == ()


def test_a_dueling_network_adds_the_value_to_the_advantages_less_their_mean():
    torch.manual_seed(0)
    network = QNetwork(VECTOR, [2, 3], 4, dueling=True)
    x = torch.randn(6, 4)
    features, _ = network._encoder(x)
    advantage = network._advantage(features).reshape(6, 2, 3, 4)
    value = network._value(features)
    q = network(x)[0]
    for c, size in enumerate([2, 3]):
        mean = advantage[:, c, :size].mean(1)
        for a in range(size):
            expected = value + advantage[:, c, a] - mean
            torch.testing.assert_close(q[:, c, a], expected)


def test_the_values_of_a_dueling_network_average_to_its_value_in_every_component():
    network = QNetwork(VECTOR, [2, 3], dueling=True)
    q = network(torch.randn(6, 4))[0].squeeze(-1)
    torch.testing.assert_close(q[:, 0, :2].mean(1), q[:, 1].mean(1))


def test_outputs_differ_between_values_and_without_dueling_there_is_no_value_stream():
    network = QNetwork(VECTOR, [2])
    assert network._value is None
    q = network(torch.randn(1, 4))[0].flatten()
    assert q[0] != q[1]


def test_the_encoder_may_be_recurrent():
    network = QNetwork(VECTOR, [2], encoding_network_ctor=GRUEncodingNetwork)
    x = torch.randn(3, 4)
    first, state = network(x, network.initial_state(3))
    second, _ = network(x, state)
    assert first.shape == (3, 1, 2, 1)
    assert not torch.equal(first, second)


def test_a_component_needs_values():
    with pytest.raises(ValueError, match="num_values: expected a sequence of positive"):
        QNetwork(VECTOR, [2, 0])
