from __future__ import annotations

import itertools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.discrete import Categorical
from alf_lite.distributions.mixed_actions import MixedActions
from alf_lite.networks.actor_networks import SquashedActorNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, [-1.0, 0.0], [1.0, 10.0])
CHOICE = BoundedTensorSpec((), torch.int64, 1, 3)
CHOICES = BoundedTensorSpec((2,), torch.int64, 0, [2, 1])
BITS = BoundedTensorSpec((2,), torch.int8, 0, 1)


def policy_for(spec):
    torch.manual_seed(0)
    network = SquashedActorNetwork(OBSERVATION, spec)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return network(torch.randn(6, 3))[0]


def test_a_continuous_action_is_a_vector_with_the_density_of_the_action():
    spec = {"b": BOX, "a": BoundedTensorSpec((), torch.float32, -1, 1)}
    actions = MixedActions(spec)
    assert actions.vector_size == 3
    assert actions.num_joint_values == 1
    assert not actions.has_discrete
    policy = policy_for(spec)
    vector, probs, entropies = actions.sample(policy)
    assert vector.shape == (6, 3)
    assert vector.requires_grad
    assert vector.abs().max() <= 1
    # The same action as a nest: a first, b stretched from [-1, 1] to [0, 10].
    action = {
        "a": vector[:, 0],
        "b": torch.stack([vector[:, 1], 5 * (vector[:, 2] + 1)], dim=1),
    }
    torch.testing.assert_close(actions.to_vector(action), vector)
    expected = distributions.log_prob(policy, action)
    torch.testing.assert_close(-entropies.continuous, expected, atol=1e-3, rtol=1e-3)
    assert probs is None
    assert entropies.discrete == ()
    assert actions.to_joint_index(action) is None


@pytest.mark.parametrize("spec", [BOX, {"b": BOX, "g": CHOICE, "a": BOX}])
def test_several_vectors_have_the_density_of_vectors(spec):
    actions = MixedActions(spec)
    policy = policy_for(spec)
    vectors, log_densities = actions.sample_vectors(policy, 5)
    assert vectors.shape == (5, 6, actions.vector_size)
    assert log_densities.shape == (5, 6)
    assert not vectors.requires_grad
    parts = policy if isinstance(policy, dict) else {"b": policy}
    for vector, log_density in zip(vectors, log_densities, strict=True):
        expected = 0.0
        for part, columns in zip(
            [part for name, part in sorted(parts.items()) if name != "g"],
            vector.split(2, dim=1),
            strict=True,
        ):
            action = torch.stack([columns[:, 0], 5 * (columns[:, 1] + 1)], dim=1)
            # Where the action has 5 times the extent, its density is a fifth.
            expected = expected + part.log_prob(action) + math.log(5)
        torch.testing.assert_close(log_density, expected, atol=1e-3, rtol=1e-3)
    assert vectors.flatten(1).unique(dim=0).shape[0] == 5


@pytest.mark.parametrize(
    "spec",
    [CHOICE, CHOICES, BITS, {"x": CHOICES, "y": CHOICE}, (CHOICE, BITS, CHOICES)],
)
def test_joint_values_are_all_actions_and_their_probabilities_sum_to_1(spec):
    actions = MixedActions(spec)
    policy = policy_for(spec)
    log_probs = actions.joint_log_probs(policy)
    assert log_probs.shape == (6, actions.num_joint_values)
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(6))
    leaves = nest.flatten(spec)
    ranges = [
        range(int(low), int(high) + 1)
        for leaf in leaves
        for low, high in zip(
            leaf.minimum.flatten(), leaf.maximum.flatten(), strict=True
        )
    ]
    for joint, values in enumerate(itertools.product(*ranges)):
        parts, start = [], 0
        for leaf in leaves:
            own = torch.tensor(values[start : start + leaf.numel]).reshape(leaf.shape)
            parts.append(own.to(leaf.dtype).expand(6, *leaf.shape))
            start += leaf.numel
        action = nest.pack_sequence_as(spec, parts)
        assert actions.to_joint_index(action).tolist() == [joint] * 6
        torch.testing.assert_close(
            log_probs[:, joint], distributions.log_prob(policy, action)
        )
    sample = actions.sample(policy)
    assert sample.vector is None
    assert sample.entropies.continuous == ()
    torch.testing.assert_close(sample.probs, log_probs.exp())
    # The parts are independent.
    torch.testing.assert_close(sample.entropies.discrete, distributions.entropy(policy))
    assert actions.to_vector(action) is None


