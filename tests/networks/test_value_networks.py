import pytest
import torch

from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import ValueNetwork
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
