"""Optimistic actor-critic.

Ciosek et al., "Better Exploration with Optimistic Actor-Critic", arXiv:1910.12807. It
is SAC that explores where its critics disagree: the rollout draws from a policy whose
mean is moved towards actions of which the critics think the best,

    Q̂(s, a) = mean_k Q_k(s, a) + β std_k Q_k(s, a)
    μ_E = μ + √(2δ) Σ g / √(gᵀ Σ g),  g = ∇_u Q̂(s, squash(u)) at u = μ

which is as far as a policy with the same Σ may be from the one that is learnt if their
divergence is δ (proposition 7). What is learnt, and evaluation, are those of SAC.

Differences from the paper: those of :mod:`~alf_lite.algorithms.sac_algorithm`, and any
number of critics.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.sac_algorithm import SacAlgorithm, SacState
from alf_lite.config import configurable
from alf_lite.distributions import functions as distributions
from alf_lite.errors import ConfigError
from alf_lite.utils.checks import check_not_negative
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients
from alf_lite.utils.tensor_utils import expand_dims_as

Nest = Any

_MIN_NORM = 1e-5  # of the gradient, as in the authors' code


@configurable
class OacAlgorithm(SacAlgorithm):
    """OAC for nests of continuous actions."""

    _optimism = Coefficient()

    def __init__(
        self,
        *specs: Any,
        optimism: Scheduled = 4.66,
        max_divergence: float = 23.53,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`SacAlgorithm` for what is not here.

        Args:
            *specs: of one observation, and of one action: any nest of continuous specs
                with bounds.
            optimism: β, how much disagreement counts; −1 is the smaller of two critics.
            max_divergence: δ, how far exploration goes from the policy; 0 is SAC.

        Raises:
            ConfigError: if the action has discrete parts, or the policy is not normal.
        """
        check_not_negative(max_divergence=max_divergence)
        super().__init__(*specs, **kwargs)
        if self._actions.has_discrete:
            raise ConfigError(
                f"{self._name} moves the mean of continuous actions, got "
                f"{self.action_spec}. Use SacAlgorithm."
            )
        try:
            distributions.noise_size([part for *_, part in self._policy.parts()])
        except ValueError as error:
            raise ConfigError(
                f"{self._name} moves the mean of normal distributions, squashed or "
                f"not: {error}. Choose another actor_network_ctor."
            ) from error
        set_coefficients(self, _optimism=optimism)
        self._step_size = math.sqrt(2 * max_divergence)

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """The rollout needs the critics, not their targets."""
        modules = super().training_only_modules
        return [self._critics.target if m is self._critics else m for m in modules]

    def _exploring(self, policy: Nest, observation: Nest, state: SacState) -> Nest:
        """The optimistic policy."""
        features, _ = self._critics.online.encode(observation, state.critic)
        return self._optimistic(policy, features)

    def _optimistic(self, policy: Nest, features: Tensor) -> Nest:
        """The policy with the mean μ_E.

        Args:
            policy: π(·|s), of batch shape [B].
            features: [B, F], of the critics for s.
        """
        # Acting is without gradient, and what it computes may have none later: copies.
        with torch.inference_mode(False), torch.enable_grad():
            policy = nest.map_structure(lambda t: t.detach().clone(), policy)
            leaves = nest.flatten(policy)  # of each part, the mean and the deviation
            means, stds = leaves[0::2], leaves[1::2]
            for mean in means:
                mean.requires_grad_()
            features = features.detach().clone()
            mode = distributions.mode(policy)
            values = self._critics.evaluate_frozen(
                features, self._actions.to_vector(mode)
            )
            values = self._weigh(values)  # [B, n, 1]
            disagreement = values.std(1, correction=0)
            upper_bound = values.mean(1) + self._optimism * disagreement
            slopes = torch.autograd.grad(upper_bound.sum(), means)
        scaled = [g * std for g, std in zip(slopes, stds, strict=True)]
        squares = [s.flatten(1).square().sum(1) for s in scaled]
        norm = torch.stack(squares).sum(0).sqrt() + _MIN_NORM  # [B]
        moved: list[Tensor] = []
        for mean, std, s in zip(means, stds, scaled, strict=True):
            by = self._step_size / expand_dims_as(norm, s)
            moved += mean.detach() + by * std * s, std
        return nest.pack_sequence_as(policy, moved)
