from __future__ import annotations

import functools

import torch

from alf_lite import nest
from alf_lite.algorithms.parts.policy import (
    DeterministicPolicy,
    Policy,
    masked_actor_network,
)
from alf_lite.config import files as config_files
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.action_vectors import BoxActions
from alf_lite.networks.actor_networks import ActorDistributionNetwork, ActorNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

STATE = TensorSpec((2,))
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)
OBSERVATION = {"mask": BoundedTensorSpec((3,), torch.int8, 0, 1), "state": STATE}
MASK = ActionMask(OBSERVATION, CHOICE, "mask")
NO_MASK = ActionMask(STATE, CHOICE, None)
Recurrent = functools.partial(GRUEncodingNetwork, hidden_size=(4,))


def observe(batch_size: int = 5, seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    mask = torch.randint(0, 2, (batch_size, 3), dtype=torch.int8)
    mask[:, 1] = 1
    return {"mask": mask, "state": torch.randn(batch_size, 2)}


def masked_policy(**kwargs) -> Policy:
    ctor = functools.partial(ActorDistributionNetwork, **kwargs)
    return Policy(ctor, CHOICE, MASK)


def test_without_a_mask_the_policy_is_that_of_the_network():
    policy = Policy(ActorDistributionNetwork, CHOICE, NO_MASK)
    state = torch.randn(5, 2)
    expected, _ = policy._network(state)
    assert torch.equal(policy(state)[0].logits, expected.logits)


def test_acting_is_greedy_or_samples():
    policy = masked_policy()
    observation = observe(1000)
    distribution, _ = policy(observation)
    greedy, state = policy.act(observation, ())
    assert torch.equal(greedy, distributions.mode(distribution))
    assert state == ()
    torch.manual_seed(3)
    sample, _ = policy.sample(observation, ())
    torch.manual_seed(3)
    assert torch.equal(sample, distributions.sample(distribution))
    explored, _ = policy.act(observation, (), epsilon=0.5)
    assert 0 < (explored != greedy).float().mean() < 0.5


def test_a_deterministic_policy_stretches_its_vectors_to_the_bounds():
    boxes = BoxActions(BoundedTensorSpec((2,), torch.float32, -2.0, 6.0))
    policy = DeterministicPolicy(ActorNetwork, STATE, boxes)
    state = torch.randn(5, 2)
    vector, _ = policy(state)
    assert vector.abs().max() < 1
    for action, _ in (policy.act(state, (), 1.0), policy.sample(state, ())):
        torch.testing.assert_close(action, 2 + 4 * vector)


def test_an_actor_keeps_the_proportions_of_what_is_allowed():
    masked = masked_policy()
    assert masked.input_spec == OBSERVATION
    observation = observe()
    policy, state = masked(observation)
    assert state == ()
    free, _ = masked._network({"state": observation["state"]})
    expected = free.probs * observation["mask"]
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(policy.probs, expected)
    assert (policy.probs[observation["mask"] == 0] == 0).all()


def test_the_gradient_of_a_masked_actor_is_finite_and_reaches_all_parameters():
    masked = masked_policy()
    policy, _ = masked(observe())
    loss = distributions.log_prob(policy, policy.mode) + distributions.entropy(policy)
    loss.sum().backward()
    for parameter in masked.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_recurrent_networks_keep_their_state():
    masked = masked_policy(encoding_network_ctor=Recurrent)
    assert masked.state_spec == masked._network.state_spec
    state = expected = masked.initial_state(5)
    for step in range(3):
        observation = observe(seed=step)
        policy, state = masked(observation, state)
        free, expected = masked._network({"state": observation["state"]}, expected)
    nest.map_structure(torch.testing.assert_close, state, expected)
    ruled_out = observation["mask"] == 0
    torch.testing.assert_close(policy.logits[~ruled_out], free.logits[~ruled_out])
    assert (policy.probs[ruled_out] == 0).all()


def test_a_conf_masks_the_actor_of_an_algorithm_that_knows_no_masks():
    config_files.parse_config_text(
        """
        masked_actor_network.action_mask_key = "mask"
        masked_actor_network.actor_network_ctor = @ActorDistributionNetwork
        ActorDistributionNetwork.fc_layer_params = (8,)
        """
    )
    actor = masked_actor_network(OBSERVATION, CHOICE)
    observation = observe()
    policy, _ = actor(observation)
    assert ((policy.probs == 0) == (observation["mask"] == 0)).all()


def test_a_compiled_actor_is_masked():
    masked = masked_policy()
    compiled = torch.compile(masked, fullgraph=True, backend="eager")
    observation = observe()
    torch.testing.assert_close(
        compiled(observation)[0].logits, masked(observation)[0].logits
    )
