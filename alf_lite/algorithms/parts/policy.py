"""Policies: the networks that algorithms act with, greedily or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from alf_lite.config import configurable
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.action_vectors import BoxActions
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.network import Network, as_network
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


class Policy(Network):
    """Distributions of actions that never choose what a mask rules out.

    Observations come with the mask, if there is one; the network does not see it. All
    that follows from the distributions honours it: samples, modes, log-probabilities,
    entropies.

    Args:
        network_ctor: called as ``ctor(observation_spec, action_spec)``, without the
            mask; builds a network from observations to a nest of distributions.
        action_spec: of one action.
        mask: of the observations.
    """

    takes_sequences = True

    def __init__(
        self,
        network_ctor: Callable[..., Any],
        action_spec: NestedTensorSpec,
        mask: ActionMask,
    ) -> None:
        network = as_network(
            network_ctor(mask.remaining_spec, action_spec),
            *(mask.remaining_spec, "actor_network_ctor"),
        )
        super().__init__(mask.observation_spec, network.state_spec)
        self.mask = mask
        self._is_masked = mask.exists
        self._network = network

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Nest, Nest]:
        """Observations [B, ...] → (π(·|s), new state)."""
        if not self._is_masked:
            return self._network(inputs, state)
        observation, allowed = self.mask.split(inputs)
        distribution, state = self._network(observation, state)
        return self.mask.apply(distribution, allowed), state

    def act(
        self, observation: Nest, state: Nest, epsilon: float = 0.0
    ) -> tuple[Nest, Nest]:
        """The most likely action, with probability ``epsilon`` a sample; new state."""
        distribution, state = self.forward(observation, state)
        return distributions.epsilon_greedy(distribution, epsilon), state

    def sample(self, observation: Nest, state: Nest) -> tuple[Nest, Nest]:
        """An action drawn from π(·|s), and the new state."""
        distribution, state = self.forward(observation, state)
        return distributions.sample(distribution), state


class DeterministicPolicy(Network):
    """Actions between bounds, given as vectors in [-1, 1].

    Args:
        network_ctor: called as ``ctor(observation_spec, action_size)``; builds a
            network from observations to vectors.
        observation_spec: of one observation.
        actions: from vectors to actions.
    """

    takes_sequences = True

    def __init__(
        self,
        network_ctor: Callable[..., Any],
        observation_spec: NestedTensorSpec,
        actions: BoxActions,
    ) -> None:
        size = actions.vector_size
        network = as_network(
            network_ctor(observation_spec, size),
            *(observation_spec, "actor_network_ctor", (size,)),
        )
        super().__init__(observation_spec, network.state_spec)
        self._network = network
        self._actions = actions

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """Observations [B, ...] → (μ(s) [B, action_size] in [-1, 1], new state)."""
        return self._network(inputs, state)

    def act(
        self, observation: Nest, state: Nest, epsilon: float = 0.0
    ) -> tuple[Nest, Nest]:
        """The action, whatever ``epsilon``, and the new state."""
        vector, state = self._network(observation, state)
        return self._actions.to_action(vector), state

    def sample(self, observation: Nest, state: Nest) -> tuple[Nest, Nest]:
        """As ``act``: there is nothing to draw."""
        return self.act(observation, state)


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
    return Policy(actor_network_ctor, action_spec, mask)
