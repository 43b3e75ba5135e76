from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.initializers import (
    Orthogonal,
    VarianceScaling,
    initialized,
    make_initializer,
)
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

VECTOR = TensorSpec((6,))


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("glorot_normal", 2 / (200 + 300)),
        ("glorot_uniform", 2 / (200 + 300)),
        ("he_normal", 2 / 200),
        ("he_uniform", 2 / 200),
        ("lecun_normal", 1 / 200),
        ("lecun_uniform", 1 / 200),
        ("torch", 1 / (3 * 200)),
        ("torch_with_bias", 1 / (3 * 200)),
        (VarianceScaling(3.0, "fan_out", "normal"), 3 / 300),
    ],
)
def test_variances_are_those_of_the_names(name, variance):
    torch.manual_seed(0)
    # 200 inputs and 300 outputs: of a convolution, times the size of the kernel
    for weight in (torch.empty(300, 200), torch.empty(75, 50, 2, 2)):
        make_initializer(name)(weight)
        assert weight.mean().item() == pytest.approx(0, abs=2e-3)
        assert weight.var(correction=0).item() == pytest.approx(variance, rel=0.05)


def test_layers_start_as_they_are_told_and_as_before_otherwise():
    torch.manual_seed(0)
    layer = initialized(nn.Linear(8, 8), 0.5, Orthogonal(3.0))
    torch.testing.assert_close(layer.weight @ layer.weight.T, 9 * torch.eye(8))
    assert not layer.bias.any()
    network = EncodingNetwork(
        {"a": VECTOR, "b": BoundedTensorSpec((12, 12, 3), torch.uint8, 0, 255)},
        initializer="zeros",
    )
    assert not any(parameter.any() for parameter in network.parameters())
    for last in (None, "zeros"):
        for network in (
            ValueNetwork(VECTOR, last_initializer=last),
            QNetwork(VECTOR, (3,), dueling=True, last_initializer=last),
            CriticNetwork(VECTOR, 2, 2, last_initializer=last, initializer="he_normal"),
            ActorDistributionNetwork(
                VECTOR, BoundedTensorSpec((2,)), last_initializer=last
            ),
        ):
            flat = [p for n, p in network.named_parameters() if "weight" in n]
            num_zero = sum(not p.any() for p in flat)
            assert (num_zero > 0) == (last is not None)
            assert num_zero < len(flat)


def test_biases_start_as_those_of_torch_if_they_are_told_to():
    torch.manual_seed(0)
    image = BoundedTensorSpec((12, 12, 3), torch.uint8, 0, 255)
    settings = {"initializer": "torch_with_bias", "last_initializer": "torch_with_bias"}
    critic = CriticNetwork(
        TensorSpec((398,)), 2, 2, joint_fc_layer_params=(100,), **settings
    )
    actor = ActorDistributionNetwork(
        VECTOR, BoundedTensorSpec((2,)), last_initializer="torch_with_bias"
    )
    encoder = EncodingNetwork({"a": VECTOR, "b": image}, initializer="torch_with_bias")
    for network in (critic, actor, encoder):
        biases = [p for n, p in network.named_parameters() if "bias" in n]
        assert biases[-1].any()
    first, last = (p for n, p in critic.named_parameters() if "bias" in n)
    assert first.shape == (2, 1, 100)
    assert 0.9 / 20 < first.abs().max().item() <= 1 / 20
    assert first.var().item() == pytest.approx(1 / (3 * 400), rel=0.2)
    assert last.abs().max().item() <= 1 / 10
    torch.manual_seed(1)
    ours = initialized(nn.Conv2d(3, 8, 2), initializer="torch_with_bias")
    assert ours.bias is not None
    assert 0 < ours.bias.abs().max().item() <= 1 / math.sqrt(12)


def test_every_member_of_an_ensemble_is_drawn_on_its_own():
    torch.manual_seed(0)
    network = CriticNetwork(
        TensorSpec((298,)), 2, 3, joint_fc_layer_params=(100,), initializer="he_uniform"
    )
    weight = next(network.parameters())  # [3, 300, 100]
    assert weight.abs().max().item() <= math.sqrt(3 * 2 / 300)
    for member in weight:
        assert member.var().item() == pytest.approx(2 / 300, rel=0.05)
    assert not torch.allclose(weight[0], weight[1])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"'he_unifrom'.*Did you mean 'he_uniform' or"):
        EncodingNetwork(VECTOR, initializer="he_unifrom")
    with pytest.raises(TypeError, match=r"VarianceScaling\(2.0\), got <class"):
        EncodingNetwork(VECTOR, initializer=Orthogonal)
    with pytest.raises(ValueError, match=r"mode must be one of .*'fan'"):
        VarianceScaling(1.0, "fan")
    with pytest.raises(ValueError, match=r"distribution must be one of .*'cauchy'"):
        VarianceScaling(1.0, "fan_in", "cauchy")
    with pytest.raises(ValueError, match="scale must be positive and finite, got 0"):
        VarianceScaling(0)
    with pytest.raises(ValueError, match="last_initializer: noisy layers start as"):
        QNetwork(VECTOR, (3,), noise_std=0.5, last_initializer="zeros")
