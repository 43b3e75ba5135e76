from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.func import functional_call

from alf_lite.algorithms.parts.critics import Critics
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.batch_norm import BatchNorm, trained_rows
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.layers import mlp
from alf_lite.networks.lean_layers import apply_hidden, hidden_layers_in
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

VECTOR = TensorSpec((4,))


def test_it_equals_torchs_with_gradients_and_statistics():
    torch.manual_seed(0)
    ours = BatchNorm(4, momentum=0.9, epsilon=1e-4)
    theirs = nn.BatchNorm1d(4, momentum=0.1, eps=1e-4)
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.copy_(mine.normal_())
    for _ in range(3):
        x = 3 * torch.randn(50, 4) + 1
        results = []
        for layer in (ours, theirs):
            inputs = x.clone().requires_grad_()
            y = layer(inputs)
            wanted = [inputs, *layer.parameters()]
            results.append([y, *torch.autograd.grad((y**3).sum(), wanted)])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    # torch's running variance is that of a sample.
    assert torch.allclose(ours.running_variance, theirs.running_var, rtol=0.02)
    ours.eval()
    theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x), rtol=0.02, atol=0.02)
    assert ours.num_batches == 3


def test_members_of_an_ensemble_equal_layers_of_their_own():
    torch.manual_seed(0)
    ensemble = BatchNorm(4, 3, renorm=True, renorm_after=1)
    layers = [BatchNorm(4, renorm=True, renorm_after=1) for _ in range(3)]
    for _ in range(3):
        x = torch.randn(3, 20, 4) * 5
        y = ensemble(x)
        for k, layer in enumerate(layers):
            torch.testing.assert_close(y[k], layer(x[k]))
            torch.testing.assert_close(
                ensemble.running_variance[k, 0], layer.running_variance
            )
    ensemble.eval()
    assert ensemble(x[0]).shape == (3, 20, 4)  # all members of one input
    torch.testing.assert_close(ensemble(x[0])[0], ensemble.forward_first(x[0]))


def test_renormalization_is_that_of_a_naive_loop():
    """Algorithm 1 of the paper."""
    torch.manual_seed(0)
    layer = BatchNorm(
        2, momentum=0.9, epsilon=0.0, renorm=True, renorm_after=2, max_scale=1.5
    )
    mean, variance = torch.zeros(2), torch.ones(2)
    for count in range(5):
        x = torch.randn(30, 2) * (count + 1) + count
        batch_mean, std = x.mean(0), x.std(0, correction=0)
        expected = (x - batch_mean) / std
        if count >= 2:
            r = (std / variance.sqrt()).clamp(1 / 1.5, 1.5)
            d = ((batch_mean - mean) / variance.sqrt()).clamp(-5, 5)
            expected = expected * r + d
        torch.testing.assert_close(layer(x), expected)
        mean = 0.9 * mean + 0.1 * batch_mean
        variance = 0.9 * variance + 0.1 * std**2
        torch.testing.assert_close(layer.running_mean, mean)


def test_only_a_layer_that_is_trained_takes_the_statistics_of_the_batch():
    torch.manual_seed(0)
    layer = BatchNorm(4)
    x = torch.randn(20, 4) * 3 + 2

    def is_by_batch():
        before = layer.running_mean.clone()
        y = layer(x)
        moved = not layer.running_mean.equal(before)
        assert moved == bool(y.mean(0).abs().max() < 1e-3)
        return moved

    assert is_by_batch()
    with torch.no_grad():
        assert not is_by_batch()
    layer.requires_grad_(False)  # a target, or a critic that improves a policy
    assert not is_by_batch()
    layer.requires_grad_(True).eval()
    assert not is_by_batch()
    with pytest.raises(ValueError, match="a batch of one row has no variance"):
        layer.train()(x[:1])


def test_networks_normalize_their_input_and_every_layer():
    torch.manual_seed(0)
    layers = mlp(4, (8, 6), "relu", True, batch_norm=True, dropout=0.1)
    kinds = [type(layer).__name__ for layer in layers]
    hidden = ["Linear", "Dropout", "LayerNorm", "ReLU", "BatchNorm"]
    assert kinds == ["BatchNorm", *hidden, *hidden]
    network = EncodingNetwork(VECTOR, batch_norm=True, dropout=0.3)
    x = 100 * torch.randn(64, 4)
    with hidden_layers_in(torch.bfloat16):
        assert network(x)[0].mean(0).abs().max() < 1e-2
    network.eval()
    assert network(x)[0].equal(network(x)[0])
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\), got 1"):
        EncodingNetwork(VECTOR, dropout=1.0)
    with pytest.raises(TypeError, match="batch_norm: expected True, False or a"):
        EncodingNetwork(VECTOR, batch_norm="yes")


def test_an_actor_with_options_acts_in_torch_by_its_running_statistics():
    ctor = functools.partial(EncodingNetwork, batch_norm=True, dropout=0.5)
    network = ActorDistributionNetwork(
        VECTOR, BoundedTensorSpec((2,)), encoding_network_ctor=ctor
    )
    x = torch.randn(10, 4) + 3
    for _ in range(300):
        network(x)
    network.eval()
    with torch.no_grad():
        alone = torch.cat([network(row[None])[0].loc for row in x])
        torch.testing.assert_close(alone, network(x)[0].loc)


