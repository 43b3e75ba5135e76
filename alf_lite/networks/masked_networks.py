"""Networks of agents that must not choose every action in every state.

    mask = ActionMask(observation_spec, action_spec, action_mask_key)
    actor = masked_actor(actor_network_ctor(mask.remaining_spec, action_spec), mask)
    value = without_mask(value_network_ctor(mask.remaining_spec, reward_spec), mask)

Both take observations with the mask. All that follows from the actor's distributions
honours it: samples, modes, log-probabilities, entropies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from alf_lite.config import configurable
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.network import Network, as_critic_network, as_network
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


def masked_actor(network: Network, mask: ActionMask) -> Network:
    """A policy that never chooses what the mask rules out; itself without a mask.

    Args:
        network: from observations without the mask to a nest of distributions.
        mask: of the actions.
    """
    network = as_network(network, mask.remaining_spec, "actor_network_ctor")
    return _MaskedActor(network, mask) if mask.exists else network


def without_mask(network: Network, mask: ActionMask) -> Network:
    """The network for observations with a mask, which it does not see."""
    return _WithoutMask(network, mask) if mask.exists else network


def critic_without_mask(network: CriticNetwork, mask: ActionMask) -> Network:
    """As :func:`without_mask`, for a network with ``encode`` and ``evaluate``."""
    as_critic_network(network, "critic_network_ctor")
    return _CriticWithoutMask(network, mask) if mask.exists else network


@configurable
def masked_actor_network(
    observation_spec: NestedTensorSpec,
    action_spec: NestedTensorSpec,
    *,
    action_mask_key: str = "action_mask",
    actor_network_ctor: Callable[..., Network] = ActorDistributionNetwork,
) -> Network:
    """A policy for algorithms that know nothing of masks: ``actor_network_ctor``.

    What other networks the algorithm has see the mask as a part of the observation.
    """
    mask = ActionMask(observation_spec, action_spec, action_mask_key)
    return masked_actor(actor_network_ctor(mask.remaining_spec, action_spec), mask)


class _Masked(Network):
    """Takes observations with a mask and has the state of the network inside."""

    def __init__(self, network: Any, mask: ActionMask) -> None:
        super().__init__(mask.observation_spec, network.state_spec)
        self._network = network
        self._mask = mask


class _MaskedActor(_Masked):
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Nest, Nest]:
        observation, allowed = self._mask.split(inputs)
        policy, state = self._network(observation, state)
        return self._mask.apply(policy, allowed), state


class _WithoutMask(_Masked):
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        return self._network(self._mask.remaining(inputs), state)


class _CriticWithoutMask(_Masked):
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        observation, action = inputs
        features, state = self.encode(observation, state)
        return self.evaluate(features, action), state

    def encode(self, observation: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        return self._network.encode(self._mask.remaining(observation), state)

    def evaluate(self, features: Tensor, action: Tensor | None) -> Tensor:
        return self._network.evaluate(features, action)
