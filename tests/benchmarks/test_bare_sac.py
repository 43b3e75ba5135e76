"""The bare loop of soft actor-critic does the work that it is said to do."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform
from torch.distributions.transformed_distribution import TransformedDistribution

from tests.source_code import ROOT


@pytest.fixture
def bare_sac(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    torch.manual_seed(0)
    return importlib.import_module("bare_sac")


def make_batch(bare_sac):
    size = 8
    return bare_sac.Batch(
        observation=torch.randn(size, 5),
        action=torch.rand(size, 2) * 2 - 1,
        reward=torch.randn(size),
        next_observation=torch.randn(size, 5),
        terminated=torch.zeros(size),
    )


def test_the_log_probability_is_that_of_a_squashed_normal_distribution(bare_sac):
    actor = bare_sac.Actor(5, 2)
    observation = torch.randn(8, 5)
    torch.manual_seed(1)
    raw, noise, log_std = actor(observation)
    mean = raw - log_std.exp() * noise
    policy = TransformedDistribution(
        Independent(Normal(mean, log_std.exp()), 1), TanhTransform()
    )
    torch.manual_seed(1)
    action, log_prob = actor.sample(observation)
    torch.testing.assert_close(action, torch.tanh(raw))
    torch.testing.assert_close(log_prob, policy.log_prob(action), atol=1e-3, rtol=1e-3)


def test_each_critic_is_a_network_of_its_own(bare_sac):
    critics = bare_sac.make_critics(7)
    observation, action = torch.randn(8, 5), torch.randn(8, 2)
    q = bare_sac.evaluate(critics, observation, action)
    for k in range(2):
        hidden = torch.cat([observation, action], dim=1)
        for i in (0, 2):
            hidden = nn.functional.relu(hidden @ critics[i][k] + critics[i + 1][k])
        expected = (hidden @ critics[4][k] + critics[5][k])[:, 0]
        torch.testing.assert_close(q[k], expected)


def test_the_losses_keep_to_their_own_parameters(bare_sac):
    learner = bare_sac.Learner(5, 2, bfloat16=False)
    batch = make_batch(bare_sac)
    torch.manual_seed(1)
    learner._loss(batch).backward()
    joint = [parameter.grad.clone() for parameter in learner._critics]
    # The critics' own loss, with what they do not learn taken as given.
    torch.manual_seed(1)
    with torch.no_grad():
        action, log_prob = learner._actor.sample(batch.next_observation)
        next_q = bare_sac.evaluate(learner._targets, batch.next_observation, action)
        target = batch.reward + 0.99 * (torch.minimum(*next_q) - log_prob)
    q = bare_sac.evaluate(learner._critics, batch.observation, batch.action)
    loss = sum(0.5 * ((q[k] - target) ** 2).mean() for k in range(2))
    alone = torch.autograd.grad(loss, learner._critics)
    torch.testing.assert_close(joint, list(alone))


@pytest.mark.parametrize("bfloat16", [False, True])
def test_an_update_moves_the_targets_towards_the_critics(bare_sac, bfloat16):
    learner = bare_sac.Learner(5, 2, bfloat16)
    before = [target.clone() for target in learner._targets]
    learner.update(make_batch(bare_sac))
    for old, new, critic in zip(
        before, learner._targets, learner._critics, strict=True
    ):
        assert critic.dtype == torch.float32
        assert not torch.equal(critic, old)
        torch.testing.assert_close(new, 0.995 * old + 0.005 * critic.detach())


def test_the_ring_keeps_transitions_whole(bare_sac, monkeypatch):
    monkeypatch.setattr(bare_sac, "CAPACITY", 10)
    replay = bare_sac.Replay(5, 2)
    for i in range(13):
        replay.add(np.full(5, i), np.full(2, i), i, np.full(5, i + 1), 0)
    batch = replay.sample()
    assert set(batch.reward.tolist()) == set(range(3, 13))
    assert torch.equal(batch.observation[:, 0], batch.reward)
    assert torch.equal(batch.action[:, 1], batch.reward)
    assert torch.equal(batch.next_observation[:, 4], batch.reward + 1)
