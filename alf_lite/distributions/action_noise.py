"""Noise for the exploration of continuous actions.

A noise process works on action vectors whose elements lie in [-1, 1]. Its state has a
row for every environment and is zero where an episode begins, as every state of a
policy: each environment has a process of its own, which starts anew with its episodes.
"""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.schedulers import Scheduled, as_scheduler

Nest = Any


class ActionNoise(abc.ABC):
    """See the top of this module.

    Args:
        std: a number, or a scheduler of it; 1 is half of the range of an action.
    """

    state_spec: NestedTensorSpec = ()

    def __init__(self, std: Scheduled) -> None:
        self._std = as_scheduler(std)
        self._current_std()

    def perturb(self, action: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Adds noise and clips the result to [-1, 1].

        Args:
            action: [B, size].
            state: [B, ...], zeros where the step is FIRST.

        Returns:
            the noisy action [B, size] and the new state.
        """
        noise, state = self._draw(torch.randn_like(action), state)
        return (action + noise).clamp(-1.0, 1.0), state

    @abc.abstractmethod
    def _draw(self, normal: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """The noise [B, size] made from a standard normal sample, and the new state."""

    def _current_std(self) -> float:
        std = float(self._std())
        if not std >= 0:
            raise ValueError(f"std must not be negative, got {std}")
        return std


@configurable
class GaussianNoise(ActionNoise):
    """Independent normal noise in every step.

    Args:
        size: number of elements of an action.
    """

    def __init__(self, size: int, std: Scheduled = 0.1) -> None:
        super().__init__(std)

    def _draw(self, normal: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        return self._current_std() * normal, state


@configurable
class OrnsteinUhlenbeckNoise(ActionNoise):
    """Noise that is correlated over time and drawn back to 0.

        x_0 = 0,   x_t = (1 − θ) x_{t-1} + σ ε_t,   ε_t ~ N(0, 1)

    Uhlenbeck and Ornstein 1930, as in Lillicrap et al. 2016 (arXiv:1509.02971). In the
    long run its standard deviation is σ / √(1 − (1 − θ)²), 1.9 σ for θ = 0.15.

    Args:
        size: number of elements of an action.
        std: σ, of one step.
        damping: θ in (0, 1].
    """

    def __init__(
        self,
        size: int,
        std: Scheduled = 0.2,
        damping: float = 0.15,
    ) -> None:
        super().__init__(std)
        if not 0 < damping <= 1:
            raise ValueError(f"damping must lie in (0, 1], got {damping}")
        self._damping = damping
        self.state_spec = TensorSpec((size,))

    def _draw(self, normal: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        x = (1 - self._damping) * state + self._current_std() * normal
        return x, x
