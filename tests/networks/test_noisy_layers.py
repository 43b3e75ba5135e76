from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.pqn_algorithm import PqnAlgorithm
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.fast.chains import layers_of
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.lean_layers import hidden_layers_in
from alf_lite.networks.noisy_layers import NoisyLinear, exploring_by_noise
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec


def f(noise):
    return noise.sign() * noise.abs().sqrt()


def test_noise_of_weights_is_the_product_of_that_of_inputs_and_outputs():
    layer = NoisyLinear(3, 4, 0.5)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    x = torch.randn(5, 3)
    torch.manual_seed(1)
    y = layer(x)
    torch.manual_seed(1)
    before, after = f(torch.randn(3)), f(torch.randn(4))
    weight = layer.weight + layer.weight_std * torch.outer(after, before)
    bias = layer.bias + layer.bias_std * after
    torch.testing.assert_close(y, x @ weight.T + bias)
    # A row of a batch that explores has noise of its own.
    layer.eval()
    torch.manual_seed(2)
    with exploring_by_noise():
        y = layer(x)
    torch.manual_seed(2)
    before, after = f(torch.randn(5, 3)), f(torch.randn(5, 4))
    for row in range(5):
        noise = torch.outer(after[row], before[row])
        weight = layer.weight + layer.weight_std * noise
        bias = layer.bias + layer.bias_std * after[row]
        torch.testing.assert_close(y[row], weight @ x[row] + bias)


def test_noise_is_drawn_in_training_and_exploration_only():
    torch.manual_seed(0)
    layer = NoisyLinear(3, 4)
    x = torch.ones(2, 3)
    one, other = layer(x), layer(x)
    assert not torch.allclose(one, other)
    assert one[0].equal(one[1])
    layer.eval()
    assert layer(x).equal(nn.functional.linear(x, layer.weight, layer.bias))
    with exploring_by_noise():
        one = layer(x)
        with pytest.raises(RuntimeError), exploring_by_noise():
            raise RuntimeError
        assert not torch.allclose(layer(x), one)
    assert not torch.allclose(one[0], one[1])
    assert layer(x).equal(layer(x))


def test_parameters_start_as_in_the_paper():
    layer = NoisyLinear(16, 500, 0.4)
    assert layer.weight.abs().max() <= 0.25
    assert layer.weight.std().item() == pytest.approx(0.25 / 3**0.5, rel=0.05)
    assert (layer.weight_std == 0.1).all()
    assert (layer.bias_std == 0.1).all()
    with pytest.raises(ValueError, match="noise_std must be positive"):
        NoisyLinear(2, 2, -1.0)


def test_every_parameter_gets_a_gradient_in_reduced_precision():
    network = EncodingNetwork(TensorSpec((3,)), fc_layer_params=(8, 8), noise_std=0.5)
    assert layers_of(network) is not None
    with hidden_layers_in(torch.bfloat16):
        features, _ = network(torch.randn(6, 3))
    assert features.dtype == torch.float32
    features.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    with pytest.raises(ValueError, match="leave one of initializer and noise_std out"):
        EncodingNetwork(TensorSpec((3,)), noise_std=0.5, initializer="he_normal")


def noisy_dqn(cls=DqnAlgorithm, **options):
    ctor = functools.partial(
        QNetwork, fc_layer_params=(), head_fc_layer_params=(32,), noise_std=0.5
    )
    return cls(
        TensorSpec((4,)),
        BoundedTensorSpec((), torch.int64, 0, 2),
        q_network_ctor=ctor,
        rollout_epsilon_greedy=0.0,
        optimizer=Adam(lr=1e-2),
        **options,
    )


def steps(num_envs):
    zeros = torch.zeros(num_envs)
    return TimeStep(
        step_type=torch.full((num_envs,), int(StepType.MID), dtype=torch.int32),
        reward=zeros,
        discount=zeros + 1,
        observation=torch.eye(4)[torch.arange(num_envs) % 4],
        prev_action=torch.zeros(num_envs, dtype=torch.int64),
        env_id=torch.arange(num_envs),
    )


@pytest.mark.parametrize("cls", [DqnAlgorithm, PqnAlgorithm])
def test_a_network_with_noise_explores_in_rollouts_and_predicts_greedily(cls):
    torch.manual_seed(0)
    algorithm = noisy_dqn(cls)
    algorithm.set_training(False)
    state = algorithm.get_initial_rollout_state(400)
    with torch.no_grad():
        actions = algorithm.rollout_step(steps(400), state).output
        greedy = algorithm.predict_step(steps(400), state).output
        again = algorithm.predict_step(steps(400), state).output
    for observed in range(4):
        assert len(actions[observed::4].unique()) > 1  # environments differ
        assert len(greedy[observed::4].unique()) == 1
    assert greedy.equal(again)
    # The noise is that of torch's generator, which a checkpoint keeps.
    torch.manual_seed(7)
    one = algorithm.rollout_step(steps(400), state).output
    torch.manual_seed(7)
    assert one.equal(algorithm.rollout_step(steps(400), state).output)