def test_expectations_and_values_of_actions_pick_from_the_joint_values():
    actions = MixedActions((CHOICE, BITS))
    policy = policy_for((CHOICE, BITS))
    sample = actions.sample(policy)
    values = torch.randn(6, 12, 2)
    expected = torch.einsum("ba,bad->bd", sample.probs, values)
    torch.testing.assert_close(sample.expectation(values), expected)
    action = distributions.sample(policy)
    index = actions.to_joint_index(action)
    of_critics = torch.stack([values, values + 1], dim=1)  # [6, 2, 12, 2]
    chosen = actions.values_of(action, of_critics)
    for b in range(6):
        torch.testing.assert_close(chosen[b], of_critics[b, :, index[b]])


def test_a_continuous_action_has_one_value():
    actions = MixedActions(BOX)
    policy = policy_for(BOX)
    sample = actions.sample(policy)
    values = torch.randn(6, 3, 1)
    assert torch.equal(sample.expectation(values[:, 0]), values[:, 0, 0])
    action = distributions.sample(policy)
    assert torch.equal(actions.values_of(action, values), values[..., 0])


def test_a_mixed_action_has_both_parts():
    spec = {"gear": CHOICE, "move": BOX, "lights": BITS}
    actions = MixedActions(spec)
    assert (actions.vector_size, actions.num_joint_values) == (2, 12)
    policy = policy_for(spec)
    action = distributions.sample(policy)
    sample = actions.sample(policy)
    assert sample.vector.shape == (6, 2)
    assert sample.entropies.continuous.shape == (6,)
    index = actions.to_joint_index(action)
    joint = actions.joint_log_probs(policy).gather(1, index[:, None]).squeeze(1)
    discrete = {k: policy[k] for k in ("gear", "lights")}
    expected = distributions.log_prob(discrete, {k: action[k] for k in discrete})
    torch.testing.assert_close(joint, expected)


def test_the_order_of_many_leaves_is_that_of_the_nest():
    unit = BoundedTensorSpec((), torch.float32, -1, 1)
    wide = BoundedTensorSpec((), torch.float32, 0, 100)
    actions = MixedActions([unit] * 11 + [wide])
    action = [torch.full((1,), 0.01 * i) for i in range(11)] + [torch.tensor([75.0])]
    expected = [*(0.01 * i for i in range(11)), 0.5]
    assert actions.to_vector(action)[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_value_that_is_ruled_out_does_no_harm_to_an_entropy():
    actions = MixedActions(CHOICE)
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    log_probs = actions.joint_log_probs(Categorical(logits, minimum=1))
    entropy = -(log_probs.exp() * log_probs).sum(1)
    assert entropy.item() == pytest.approx(0.6931, abs=1e-4)
    entropy.sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_other_actions_are_refused_by_their_path():
    with pytest.raises(ValueError, match=r"\['x'\]: expected finite bounds"):
        MixedActions({"x": TensorSpec((2,)), "y": CHOICE})
    with pytest.raises(ValueError, match=r"\['x'\]: expected bounds for a discrete"):
        MixedActions({"x": TensorSpec((2,), torch.int64), "y": CHOICE})
    with pytest.raises(ValueError, match="1048576 joint values, expected at most 1024"):
        MixedActions(BoundedTensorSpec((20,), torch.int64, 0, 1))
    with pytest.raises(ValueError, match="at least one TensorSpec"):
        MixedActions(())
