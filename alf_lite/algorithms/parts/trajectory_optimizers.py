"""Optimizers of action sequences: random shooting, CEM and MPPI.

Each looks for the sequence of H actions in [-1, 1] that a function values most, for B
environments side by side. Nothing is shared between environments: not the distribution
that is refined, not the elites, not the point where one stops. A value that is not
finite counts as the worst.

| optimizer        | moments of the next iteration                                    |
|------------------|------------------------------------------------------------------|
| `RandomShooting` | none: the best of N uniform sequences                            |
| `CrossEntropy`   | of the E best, alike; smoothed with the last ones (Botev et al.) |
| `Mppi`           | of the E best, weighted by exp(τ (value − max))                  |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.distributions.action_vectors import BoxActions
from alf_lite.errors import DivergedError
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_count, check_positive, check_unused
from alf_lite.utils.device_graphs import is_traced

# Actions [B, N, H, A] → their values [B, N]
ValueFn = Callable[[Tensor], Tensor]


class Plan(NamedTuple):
    """What an optimizer found for each environment."""

    mean: Tensor  # [B, H, A], the next search begins near it
    std: Tensor  # [B, H, A]
    elites: Tensor  # [B, E, H, A], the best sequence first
    weights: Tensor  # [B, E], which sum to 1


@configurable
class TrajectoryOptimizer:
    """Refines a normal distribution of action sequences by the best samples of it.

    Args:
        num_samples: N, for each environment and iteration, given sequences included.
        num_elites: E.
        num_iterations: of sampling and refining.
        min_std: bounds of the deviation, and what it begins with.
        max_std: likewise.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        num_samples: int,
        num_elites: int,
        num_iterations: int,
        min_std: float = 0.05,
        max_std: float = 2.0,
    ) -> None:
        name = type(self).__name__
        if not 1 <= num_elites <= num_samples:
            raise ValueError(
                f"{name}: num_elites must lie between 1 and num_samples={num_samples}, "
                f"got {num_elites}"
            )
        check_count(num_iterations=num_iterations)
        if not 0 < min_std <= max_std:
            raise ValueError(
                f"{name}: expected 0 < min_std <= max_std, got {min_std} and {max_std}"
            )
        self.num_samples = num_samples
        self._num_elites = num_elites
        self._num_iterations = num_iterations
        self._min_std, self._max_std = min_std, max_std

    def optimize(
        self,
        value_fn: ValueFn,
        mean: Tensor,
        candidates: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Plan:
        """Looks for the best sequences.

        Args:
            value_fn: see ``ValueFn``; called once in an iteration.
            mean: [B, H, A] where the search begins, such as a plan that was shifted.
            candidates: [B, M, H, A] with M < N, sequences that are among the samples of
                every iteration, such as those of a policy.
            noise: standard normal, of :meth:`make_noise`, for plans that are the same
                each time; None: it is drawn, for every environment on its own.

        Raises:
            ValueError: if there are N candidates or more.
            DivergedError: if no sequence of an environment has a finite value.
        """
        num_candidates = 0 if candidates is None else candidates.shape[1]
        num_drawn = self.num_samples - num_candidates
        if num_drawn < 1:
            raise ValueError(
                f"{type(self).__name__}: num_samples={self.num_samples} leaves no room "
                f"beside {num_candidates} sequences that are given"
            )
        std = torch.full_like(mean, self._max_std)
        shape = (mean.shape[0], num_drawn, *mean.shape[1:])
        for i in range(self._num_iterations):
            if noise is None:
                drawn = torch.randn(shape, device=mean.device, dtype=mean.dtype)
            else:
                drawn = noise[i, :num_drawn].expand(shape)
            actions = self._to_actions(mean.unsqueeze(1), std.unsqueeze(1), drawn)
            if candidates is not None:
                actions = torch.cat([candidates, actions], dim=1)
            values = value_fn(actions)
            values = values.nan_to_num(*[torch.finfo(values.dtype).min] * 3)
            best, index = values.topk(self._num_elites, dim=1)
            self._check(best)
            index = index[..., None, None].expand(-1, -1, *mean.shape[1:])
            elites = actions.gather(1, index)
            weights = self._weights(best)
            mean, std = self._refine(mean, std, *moments(elites, weights))
            std = std.clamp(self._min_std, self._max_std)
        return Plan(mean, std, elites, weights)

    def _check(self, best: Tensor) -> None:
        """Raises DivergedError if all sequences of an environment [B, E] are worst."""
        if is_traced():
            return
        is_lost = best[:, 0] == torch.finfo(best.dtype).min
        if is_lost.any():
            raise DivergedError(
                f"{type(self).__name__}: no sequence of actions has a finite value in "
                f"environments {is_lost.nonzero().flatten().tolist()[:8]}: the model "
                "has diverged, or an observation is not finite"
            )

    def make_noise(self, horizon: int, action_size: int) -> Tensor:
        """[iterations, N, H, A], always the same."""
        generator = torch.Generator().manual_seed(0)
        shape = (self._num_iterations, self.num_samples, horizon, action_size)
        return torch.randn(shape, generator=generator)

    def _to_actions(self, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """[B, number, H, A] within the bounds, of normal noise of this shape."""
        return (mean + std * noise).clamp(-1, 1)

    def _weights(self, values: Tensor) -> Tensor:
        """Of the elites, by their values: [B, E] → [B, E]; all alike."""
        return torch.full_like(values, 1 / values.shape[1])

    def _refine(
        self, mean: Tensor, std: Tensor, new_mean: Tensor, new_std: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What the next iteration draws from, given the moments of the elites."""
        return new_mean, new_std


@configurable
class RandomShooting(TrajectoryOptimizer):
    """The best of N sequences of uniform actions; ``mean`` gives only the shape.

    Args:
        num_samples: N.
    """

    def __init__(self, num_samples: int = 1000) -> None:
        super().__init__(num_samples, num_elites=1, num_iterations=1)

    def _to_actions(self, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        return torch.erf(noise / 2**0.5)  # 2 Φ(noise) − 1


@configurable
class CrossEntropy(TrajectoryOptimizer):
    """The cross-entropy method (Botev et al. 2013), as PETS plans with it.

    Args:
        num_samples: N.
        num_elites: E.
        num_iterations: of sampling and refining.
        smoothing: share of the last moments in the next ones, below 1.
        min_std: see :class:`TrajectoryOptimizer`.
        max_std: see there.
    """

    def __init__(
        self,
        num_samples: int = 400,
        num_elites: int = 40,
        num_iterations: int = 5,
        smoothing: float = 0.1,
        min_std: float = 0.05,
        max_std: float = 2.0,
    ) -> None:
        if not 0 <= smoothing < 1:  # 1 would keep the mean where it begins
            raise ValueError(
                f"CrossEntropy: smoothing must lie in [0, 1), got {smoothing}"
            )
        super().__init__(num_samples, num_elites, num_iterations, min_std, max_std)
        self._smoothing = smoothing

    def _refine(
        self, mean: Tensor, std: Tensor, new_mean: Tensor, new_std: Tensor
    ) -> tuple[Tensor, Tensor]:
        s = self._smoothing
        return new_mean.lerp(mean, s), new_std.lerp(std, s)


@configurable
class Mppi(TrajectoryOptimizer):
    """Model predictive path integral control (Williams et al. 2015), as TD-MPC2 has it.

    Args:
        num_samples: N.
        num_elites: E.
        num_iterations: of sampling and refining.
        temperature: τ; the larger, the more the best sequence counts.
        min_std: see :class:`TrajectoryOptimizer`.
        max_std: see there.
    """

    def __init__(
        self,
        num_samples: int = 512,
        num_elites: int = 64,
        num_iterations: int = 6,
        temperature: float = 0.5,
        min_std: float = 0.05,
        max_std: float = 2.0,
    ) -> None:
        super().__init__(num_samples, num_elites, num_iterations, min_std, max_std)
        check_positive(temperature=temperature)
        if num_elites == 1:
            check_unused(Mppi, "num_elites is 1", temperature=temperature)
        self._temperature = temperature

    def _weights(self, values: Tensor) -> Tensor:
        return (self._temperature * (values - values[:, :1])).softmax(-1)


def moments(actions: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and deviation [B, H, A] of [B, E, H, A] by [B, E]."""
    w = weights[..., None, None]
    mean = (w * actions).sum(1)
    return mean, (w * (actions - mean.unsqueeze(1)).square()).sum(1).sqrt()


def shifted(mean: Tensor) -> Tensor:
    """The plan [B, H, A] one step later, with 0 for its last action."""
    return torch.cat([mean[:, 1:], torch.zeros_like(mean[:, :1])], dim=1)


def box_actions(action_spec: NestedTensorSpec) -> BoxActions:
    """The actions as vectors in [-1, 1].

    Raises:
        ValueError: if they are no boxes.
    """
    try:
        return BoxActions(action_spec)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"sequences of actions are planned in boxes. {error}. Use MuzeroAlgorithm "
            "for a discrete action, SacAlgorithm where some are, PPOAlgorithm without "
            "bounds"
        ) from error