@pytest.mark.ci
@pytest.mark.parametrize("compiles", [False, True])
def test_critics_are_trained_by_the_batch_and_frozen_ones_keep_their_statistics(
    compiles,
):
    torch.manual_seed(0)
    network = CriticNetwork(VECTOR, 2, 3, batch_norm=True, joint_fc_layer_params=(8,))
    critics = Critics(network, lambda values: values, tau=0.5, period=1)
    observation, action = torch.randn(32, 4), torch.rand(32, 2, requires_grad=True)
    layers = [m for m in network.modules() if isinstance(m, BatchNorm)]
    assert len(layers) == 2

    def means():
        return torch.cat([layer.running_mean.flatten() for layer in layers])

    network((observation, action))[0].sum().backward()
    after = means()
    assert after.abs().max() > 0
    action.grad = None
    evaluate = critics.evaluate_frozen
    if compiles:
        evaluate = torch.compile(evaluate, backend="aot_eager", fullgraph=True)
    values = evaluate(observation, action)
    assert means().equal(after)
    values.sum().backward()
    assert action.grad.abs().sum() > 0
    first = critics.evaluate_frozen(observation, action, only_first=True)
    torch.testing.assert_close(first[:, 0], values[:, 0])
    network.eval()
    torch.testing.assert_close(network.evaluate(observation, action), values)
    critics.target_updater()  # targets have the statistics of their sources
    for buffer, of_target in zip(
        network.buffers(), critics.target.buffers(), strict=True
    ):
        assert buffer.equal(of_target)


@pytest.mark.ci
@pytest.mark.parametrize("renorm", [False, True])
def test_the_backward_pass_of_a_graph_takes_the_statistics_of_the_forward_pass(renorm):
    def gradients(**options):
        limits = {"renorm_after": 0} if renorm else {}
        layer = BatchNorm(4, momentum=0.5, renorm=renorm, **limits)
        frozen = {name: p.detach() for name, p in layer.named_parameters()}

        def loss_of(trained, other):
            values = layer(trained)
            others = functional_call(layer, frozen, (other,))
            return values.square().sum() + others.relu().square().sum()

        loss_of = torch.compile(loss_of, **options) if options else loss_of
        torch.manual_seed(0)
        other, trained = torch.randn(2, 8, 4).unbind()
        loss = loss_of(trained, other.requires_grad_())
        return torch.autograd.grad(loss, [other, *layer.parameters()])

    expected = gradients()
    for a, b in zip(gradients(backend="aot_eager"), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("num_members", [None, 3])
def test_rows_without_a_loss_are_no_part_of_the_statistics(num_members):
    valid = torch.rand(40) < 0.7
    rows = torch.randn(40, 5)
    layer, alone = BatchNorm(5, num_members), BatchNorm(5, num_members)
    expected = alone(rows[valid])
    for value in (0.0, 50.0):
        rows[~valid] = value
        with trained_rows(valid):
            found = layer(rows)
        torch.testing.assert_close(found[..., valid, :], expected)
    alone(rows[valid])
    for name, buffer in alone.named_buffers():
        torch.testing.assert_close(layer.get_buffer(name), buffer)
    before = layer.running_mean.clone()
    with trained_rows(torch.zeros(40, dtype=torch.bool)):
        assert layer(rows).isfinite().all()
    assert layer.running_mean.equal(before)
    with trained_rows(valid):  # other rows than those of the loss
        torch.testing.assert_close(layer(rows[:9]), BatchNorm(5, num_members)(rows[:9]))


class Doubling(BatchNorm):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("num_members", [None, 3])
def test_statistics_of_rows_with_a_loss_are_exact_in_bfloat16(num_members):
    torch.manual_seed(0)
    layer = BatchNorm(4, num_members)
    x, valid = torch.randn(60, 4) + 100, torch.rand(60) < 0.5
    with hidden_layers_in(torch.bfloat16), trained_rows(valid):
        y = apply_hidden(layer, x)
    assert y.dtype == torch.float32
    assert torch.allclose(layer.running_mean / 0.01, x[valid].mean(0), atol=1e-2)
    assert (y[..., valid, :].mean(-2).abs() < 1e-3).all()


def test_a_layer_of_ones_own_is_asked_for_the_first_critic_alone():
    network = CriticNetwork(VECTOR, 2, 3, batch_norm=Doubling)
    critics = Critics(network, lambda values: values, tau=0.5, period=1)
    inputs = torch.randn(6, 4), torch.rand(6, 2)
    first = critics.evaluate_frozen(*inputs, only_first=True)
    torch.testing.assert_close(first, critics.evaluate_frozen(*inputs)[:, :1])


@pytest.mark.parametrize("name", ["renorm_after", "max_scale", "max_shift"])
def test_limits_of_a_renormalization_that_is_not_made_are_refused(name):
    BatchNorm(5, renorm=True, **{name: 7})
    with pytest.raises(ConfigError, match=f"{name} has no effect: renorm is False"):
        BatchNorm(5, **{name: 7})
