"""The bare loop of DQN does the work that it is said to do."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from tests.source_code import ROOT


@pytest.fixture
def bare_dqn(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    torch.manual_seed(0)
    return importlib.import_module("bare_dqn")


def test_the_loss_is_the_squared_temporal_difference(bare_dqn):
    network, target_network = bare_dqn._make_network(), bare_dqn._make_network()
    observation, next_observation = torch.randn(8, 4), torch.randn(8, 4)
    action, reward = torch.randint(2, (8,)), torch.randn(8)
    terminated = (torch.arange(8) % 2).float()
    loss = bare_dqn.compute_loss(
        network,
        target_network,
        observation,
        action,
        reward,
        next_observation,
        terminated,
    )
    errors = []
    for i in range(8):
        target = reward[i]
        if terminated[i] == 0:
            target = target + 0.99 * target_network(next_observation[i]).max()
        errors.append((network(observation[i])[action[i]] - target.detach()) ** 2)
    torch.testing.assert_close(loss, torch.stack(errors).mean())
    assert loss.requires_grad


def test_acting_in_numpy_follows_the_parameters(bare_dqn):
    network = bare_dqn._make_network()
    in_torch, in_numpy = (
        bare_dqn._torch_acting(network),
        bare_dqn._numpy_acting(network),
    )
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    for _ in range(2):
        actions = [in_torch(observation) for observation in observations]
        assert actions == [in_numpy(observation) for observation in observations]
        assert set(actions) <= {0, 1}
        with torch.no_grad():  # other parameters, in place, as an optimizer does
            for parameter in network.parameters():
                parameter.copy_(torch.randn_like(parameter))
