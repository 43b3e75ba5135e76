"""Policies: the networks that algorithms act with, greedily or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from alf_lite import nest
from alf_lite.algorithms.parts.temperature import BoxSamples, largest_entropy
from alf_lite.config import configurable
from alf_lite.distributions import functions as distributions
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.distributions.action_vectors import BoxActions
from alf_lite.distributions.one_hot import OneHotCategorical
from alf_lite.distributions.sample_noise import SampleNoise
from alf_lite.errors import ConfigError
from alf_lite.nest import leaf_name
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.network import Network, as_network, takes_whole_sequences
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

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
        mask: of the observations; hides what the network does not see.
        ctor_name: of ``network_ctor`` in messages.

    Raises:
        ConfigError: if the network gives anything else.
    """

    def __init__(
        self,
        network_ctor: Callable[..., Any],
        action_spec: NestedTensorSpec,
        mask: ActionMask,
        ctor_name: str = "actor_network_ctor",
    ) -> None:
        network = as_network(
            network_ctor(mask.remaining_spec, action_spec),
            mask.remaining_spec,
            ctor_name,
        )
        super().__init__(mask.observation_spec, network.state_spec)
        self.mask = mask
        self._action_spec = action_spec
        self._ctor_name = ctor_name
        self._is_plain = mask.is_plain
        self._network = network
        self.parts()

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Nest, Nest]:
        """Observations [B, ...] → (π(·|s), new state)."""
        network: Any = self._modules["_network"]  # faster than by attribute
        if self._is_plain:
            return network(inputs, state)
        observation, allowed = self.mask.split(inputs)
        distribution, state = network(observation, state)
        return self.mask.apply(distribution, allowed), state

    @property
    def network(self) -> Network:
        """From observations without the mask to distributions."""
        return self._network

    def with_features(
        self, observation: Nest, state: Nest = ()
    ) -> tuple[Nest, Tensor, Nest]:
        """π(·|s), the features [B, F] of a network that tells them, the new state."""
        network: Any = self._network
        if self._is_plain:
            return network.with_features(observation, state)
        observation, allowed = self.mask.split(observation)
        distribution, features, state = network.with_features(observation, state)
        return self.mask.apply(distribution, allowed), features, state

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

    def parts(self) -> list[tuple[str, TensorSpec, Distribution]]:
        """Path, spec and, for some observation, distribution of all parts of an action.

        Raises:
            ConfigError: if the network gives anything else.
        """
        distribution, _ = self._look()
        specs = nest.flatten_with_path(self._action_spec)
        cause: Exception | None = None
        try:
            parts = distributions.parts(distribution)
        except (TypeError, ValueError) as error:
            parts, cause = [], error
        are_distributions = all(isinstance(part, Distribution) for part in parts)
        if len(parts) != len(specs) or not are_distributions:
            raise ConfigError(
                f"{self._ctor_name}: expected a network from observations to a "
                f"distribution for each part of {self._action_spec}, got "
                f"{type(self._network).__name__}. Take ActorDistributionNetwork or one "
                "of its kind"
            ) from cause
        named = [
            (leaf_name("action", path), spec, part)
            for (path, spec), part in zip(specs, parts, strict=True)
        ]
        for name, spec, part in named:
            missing = len(spec.shape) - len(part.event_shape)
            if missing > 0:
                raise ConfigError(
                    f"{self._ctor_name}: {name}: {type(part).__name__} takes each "
                    f"number of {list(spec.shape)} for an action of its own. Wrap it: "
                    f"torch.distributions.Independent(..., {missing})"
                )
        return named

    def differentiable_boxes(self) -> BoxSamples:
        """What is known of numbers that a gradient goes through, within their bounds.

        Raises:
            ConfigError: if it cannot go through them, or they leave their bounds.
        """
        boxes = [part for part in self.parts() if part[1].is_continuous]
        max_entropy = 0.0
        for name, spec, part in boxes:
            problem = ""
            if not part.has_rsample:
                problem = "has no reparametrised sample"
            elif distributions.is_unbounded(part):
                problem = "leaves the bounds of the action"
            if problem:
                raise ConfigError(
                    f"{self._ctor_name}: {name}: {type(part).__name__} {problem}. Take "
                    "SquashedActorNetwork, or ActorDistributionNetwork with "
                    "continuous_projection = 'tanh_normal', 'truncated_normal' or "
                    "'beta'"
                )
            max_entropy += largest_entropy(spec, part)
        return BoxSamples(
            max_entropy, any(isinstance(part, OneHotCategorical) for *_, part in boxes)
        )

    @torch.no_grad()
    def _look(self) -> tuple[Nest, int]:
        """π of an observation that there may be, and how many features it has.

        0 of a network that does not tell them.
        """
        generator = torch.Generator().manual_seed(0)
        observation = nest.map_structure(
            lambda spec: spec.sample((1,), generator), self.mask.remaining_spec
        )
        network: Any = self._network
        state = network.initial_state(1)
        trained = [module for module in network.modules() if module.training]
        network.eval()  # statistics and dropout are none of this
        try:
            if not hasattr(network, "with_features"):
                return network(observation, state)[0], 0
            distribution, features, _ = network.with_features(observation, state)
            return distribution, features.shape[-1]
        finally:
            for module in trained:
                module.training = True

    def make_noise(self, noise_ctor: Callable[..., SampleNoise]) -> SampleNoise:
        """Noise that fits this policy, for ``distributions.sample_with_noise``.

        Args:
            noise_ctor: called as ``ctor(action_size, feature_size)``.

        Raises:
            ConfigError: if there is none, or this policy cannot use it.
        """
        distribution, feature_size = self._look()
        try:
            size = distributions.noise_size(distribution)
        except ValueError as error:
            raise ConfigError(
                f"exploration_noise_ctor: {error}. Only normal distributions, squashed "
                "or not, take it: leave it out, or choose another actor_network_ctor"
            ) from error
        noise = noise_ctor(size, feature_size)
        if not isinstance(noise, SampleNoise):
            raise ConfigError(
                "exploration_noise_ctor must build CorrelatedNoise, RepeatedNoise or "
                "StateDependentNoise for a policy that draws its actions, got "
                f"{type(noise).__name__}"
            )
        if noise.uses_features and not feature_size:
            raise ConfigError(
                f"exploration_noise_ctor: {type(noise).__name__} needs features, but "
                f"{type(self._network).__name__} has no with_features. Derive the "
                "network from ActorDistributionNetwork, or use CorrelatedNoise"
            )
        return noise


class DeterministicPolicy(Network):
    """Actions between bounds, given as vectors in [-1, 1].

    Args:
        network_ctor: called as ``ctor(observation_spec, action_size)``; builds a
            network from observations to vectors.
        mask: hides what the network does not see; it rules out nothing.
        actions: from vectors to actions.
    """

    def __init__(
        self, network_ctor: Callable[..., Any], mask: ActionMask, actions: BoxActions
    ) -> None:
        size = actions.vector_size
        network = as_network(
            network_ctor(mask.remaining_spec, size),
            mask.remaining_spec,
            "actor_network_ctor",
            (size,),
        )
        super().__init__(mask.observation_spec, network.state_spec)
        self.mask = mask
        self._network = network
        self._actions = actions

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """Observations [B, ...] → (μ(s) [B, action_size] in [-1, 1], new state)."""
        return self._network(self.mask.remaining(inputs), state)

    def act(
        self, observation: Nest, state: Nest, epsilon: float = 0.0
    ) -> tuple[Nest, Nest]:
        """The action, whatever ``epsilon``, and the new state."""
        vector, state = self.forward(observation, state)
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
