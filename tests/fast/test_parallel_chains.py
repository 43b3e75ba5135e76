from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils import parametrize

from alf_lite.fast import parallel_chains
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.parallel_layers import ParallelLinear
from alf_lite.tensor_specs import TensorSpec
from tests.fast.twins import watched


@pytest.mark.parametrize(
    ("activation", "sizes", "output_shape"),
    [("relu", (16, 12), ()), ("tanh", (16, 12), (2, 3)), ("relu", (), (1,))],
)
def test_one_node_for_all_members_gives_what_torch_gives(
    activation, sizes, output_shape, monkeypatch
):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    network = CriticNetwork(
        *(TensorSpec((5,)), 3, 4, output_shape),
        joint_fc_layer_params=sizes,
        activation=activation,
    )
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    observation, action = torch.randn(9, 5), torch.randn(9, 3)
    parameters = list(network.parameters())

    def all_of_it(needs, frozen):
        for x in (observation, action):
            x.requires_grad_(any(x is wanted for wanted in needs))
        for i, parameter in enumerate(parameters):
            parameter.requires_grad_(i >= frozen)
        values = network.evaluate(observation, action)
        wanted = [*parameters[frozen:], *needs]
        loss = (values**2 * values.detach().cos()).sum()
        plain = torch.autograd.grad(loss, wanted, retain_graph=True)
        slopes = torch.autograd.grad(loss, wanted, create_graph=True)
        slope = sum((g**2).sum() for g in slopes)
        twice = torch.autograd.grad(slope, wanted)
        with torch.no_grad():
            again = network.evaluate(observation, action)
        return values, *plain, *slopes, *twice, again

    for needs, frozen in (
        ([], 0),
        ([action], len(parameters)),
        ([observation, action], 1),
    ):
        results = []
        for limit in (0, 2**30):
            monkeypatch.setattr(parallel_chains, "_MIN_OUTPUTS", limit)
            with watched() as ran:
                results.append(all_of_it(needs, frozen))
            assert ran == {"ParallelMLP.values": 0 if limit else 2}
        for a, b in zip(*results, strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_one_node_notices_parameters_that_changed_before_the_gradient(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(parallel_chains, "_MIN_OUTPUTS", 0)
    network = CriticNetwork(TensorSpec((5,)), 3, 2)
    values = network.evaluate(torch.randn(4, 5), torch.randn(4, 3))
    with torch.no_grad():
        next(network.parameters()).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values.sum().backward()


@pytest.mark.parametrize(
    "change", ["hook", "other layer", "forward", "parametrization"]
)
def test_one_node_gives_way_to_what_was_changed_later(change, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(parallel_chains, "_MIN_OUTPUTS", 0)
    network = CriticNetwork(TensorSpec((5,)), 3, 2, joint_fc_layer_params=(6,))
    layers = network._critics._hidden_layers
    inputs = torch.randn(4, 5), torch.randn(4, 3)
    with watched() as ran:
        network.evaluate(*inputs)
    assert ran == {"ParallelMLP.values": 1}
    if change == "hook":
        layers[0].register_forward_hook(lambda module, args, output: 0 * output)
    elif change == "forward":
        layers[0].forward = lambda x: x.new_zeros(2, len(x), 6)
    elif change == "other layer":
        layers[0] = ParallelLinear(2, 8, 6)
        torch.nn.init.zeros_(layers[0].weight)
    else:
        parametrize.register_parametrization(layers[0], "weight", Zeros())
    expected = network._critics._output_layer.bias.squeeze(1).T.expand(4, 1, 2)
    for critic in (network, copy.deepcopy(network)):
        values = critic.evaluate(*inputs)
        torch.testing.assert_close(values, expected.mT.squeeze(-1))
        critic._critics.is_only_first = True  # as for the loss of an actor
        torch.testing.assert_close(critic.evaluate(*inputs), values[:, :1])


class Zeros(torch.nn.Module):
    def forward(self, weight):
        return 0 * weight
