"""Bodies of networks, beside their equations in numpy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

from alf_lite.algorithms.parts.weight_projection import WeightProjection
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorNetwork
from alf_lite.networks.bodies import make_body
from alf_lite.networks.critic_networks import CriticNetwork, ParallelMLP
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.lean_layers import LeanSequential
from alf_lite.networks.value_networks import QNetwork
from alf_lite.tensor_specs import TensorSpec

OBSERVATION = TensorSpec((3,))
NAMES = ("simba", "simba_v2", "xqc", "flash_sac")


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def layer_norm(x, layer):
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(
        x.var(-1, keepdims=True) + layer.eps
    )
    return scaled * layer.weight.numpy(force=True) + layer.bias.numpy(force=True)


def batch_norm(x, layer):
    scaled = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    return scaled * layer.weight.numpy(force=True) + layer.bias.numpy(force=True)


def dense(x, layer):
    return x @ layer.weight.numpy(force=True).T + layer.bias.numpy(force=True)


def filled(layers):
    """With parameters that are told apart, gains and biases too."""
    generator = torch.Generator().manual_seed(1)
    network = LeanSequential(*layers)
    for parameter in network.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data += 0.1 * noise
    return network


def test_simba_is_what_its_paper_says():
    network = filled(make_body("simba", 3, (8, 8), None))
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    first, *blocks, last = network
    h = dense(x, first)
    for block in blocks:
        norm, up, _, down = block.layers
        h = h + dense(np.maximum(dense(layer_norm(h, norm), up), 0), down)
    np.testing.assert_allclose(
        network(torch.from_numpy(x)).numpy(force=True), layer_norm(h, last), atol=1e-5
    )


def test_simba_v2_is_what_its_paper_says():
    width, blocks = 8, 2
    network = filled(make_body("simba_v2", 3, (width,) * blocks, None))
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    weights = [p.numpy(force=True) for p in network.parameters()]
    gain = np.sqrt(2 / width)
    h = unit(np.concatenate([x, np.full((5, 1), 3.0)], 1)) @ weights[0]
    h = unit(h * weights[1])  # a gain that starts at its own scale
    *of_blocks, last, last_gain = weights[2:]
    for up, inner, down, step in np.array(of_blocks, dtype=object).reshape(2, 4):
        assert inner.mean() == pytest.approx(gain / 2, abs=0.1)
        moved = unit(np.maximum(h @ up * inner, 0) @ down)
        alpha = step * np.sqrt(width) / (blocks + 1)
        h = unit(h + alpha * (moved - h))
    np.testing.assert_allclose(
        network(torch.from_numpy(x)).numpy(force=True), h @ last * last_gain, atol=1e-5
    )


@pytest.mark.ci
def test_simba_v2_gives_any_number_with_all_weights_of_length_1():
    torch.manual_seed(0)
    critics = ParallelMLP(2, 3, (16, 16), 1, body="simba_v2")
    projection = WeightProjection("all", critics)
    adam = torch.optim.Adam(critics.parameters(), 0.01)
    for _ in range(200):
        x = torch.randn(64, 3)
        loss = (critics(x)[..., 0] - 5 * x[:, 0].sign()).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        projection.apply()
    values = critics(torch.tensor([[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]))[..., 0]
    torch.testing.assert_close(
        values, torch.tensor([[5.0, -5.0]] * 2), atol=1.0, rtol=0
    )


def test_xqc_normalizes_before_each_activation():
    network = filled(make_body("xqc", 3, (8, 6), None))
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    h = batch_norm(x, network[0])
    for i in (1, 4):
        h = h @ network[i].weight.numpy(force=True)
        h = np.maximum(batch_norm(h, network[i + 1]), 0)
    np.testing.assert_allclose(
        network(torch.from_numpy(x)).numpy(force=True), h, atol=1e-4
    )
    names = [name for name, _ in network.named_parameters() if "bias" in name]
    assert len(names) == 3  # of the normalizations alone


def test_flash_sac_adds_what_is_normalized_before_each_activation():
    network = filled(make_body("flash_sac", 3, (8, 8), None))
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    norm, first, *blocks, last = network
    h = batch_norm(x, norm) @ first.weight.numpy(force=True)
    for block in blocks:
        up, inner, _, down, outer, _ = block.layers
        inside = np.maximum(batch_norm(h @ up.weight.numpy(force=True), inner), 0)
        assert inside.shape == (50, 32)
        h = h + np.maximum(batch_norm(inside @ down.weight.numpy(force=True), outer), 0)
    h /= np.sqrt(np.square(h).mean(-1, keepdims=True))
    np.testing.assert_allclose(
        network(torch.from_numpy(x)).numpy(force=True),
        h * last.weight.numpy(force=True),
        atol=1e-4,
    )


@pytest.mark.parametrize("name", NAMES)
def test_members_of_an_ensemble_are_networks_of_their_own(name):
    torch.manual_seed(0)
    ensemble = LeanSequential(*make_body(name, 3, (8, 8), 2)).eval()
    single = LeanSequential(*make_body(name, 3, (8, 8), None)).eval()
    x = torch.randn(5, 3)
    both = ensemble(x)
    assert both.shape == (2, 5, 8)
    assert not torch.allclose(both[0], both[1])
    for member in (0, 1):
        for ours, theirs in zip(single.modules(), ensemble.modules(), strict=True):
            for key, value in ours.named_parameters(recurse=False):
                of_member = dict(theirs.named_parameters(recurse=False))[key][member]
                of_member = of_member.mT if isinstance(ours, nn.Linear) else of_member
                value.data.copy_(of_member.reshape(value.shape))
        torch.testing.assert_close(single(x), both[member])


@pytest.mark.parametrize("name", NAMES)
def test_networks_take_a_body_by_its_name(name):
    torch.manual_seed(0)
    observation = torch.randn(6, 3)
    critic = CriticNetwork(OBSERVATION, 2, 2, joint_fc_layer_params=(8, 8), body=name)
    assert critic((observation, torch.randn(6, 2)))[0].shape == (6, 2)
    options = {"fc_layer_params": (8, 8), "body": name}
    assert ActorNetwork(OBSERVATION, 2, **options)(observation)[0].shape == (6, 2)
    q, _ = QNetwork(OBSERVATION, [3], **options)(observation)
    assert q.shape == (6, 1, 3, 1)
    # Acting is of single rows
    encoder = EncodingNetwork(OBSERVATION, **options).eval()
    torch.testing.assert_close(encoder(observation)[0][:1], encoder(observation[:1])[0])


def test_an_activation_of_layers_that_are_not_there_is_refused():
    body = {"body": "simba", "activation": "elu"}
    for network, arguments, options in (
        (CriticNetwork, (2,), body),
        (ActorNetwork, (2,), body),
        (QNetwork, ([3],), body),
        (CriticNetwork, (2,), {"encoder_activation": "elu"}),
        (QNetwork, ([3],), {"head_activation": "elu"}),
    ):
        with pytest.raises(ConfigError, match=f"{[*options][-1]} has no effect"):
            network(OBSERVATION, *arguments, **options)


def test_the_first_of_critics_with_a_body_is_the_first_of_all():
    torch.manual_seed(0)
    ensemble = ParallelMLP(3, 4, (8,), 1, body="simba")
    x = torch.randn(5, 4)
    all_values = ensemble(x)
    ensemble.is_only_first = True
    torch.testing.assert_close(ensemble(x), all_values[:1])


def test_a_body_of_ones_own():
    def own(size, layer_sizes, num_members):
        assert (size, tuple(layer_sizes), num_members) == (3, (5,), None)
        return [nn.Linear(size, layer_sizes[-1]), nn.Softplus()]

    network = EncodingNetwork(OBSERVATION, fc_layer_params=(5,), body=own)
    assert (network(torch.zeros(2, 3))[0] > 0).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"body": "simbav2"}, ValueError, "Did you mean 'simba_v2'"),
        ({"body": "simba", "fc_layer_params": (8, 16)}, ValueError, "all the same"),
        ({"body": "simba", "layer_norm": True}, ConfigError, "its own layers"),
        ({"body": "xqc", "dropout": 0.1}, ConfigError, "its own layers"),
    ],
)
def test_what_a_body_cannot_do_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        EncodingNetwork(OBSERVATION, **options)
    critic = functools.partial(CriticNetwork, OBSERVATION, 2)
    options["joint_fc_layer_params"] = options.pop("fc_layer_params", (8, 8))
    with pytest.raises(error, match=message):
        critic(**options)
