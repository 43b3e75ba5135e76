"""What a search chooses among, and the model that it searches in."""

from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.parts.search_model import (
    EveryAction,
    LearnedModel,
    ModelSearch,
    SampledActions,
)
from alf_lite.algorithms.parts.tree_search import TreeSearch
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

BOX = BoundedTensorSpec((2,), torch.float32, -2.0, 4.0)
CHOICE = BoundedTensorSpec((), torch.int64, 3, 5)
OBSERVATION = TensorSpec((3,))


def model_of(actions, **kwargs) -> LearnedModel:
    return LearnedModel(OBSERVATION, actions.vector_size, actions.num_outputs, **kwargs)


def test_a_discrete_action_is_one_hot():
    actions = EveryAction(CHOICE)
    assert actions.to_vectors(torch.tensor([5, 3])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert actions.to_action((), torch.tensor([2, 0])).tolist() == [5, 3]
    found = actions.any_vectors(torch.zeros(50, 4, 3))
    assert found.shape == (50, 4, 3)
    assert found.flatten(0, 1).mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.15)
    assert found.sum(-1).eq(1).all()


def test_sampled_actions_are_those_of_the_policy_between_the_bounds():
    torch.manual_seed(0)
    actions = SampledActions(BOX, num_samples=4000, min_std=0.2)
    policy = torch.tensor([[0.5, -1.0, -0.3, -9.0]])
    logits, u = actions.candidates(policy, at_random=True)
    assert logits.eq(0).all()
    mean = [3 * math.tanh(m / 3) for m in (0.5, -1.0)]
    std = [math.log1p(math.exp(s + 0.4)) + 0.2 for s in (-0.3, -9.0)]
    assert u[0].mean(0).tolist() == pytest.approx(mean, abs=0.05)
    assert u[0].std(0).tolist() == pytest.approx(std, rel=0.05)
    index = torch.tensor([7])
    action = actions.to_action(u, index)
    assert torch.allclose(action, 1 + 3 * u[:, 7].tanh())
    assert torch.allclose(actions.to_vectors(action), u[:, 7].tanh(), atol=1e-6)
    assert torch.equal(actions.vectors(u, index), u[:, 7].tanh())


def test_without_chance_the_samples_are_the_same_and_the_mean_among_them():
    actions = SampledActions(BOX, num_samples=5)
    policy = torch.randn(2, 4)
    u, again = (actions.candidates(policy, at_random=False)[1] for _ in range(2))
    assert torch.equal(u, again)
    assert torch.allclose(u[:, 0], 3 * (policy[:, :2] / 3).tanh())
    drawn, other = (actions.candidates(policy, at_random=True)[1] for _ in range(2))
    assert not torch.isclose(drawn, other).any()


def test_the_loss_of_sampled_actions_is_their_density():
    actions = SampledActions(BOX, num_samples=3)
    policy, weights = torch.randn(2, 5, 4), torch.rand(2, 5, 3).softmax(-1)
    u = torch.randn(2, 5, 3, 2)
    mean = 3 * (policy[..., :2] / 3).tanh()
    std = torch.nn.functional.softplus(policy[..., 2:] + 0.4) + 0.1
    expected = torch.zeros(2, 5)
    for a in range(3):
        log_prob = torch.distributions.Normal(mean, std).log_prob(u[..., a, :]).sum(-1)
        expected -= weights[..., a] * log_prob
    assert torch.allclose(actions.policy_loss(policy, weights, u), expected, atol=1e-5)


class Target(LearnedModel):
    """A reward of minus the distance of the action to (0.5, -0.5), γ = 0."""

    def step(self, latent, action):
        z, expected = super().step(latent, action)
        reward = -(action - torch.tensor([0.5, -0.5])).norm(dim=-1)
        logits = self.reward_head.two_hot(reward).clamp(min=1e-20).log()
        return z, expected._replace(reward=logits)


def test_a_search_takes_the_best_of_the_samples():
    torch.manual_seed(0)
    actions = SampledActions(BOX, num_samples=16)
    model = Target(OBSERVATION, 2, 4)
    search = ModelSearch(model, actions, gamma=0.0, at_random=True)
    root = search.root(torch.randn(6, 3))
    found = TreeSearch(64).run(root, search.step)
    u = torch.as_tensor(root.state[1])
    distance = (u.tanh() - torch.tensor([0.5, -0.5])).norm(dim=-1)
    assert found.action.tolist() == distance.argmin(-1).tolist()
    weight = torch.as_tensor(found.action_weights).gather(
        1, distance.argmin(-1, keepdim=True)
    )
    assert (weight > 1 / 16).all()


def test_the_action_counts_as_much_as_the_state():
    torch.manual_seed(0)
    model = model_of(EveryAction(CHOICE))
    latent, one_hot = model.encode(torch.randn(64, 3)), torch.eye(3)
    with torch.no_grad():
        found = [model.step(latent, one_hot[[a]].expand(64, 3))[0] for a in range(3)]
        by_action = torch.stack(found).var(0).mean()
        by_state = torch.stack(found).mean(0).var(0).mean()
    assert by_action > 0.03 * by_state


def test_a_state_tells_an_observation_from_its_double():
    torch.manual_seed(0)
    model, observation = model_of(EveryAction(CHOICE)), torch.randn(64, 3)
    with torch.no_grad():
        state, of_double = model.encode(observation), model.encode(2 * observation)
    cosine = torch.cosine_similarity(state, of_double, dim=-1)
    assert cosine.mean() < 0.98


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(ValueError, match="one discrete action or boxes, got 2"):
        EveryAction(BoundedTensorSpec((2,), torch.int64, 0, 1))
    with pytest.raises(ValueError, match="finite bounds"):
        SampledActions(TensorSpec((2,)))
    with pytest.raises(ValueError, match="num_samples must be positive"):
        SampledActions(BOX, num_samples=0)
