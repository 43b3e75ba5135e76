"""Noise that samples of a policy are drawn with, so that they hang together in time.

A normal policy acts by μ(s) + σ(s) ε with ε ~ N(0, 1), squashed or not. What is here
makes the ε_t of an episode. At every step it is standard normal, so that density and
entropy of an action are those that the policy tells; but an environment that only
answers to a push of many steps is pushed, where independent noise cancels out.

| noise                 | ε_t                                       |
|-----------------------|-------------------------------------------|
| `CorrelatedNoise`     | follows ε_{t-1}                           |
| `RepeatedNoise`       | is ε_{t-1} for a few steps, or for many   |
| `StateDependentNoise` | a function of the state, another one soon |
"""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.data_structures import Field
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_count, check_unused

Nest = Any


class NoiseState(NamedTuple):
    """Of one environment; zeros where its episode begins."""

    value: Any  # [B, ...]
    age: Any  # [B] steps since the value was drawn; 0: it is not yet


class SampleNoise(abc.ABC):
    """Standard normal numbers for the continuous parts of actions.

    Each environment has a process of its own, which starts anew with its episodes.

    Args:
        action_size: elements of the continuous parts.
        feature_size: F, of what the policy's head sees; 0 if it does not tell.
    """

    state_spec: NestedTensorSpec
    # Whether ``draw`` gets features.
    uses_features: bool = False

    def __init__(self, action_size: int, feature_size: int) -> None:
        self.action_size = action_size

    @abc.abstractmethod
    def draw(self, features: Field, state: NoiseState) -> tuple[Tensor, NoiseState]:
        """ε [B, action_size] and the new state.

        Args:
            features: [B, F], of the policy for the states; () if not used.
            state: [B, ...].
        """


@configurable
class CorrelatedNoise(SampleNoise):
    """ε_t = ρ ε_{t-1} + √(1 − ρ²) ξ_t, with ξ_t and ε_0 ~ N(0, 1).

    The stationary Ornstein-Uhlenbeck process; the correlation of steps that lie k apart
    is ρ^k. Eberhard et al. 2023, "Pink Noise Is All You Need" compare it with others.

    Args:
        correlation: ρ in [0, 1); 1 / (1 − ρ) steps belong together.
    """

    def __init__(
        self, action_size: int, feature_size: int = 0, *, correlation: float = 0.9
    ) -> None:
        super().__init__(action_size, feature_size)
        if not 0 <= correlation < 1:
            raise ValueError(f"correlation must lie in [0, 1), got {correlation}")
        self._correlation = correlation
        self._innovation = math.sqrt(1 - correlation**2)
        self.state_spec = NoiseState(TensorSpec((action_size,)), TensorSpec(()))

    def draw(self, features: Field, state: NoiseState) -> tuple[Tensor, NoiseState]:
        fresh = torch.randn_like(state.value)
        following = self._correlation * state.value + self._innovation * fresh
        noise = torch.where(state.age.unsqueeze(-1) > 0, following, fresh)
        return noise, NoiseState(noise, torch.ones_like(state.age))


@configurable
class RepeatedNoise(SampleNoise):
    """ε_t = ε_{t-1} for n steps in all, with P(n) in proportion to n^(−exponent).

    Most numbers hold for a step or two, some for many. "FlashSAC", 2026
    (arXiv:2604.04539); after Dabney et al. 2021 (arXiv:2006.01782), who repeat actions.
    Here every environment draws its own n.

    Args:
        exponent: of the zeta distribution; the larger, the fewer are repeated.
        max_repeats: the largest n.
    """

    def __init__(
        self,
        action_size: int,
        feature_size: int = 0,
        *,
        exponent: float = 2.0,
        max_repeats: int = 16,
    ) -> None:
        super().__init__(action_size, feature_size)
        check_count(max_repeats=max_repeats)
        if max_repeats == 1:
            check_unused(RepeatedNoise, "max_repeats is 1", exponent=exponent)
        n = torch.arange(1, max_repeats + 1, dtype=torch.float64)
        shares = n**-exponent
        # [max_repeats + 1] by its age, that a number is not kept: P(n = age | n ≥ age)
        ends = shares / shares.flip(0).cumsum(0).flip(0)
        self._ends = torch.cat([torch.ones(1), ends.float()])
        self.state_spec = NoiseState(TensorSpec((action_size,)), TensorSpec(()))

    def draw(self, features: Field, state: NoiseState) -> tuple[Tensor, NoiseState]:
        self._ends = self._ends.to(state.age.device)
        is_due = torch.rand_like(state.age) < self._ends[state.age.long()]
        fresh = torch.randn_like(state.value)
        noise = torch.where(is_due.unsqueeze(-1), fresh, state.value)
        return noise, NoiseState(noise, torch.where(is_due, 1.0, state.age + 1))


@configurable
class StateDependentNoise(SampleNoise):
    """ε_t = Wᵀ φ(s_t) / ‖φ(s_t)‖, where W ~ N(0, 1) stays for many steps.

    Generalized state-dependent exploration, Raffin et al. 2021 (arXiv:2005.05719): in
    an equal state the same is tried again, and similar states get similar noise. φ are
    the features that the policy's head sees, without gradient. One difference: how
    large the noise is in a state is said by σ of the policy's head, whichever it has;
    the paper derives it from φ, too.

    Args:
        resample_period: steps after which W is drawn anew, besides at the beginning of
            each episode; None: only then.
    """

    uses_features = True

    def __init__(
        self,
        action_size: int,
        feature_size: int,
        *,
        resample_period: int | None = None,
    ) -> None:
        super().__init__(action_size, feature_size)
        check_count(resample_period=resample_period)
        self._period = math.inf if resample_period is None else resample_period
        weights = TensorSpec((feature_size, action_size))
        self.state_spec = NoiseState(weights, TensorSpec(()))

    def draw(self, features: Field, state: NoiseState) -> tuple[Tensor, NoiseState]:
        assert isinstance(features, Tensor)
        is_due = (state.age == 0) | (state.age >= self._period)
        fresh = torch.randn_like(state.value)
        weights = torch.where(is_due[:, None, None], fresh, state.value)
        direction = torch.nn.functional.normalize(features.detach(), dim=-1)
        noise = torch.einsum("bf,bfa->ba", direction, weights)
        return noise, NoiseState(weights, torch.where(is_due, 1.0, state.age + 1))
