from __future__ import annotations

import torch

from alf_lite.networks.deterministic_actor_networks import ActorNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.tensor_specs import TensorSpec

VECTOR = TensorSpec((4,))


def test_actions_are_the_tanh_of_a_linear_layer():
    torch.manual_seed(0)
    network = ActorNetwork(VECTOR, 3)
    x = 100 * torch.randn(8, 4)
    action, state = network(x)
    assert action.shape == (8, 3)
    assert state == ()
    torch.testing.assert_close(action, network._linear(network._encoder(x)[0]).tanh())


def test_actions_start_close_to_the_middle_and_never_leave_the_box():
    network = ActorNetwork(VECTOR, 3)
    assert network(torch.randn(100, 4))[0].abs().max() < 0.1
    with torch.no_grad():
        network._linear.weight.mul_(1e4)
    assert network(torch.randn(100, 4))[0].abs().max() <= 1


def test_the_encoder_may_be_recurrent():
    network = ActorNetwork(VECTOR, 2, encoding_network_ctor=GRUEncodingNetwork)
    x = torch.randn(3, 4)
    first, state = network(x, network.initial_state(3))
    second, _ = network(x, state)
    assert not torch.equal(first, second)
