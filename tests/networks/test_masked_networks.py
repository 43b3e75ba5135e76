from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.config import files as config_files
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.masked_networks import (
    critic_without_mask,
    masked_actor,
    masked_actor_network,
    without_mask,
)
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.networks.value_networks import ValueNetwork
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


def test_without_a_key_networks_are_left_as_they_are():
    actor = ActorDistributionNetwork(STATE, CHOICE)
    value, critic = ValueNetwork(STATE), CriticNetwork(STATE, 0, 2, (3,))
    assert masked_actor(actor, NO_MASK) is actor
    assert without_mask(value, NO_MASK) is value
    assert critic_without_mask(critic, NO_MASK) is critic


def test_an_actor_keeps_the_proportions_of_what_is_allowed():
    actor = ActorDistributionNetwork(MASK.remaining_spec, CHOICE)
    masked = masked_actor(actor, MASK)
    assert masked.input_spec == OBSERVATION
    observation = observe()
    policy, state = masked(observation)
    assert state == ()
    free, _ = actor({"state": observation["state"]})
    expected = free.probs * observation["mask"]
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(policy.probs, expected)
    assert (policy.probs[observation["mask"] == 0] == 0).all()


def test_the_gradient_of_a_masked_actor_is_finite_and_reaches_all_parameters():
    masked = masked_actor(ActorDistributionNetwork(MASK.remaining_spec, CHOICE), MASK)
    policy, _ = masked(observe())
    loss = distributions.log_prob(policy, policy.mode) + distributions.entropy(policy)
    loss.sum().backward()
    for parameter in masked.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@pytest.mark.parametrize("wrap", ["actor", "value"])
def test_recurrent_networks_keep_their_state(wrap):
    if wrap == "actor":
        network = ActorDistributionNetwork(
            MASK.remaining_spec, CHOICE, encoding_network_ctor=Recurrent
        )
        masked = masked_actor(network, MASK)
    else:
        network = ValueNetwork(MASK.remaining_spec, encoding_network_ctor=Recurrent)
        masked = without_mask(network, MASK)
    assert masked.state_spec == network.state_spec
    state = expected = masked.initial_state(5)
    for step in range(3):
        observation = observe(seed=step)
        output, state = masked(observation, state)
        free, expected = network({"state": observation["state"]}, expected)
    nest.map_structure(torch.testing.assert_close, state, expected)
    if wrap == "value":
        torch.testing.assert_close(output, free)
    else:
        ruled_out = observation["mask"] == 0
        torch.testing.assert_close(output.logits[~ruled_out], free.logits[~ruled_out])
        assert (output.probs[ruled_out] == 0).all()


def test_values_do_not_depend_on_the_mask():
    value = without_mask(ValueNetwork(MASK.remaining_spec), MASK)
    observation = observe()
    other = {**observation, "mask": 1 - observation["mask"]}
    torch.testing.assert_close(value(observation)[0], value(other)[0])


def test_critics_do_not_see_the_mask():
    critic = CriticNetwork(MASK.remaining_spec, 1, 2, (3,))
    hidden = critic_without_mask(critic, MASK)
    observation, action = observe(), torch.randn(5, 1)
    expected, _ = critic(({"state": observation["state"]}, action))
    torch.testing.assert_close(hidden((observation, action))[0], expected)
    features, state = hidden.encode(observation)
    assert state == ()
    torch.testing.assert_close(hidden.evaluate(features, action), expected)


def test_networks_see_a_mask_that_is_visible():
    mask = ActionMask(OBSERVATION, CHOICE, "mask", visible_to_networks=True)
    value = without_mask(ValueNetwork(mask.remaining_spec), mask)
    observation = observe()
    other = {**observation, "mask": 1 - observation["mask"]}
    assert not torch.allclose(value(observation)[0], value(other)[0])


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
    masked = masked_actor(ActorDistributionNetwork(MASK.remaining_spec, CHOICE), MASK)
    compiled = torch.compile(masked, fullgraph=True, backend="eager")
    observation = observe()
    torch.testing.assert_close(
        compiled(observation)[0].logits, masked(observation)[0].logits
    )
