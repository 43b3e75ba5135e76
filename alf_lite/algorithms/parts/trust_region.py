"""How far updates may move a policy: by taking steps back, or by their length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from alf_lite import nest
from alf_lite.distributions import functions as distributions
from alf_lite.errors import ConfigError
from alf_lite.networks.batch_norm import normalizes_by_batch
from alf_lite.networks.noisy_layers import NoisyLinear
from alf_lite.optimizers.optimizer import Optimizer
from alf_lite.utils import losses

Nest = Any

# KL grows with the square of a small step; a little less, so that one try is enough.
_SAFETY = 0.9
_MAX_TRIES = 8


def check_measures_kl(policy: nn.Module, **settings: float | None) -> None:
    """Refuses to follow how far a policy moves that differs from itself.

    Args:
        policy: whose divergence is measured in training.
        **settings: what is made of it, by name; None: nothing.

    Raises:
        ConfigError: if it says something else of the same steps each time.
    """
    names = [name for name, value in settings.items() if value is not None]
    for module in policy.modules() if names else ():
        if normalizes_by_batch(module) or isinstance(module, _DropoutNd | NoisyLinear):
            raise ConfigError(
                f"{names[0]}: with {type(module).__name__}, a policy that has not "
                "moved differs from itself, and updates would be held back for that. "
                f"Leave {names[0]} out, or the layer of actor_network_ctor."
            )


class TrustRegion:
    """Takes back what an update moved a policy too far.

        θ ← θ_old + c (θ − θ_old),   the first c of 1, c₁, c₂, …, 0 with KL <= limit

    where c shrinks by 0.9 √(limit / KL), to a tenth at least. The momentum of the
    optimizer stays as it is.

    Args:
        policy: whose parameters are moved back; the others stay.
        max_kl: the largest mean divergence of one update.

    Raises:
        ConfigError: if the policy says something else of the same steps each time.
    """

    def __init__(self, policy: nn.Module, max_kl: float) -> None:
        check_measures_kl(policy, max_policy_kl=max_kl)
        self._parameters: list[Tensor] = [
            p for p in policy.parameters() if p.requires_grad
        ]
        self._policy = policy
        self._max_kl = max_kl
        self._old: list[Tensor] = []
        self.num_shortened = 0  # updates that were not taken as they were

    @torch.no_grad()
    def begin(self) -> None:
        """Remembers the parameters that the next update starts from."""
        if not self._old:
            self._old = [p.detach().clone() for p in self._parameters]
        torch._foreach_copy_(self._old, self._parameters)

    @torch.no_grad()
    def limit(self, kl: Callable[[], Tensor]) -> float:
        """Shortens the step since :meth:`begin`, and begins anew.

        Args:
            kl: [], the mean of KL(π_old ‖ π) for the parameters as they are now.

        Returns:
            c, the share of the step that is left.
        """
        moved, share = float(kl()), 1.0
        if not moved <= self._max_kl:
            self.num_shortened += 1
            step = [
                new - old for new, old in zip(self._parameters, self._old, strict=True)
            ]
            for _ in range(_MAX_TRIES):
                if moved <= self._max_kl:
                    break
                shrink = 0.1
                if moved < math.inf:
                    shrink = max(_SAFETY * math.sqrt(self._max_kl / moved), 0.1)
                share *= shrink
                self._go(step, share)
                moved = float(kl())
            if not moved <= self._max_kl:
                share = 0.0
                self._go(step, share)
        self.begin()
        return share

    def limit_on(self, observation: Nest, old: Nest, counts: Tensor) -> float:
        """As :meth:`limit`, by the mean divergence on the steps of the update.

        Args:
            observation: [T, B, ...].
            old: [T, B, ...], π_old of it.
            counts: [T, B] bool, the steps that the mean is taken over.
        """
        observation, old, counts = nest.map_structure(
            lambda t: t.detach().flatten(0, 1), (observation, old, counts)
        )
        return self.limit(
            lambda: losses.batch_mean(
                distributions.kl_divergence(old, self._policy(observation)[0]), counts
            )
        )

    def _go(self, step: list[Tensor], share: float) -> None:
        torch._foreach_copy_(self._parameters, self._old)
        if share:
            torch._foreach_add_(self._parameters, step, alpha=share)


class KlAdaptiveRate(nn.Module):
    """A factor of learning rates that follows how far the policy has moved.

    As in rsl_rl (Schwarke et al. 2025, arXiv:2509.10771): after an update the factor is
    divided by 1.5 if the divergence from the old policy is more than twice the desired
    one, and multiplied by 1.5 if it is less than half of it.

    Args:
        desired_kl: mean KL(π_old ‖ π) that the updates on an unroll shall keep.
        max_factor: the factor stays between this and its inverse.
    """

    _factor: Tensor  # [] float64, checkpointed

    def __init__(self, desired_kl: float, max_factor: float = 30.0) -> None:
        super().__init__()
        self._desired_kl = desired_kl
        self._max_factor = max_factor
        self.register_buffer("_factor", torch.ones((), dtype=torch.float64))

    @property
    def factor(self) -> float:
        return float(self._factor)

    @torch.no_grad()
    def adapt(self, kl: Tensor) -> None:
        """Takes in the divergence [] after an update. Does not wait for a device."""
        kl, factor = kl.double(), self._factor
        smaller, larger = factor / 1.5, factor * 1.5
        factor = torch.where(kl < 0.5 * self._desired_kl, larger, factor)
        factor = torch.where(kl > 2 * self._desired_kl, smaller, factor)
        self._factor.copy_(factor.clamp_(1 / self._max_factor, self._max_factor))

    def scale(self, optimizers: Sequence[Optimizer]) -> None:
        """Has the learning rates of the optimizers multiplied by the factor."""
        factor = self.factor if self._factor.is_cpu else self._factor
        for optimizer in optimizers:
            optimizer.scale_learning_rate(factor)
