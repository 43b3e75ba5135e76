import math

import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.algorithms.parts.dynamics_ensemble import (
    DynamicsEnsemble,
    ObservationVectors,
    Transitions,
)
from alf_lite.tensor_specs import TensorSpec


def _ensemble(num_members=2, layers=(8,), **kwargs):
    torch.manual_seed(0)
    return DynamicsEnsemble(
        2, 1, num_members=num_members, fc_layer_params=layers, **kwargs
    )


def _data(size=16):
    torch.manual_seed(1)
    return Transitions(
        3 * torch.randn(size, 2) + 1,
        2 * torch.rand(size, 1) - 1,
        torch.randn(size, 2),
        10 * torch.randn(size),
        torch.randint(2, (size,)).float(),
    )


def _softplus(x):
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def test_the_loss_is_that_of_a_loop():
    ensemble, data = _ensemble(), _data()
    nn.init.normal_(ensemble._network._output_layer.weight, std=3.0)
    counted = torch.arange(16) < 12
    ensemble.update_statistics(data, counted)
    weights = torch.randint(3, (2, 16)).float()
    y = torch.cat([data.next_state - data.state, data.reward.unsqueeze(1)], 1)
    s_mean, s_std = data.state[:12].mean(0), data.state[:12].std(0, unbiased=False)
    y_mean, y_std = y[:12].mean(0), y[:12].std(0, unbiased=False)
    with torch.no_grad():
        loss = ensemble.fit(data, weights)
        inputs = torch.cat([(data.state - s_mean) / s_std, data.action], 1)
        raw = ensemble._network(inputs)  # [2, 16, 7]
    for b in range(16):
        likelihood = continues = 0.0
        for k in range(2):
            out = raw[k, b].tolist()
            for i in range(3):
                target = (y[b, i] - y_mean[i]).item() / y_std[i].item()
                log_variance = 0.5 - _softplus(0.5 - out[3 + i])
                log_variance = -10 + _softplus(log_variance + 10)
                term = (out[i] - target) ** 2 / math.exp(log_variance) + log_variance
                likelihood += weights[k, b].item() * term
            p = 1 / (1 + math.exp(-out[6]))
            is_on = data.discount[b].item()
            continues -= weights[k, b].item() * math.log(p if is_on else 1 - p)
        assert loss.likelihood[b].item() == pytest.approx(likelihood, rel=1e-4)
        assert loss.continues[b].item() == pytest.approx(continues, rel=1e-4, abs=1e-6)
    assert ensemble.bound_loss().item() == pytest.approx(0.01 * 2 * 3 * 10.5)


def test_the_bootstrap_draws_as_often_as_poisson_and_always_alike():
    ensemble = _ensemble(num_members=3)
    positions = torch.arange(2000).repeat(5)
    env_ids = torch.arange(5).repeat_interleave(2000)
    w = ensemble.bootstrap_weights(env_ids, positions)
    assert w.shape == (3, 10_000)
    shares = [(w == i).float().mean(1) for i in range(3)]
    for share, expected in zip(shares, [0.3679, 0.3679, 0.1839], strict=True):
        assert (share - expected).abs().max() < 0.015
    assert (w.mean(1) - 1).abs().max() < 0.03
    # Neither members nor neighbours in time or environments hang together.
    assert (torch.corrcoef(w) - torch.eye(3)).abs().max() < 0.04
    rows = w[0].view(5, 2000)
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 0.1
    for lag in (1, 2, 3, 7):
        pair = torch.stack([rows[:, lag:].flatten(), rows[:, :-lag].flatten()])
        assert torch.corrcoef(pair)[0, 1].abs() < 0.04
    some = torch.tensor([7, 4321, 9999])
    again = ensemble.bootstrap_weights(env_ids[some], positions[some])
    assert torch.equal(again, w[:, some])
    # Positions are counted over the whole run.
    late = ensemble.bootstrap_weights(env_ids, positions + 10**12)
    assert (late.mean(1) - 1).abs().max() < 0.03


