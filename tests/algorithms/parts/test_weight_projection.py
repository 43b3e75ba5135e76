"""Weights of linear layers stay at length 1 in training."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn

from alf_lite.algorithms.parts.return_heads import CategoricalHead
from alf_lite.algorithms.parts.weight_projection import WeightProjection
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorNetwork, SquashedActorNetwork
from alf_lite.networks.batch_norm import BatchNorm
from alf_lite.networks.bodies import make_body
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.layers import mlp
from alf_lite.networks.lean_layers import LeanSequential
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import TensorSpec

SIZES = (16, 16)


def test_each_unit_has_weights_of_length_one():
    torch.manual_seed(0)
    network = nn.Sequential(mlp(3, (8, 8), "relu"), nn.Linear(8, 2))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += torch.randn_like(parameter)
    before = [p.detach().clone() for p in network.parameters()]
    WeightProjection("hidden", network)
    after = list(network.parameters())
    for i in (0, 2):
        squares = before[i].square().sum(1) + before[i + 1].square()
        rows = before[i] / squares.sqrt().unsqueeze(1)
        torch.testing.assert_close(after[i].data, rows)
        torch.testing.assert_close(after[i + 1].data, before[i + 1] / squares.sqrt())
    for i in (4, 5):  # the output
        assert torch.equal(after[i], before[i])
    WeightProjection("all", network)
    torch.testing.assert_close(network[1].weight.norm(dim=1), torch.ones(2))
    assert torch.equal(network[1].bias, before[5])


def test_what_normalizes_by_the_batch_makes_the_same_of_weights_of_length_one():
    torch.manual_seed(0)
    norm = functools.partial(BatchNorm, epsilon=0.0)
    network = CriticNetwork(
        TensorSpec((3,)), 2, 2, joint_fc_layer_params=(4, 4), batch_norm=norm
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    inputs = torch.randn(64, 3), torch.randn(64, 2)
    before = network.evaluate(*inputs)
    WeightProjection("hidden", network)
    torch.testing.assert_close(network.evaluate(*inputs), before)


@pytest.mark.parametrize("members", [None, 2])
def test_gains_and_biases_together_keep_the_length_that_they_start_with(members):
    torch.manual_seed(0)
    network = LeanSequential(*make_body("flash_sac", 3, (8, 8), members))
    network.append(nn.LayerNorm(8))
    norms = [network[0], network[4], network[5], network[2].layers[1]]
    gains = [p for norm in norms for p in norm.parameters()]
    before = [p.detach().clone() for p in gains]
    WeightProjection("all_and_gains", network)
    torch.testing.assert_close([p.data for p in gains], before)
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    moved = {n: p.detach().clone() for n, p in network.named_parameters()}
    WeightProjection("all", network)
    norm, last = network[0], network[-2]
    torch.testing.assert_close(last.weight.data, moved["4.weight"])
    WeightProjection("all_and_gains", network)
    for member in range(members or 1):
        gain, bias, last_gain = (
            moved[name].reshape(members or 1, -1)[member]
            for name in ("0.weight", "0.bias", "4.weight")
        )
        factor = math.sqrt(3) / math.sqrt(float((gain**2 + bias**2).sum()))
        after = [p.data.reshape(members or 1, -1)[member] for p in norm.parameters()]
        torch.testing.assert_close(after, [gain * factor, bias * factor])
        after = last.weight.data.reshape(members or 1, -1)[member]
        factor = math.sqrt(8) / last_gain.norm()
        torch.testing.assert_close(after, last_gain * factor)


@pytest.mark.parametrize("kind", [SacAlgorithm, Td3Algorithm])
@pytest.mark.parametrize("body", [None, "simba_v2", "xqc"])
def test_training_keeps_the_lengths(kind, body):
    torch.manual_seed(0)
    actor = SquashedActorNetwork if kind is SacAlgorithm else ActorNetwork
    config = TrainerConfig(
        num_iterations=12,
        unroll_length=8,
        initial_collect_steps=8,
        num_updates_per_train_iter=2,
        mini_batch_size=16,
    )
    algorithm = kind(
        env=create_environment("Pendulum-v1", num_parallel_environments=1),
        config=config,
        optimizer=Adam(lr=0.01),
        actor_network_ctor=functools.partial(actor, fc_layer_params=SIZES, body=body),
        critic_network_ctor=functools.partial(
            CriticNetwork, joint_fc_layer_params=SIZES, body=body
        ),
        return_model=CategoricalHead(-5.0, 5.0, 11),
        weight_projection="all",
    )
    networks = (algorithm._policy, algorithm._critics.online)
    start = [p.detach().clone() for n in networks for p in n.parameters()]
    for _ in range(4):
        algorithm.train_iter()
    moved = [p for n in networks for p in n.parameters()]
    assert not all(map(torch.equal, start, moved))
    for layer, dim, has_bias in algorithm._projection._layers:
        length = layer.weight.norm(dim=dim)
        if has_bias:
            length = torch.hypot(length, layer.bias.view_as(length))
        torch.testing.assert_close(length, torch.ones_like(length))
    assert len(algorithm._projection._layers) >= 2 * (len(SIZES) + 1)


def test_a_projection_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="no effect: no network has hidden layers"):
        WeightProjection("hidden", nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"no network has gains .* Take 'all'"):
        WeightProjection("all_and_gains", mlp(3, (8, 8), "relu"))


def test_an_unknown_projection_is_refused():
    with pytest.raises(ValueError, match="'hidden', 'all', 'all_and_gains'"):
        WeightProjection("rows", nn.Linear(2, 2))