def test_a_step_draws_from_the_member_of_each_particle():
    ensemble, data = _ensemble(), _data()
    ensemble.update_statistics(data, torch.ones(16, dtype=torch.bool))
    output = ensemble._network._output_layer
    nn.init.zeros_(output.weight)
    # Means of (s', r), raw log variances, logits; of the two members
    output.bias.data[:, 0] = torch.tensor(
        [[0.1, 0.2, 0.3, -2.0, -3.0, 0.0, 1.0], [-0.4, 0.5, -0.6, -4.0, 0.0, 0.0, -2.0]]
    )
    y = torch.cat([data.next_state - data.state, data.reward.unsqueeze(1)], 1)
    mean, std = y.mean(0), y.std(0, unbiased=False)
    state, action = torch.randn(4, 3, 2), torch.randn(4, 3, 1)
    noise = torch.randn(4, 1, 2)
    with torch.no_grad():
        following, reward, goes_on = ensemble.step(state, action, noise)
        deviations = (ensemble(state[0], action[0]).log_variance / 2).exp()[:, 0]
    for p in range(4):
        k = p // 2
        means = output.bias[k, 0, :3].detach()
        change = means[:2] + deviations[k, :2] * noise[p]
        change = change * std[:2] + mean[:2]
        torch.testing.assert_close(following[p], state[p] + change)
        torch.testing.assert_close(reward[p], (means[2] * std[2] + mean[2]).expand(3))
        expected = torch.tensor([1.0, -2.0])[k].sigmoid().expand(3)
        torch.testing.assert_close(goes_on[p], expected)


@pytest.mark.ci
def test_it_learns_means_deviations_and_ends_of_a_noisy_system():
    ensemble = _ensemble(num_members=3, layers=(32,))
    torch.manual_seed(2)
    state, action = 5 * torch.randn(2000, 2), 2 * torch.rand(2000, 1) - 1
    noise = torch.tensor([0.5, 0.1])  # of s'
    following = state + torch.cat([2 * action, -action], 1)
    following = following + noise * torch.randn(2000, 2)
    is_on = (state[:, 0] < 5).float()
    data = Transitions(state, action, following, 3 * action.squeeze(1), is_on)
    ensemble.update_statistics(data, torch.ones(2000, dtype=torch.bool))
    adam = torch.optim.Adam(ensemble.parameters(), lr=0.01)
    for _ in range(400):
        rows = torch.randint(2000, (256,))
        batch = nest.map_structure(lambda t, rows=rows: t[rows], data)
        loss = ensemble.fit(batch, torch.ones(3, 256))
        total = (loss.likelihood + loss.continues).mean() + ensemble.bound_loss()
        adam.zero_grad()
        total.backward()
        adam.step()
    with torch.no_grad():
        outputs = ensemble(state, action)
        _, reward, goes_on = ensemble.step(
            state.expand(3, -1, -1), action.expand(3, -1, -1), torch.zeros(3, 1, 2)
        )
        scale = (following - state).std(0)
        deviation = (outputs.log_variance[..., :2] / 2).exp().mean((0, 1)) * scale
    assert (deviation / noise - 1).abs().max() < 0.15
    assert (reward - 3 * action.squeeze(1)).abs().mean() < 0.2
    is_clear = (state[:, 0] - 5).abs() > 1
    assert ((goes_on > 0.5) == (is_on > 0.5))[:, is_clear].float().mean() > 0.98


def test_nests_of_numbers_become_vectors_and_nests_again():
    spec = {"a": TensorSpec((2, 2)), "b": TensorSpec(())}
    vectors = ObservationVectors(spec)
    observation = {"a": torch.randn(3, 2, 2), "b": torch.randn(3)}
    vector = vectors.to_vector(observation)
    assert vector.shape == (3, vectors.size) == (3, 5)
    again = vectors.to_nest(vector)
    assert torch.equal(again["a"], observation["a"])
    assert torch.equal(again["b"], observation["b"])
    with pytest.raises(ValueError, match=r"observation\.b: expected floats"):
        ObservationVectors({"a": spec["a"], "b": TensorSpec((), torch.uint8)})
