"""How the parts of a reward of several dimensions are weighed against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite.config import configurable
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils import summary
from alf_lite.utils.checks import check_positive
from alf_lite.utils.ranks import SharedStatistics, ranks


class RewardWeights(nn.Module):
    """Weights [D] that checkpoints hold; None for a reward of one dimension.

    Args:
        reward_spec: rank 0, or rank 1 with D dimensions.
        weights: D numbers; ones by default.

    Raises:
        ConfigError: if they do not fit the reward.
    """

    weights: Tensor | None
    are_learned = False  # whether training changes them

    def __init__(
        self, reward_spec: TensorSpec, weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if reward_spec.ndim > 1:
            raise ConfigError(f"reward_spec must have rank 0 or 1, got {reward_spec}")
        if weights is not None and not _are_numbers(weights):
            raise ConfigError(
                "reward_weights must be a list with a number for each dimension of "
                f"the reward, or @LagrangianRewardWeights, got {weights!r}"
            )
        if reward_spec.ndim == 0:
            if weights is not None:
                raise ConfigError(
                    f"reward_weights={list(weights)} given, but the reward of this "
                    "environment has only one dimension"
                )
            self.register_buffer("weights", None)
            return
        if weights is None:
            weights = [1.0] * reward_spec.numel
        if len(weights) != reward_spec.numel:
            raise ConfigError(
                f"{len(weights)} reward_weights for a reward of {reward_spec.numel} "
                "dimensions"
            )
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))

    def set(self, weights: Tensor | Sequence[float]) -> None:
        """Changes the weights.

        Raises:
            ValueError: for a reward of one dimension or a wrong number of weights.
        """
        if self.weights is None:
            raise ValueError("set_reward_weights: the reward has only one dimension")
        new = torch.as_tensor(weights, dtype=torch.float32)
        if new.shape != self.weights.shape:
            raise ValueError(
                f"set_reward_weights: expected {tuple(self.weights.shape)}, got "
                f"{tuple(new.shape)}"
            )
        self.weights.copy_(new)

    def observe(self, steps: TimeStep) -> None:
        """Takes in the steps of an unroll [T, B, ...], with the rewards as they came.

        Weights that are given stay as they are.
        """

    def forward(self, values: Tensor) -> Tensor:
        """Rewards, values or advantages [..., D] → [...]; [...] as it is."""
        return values if self.weights is None else values @ self.weights


def _are_numbers(weights: Any) -> bool:
    try:
        return torch.as_tensor(weights, dtype=torch.float32).ndim == 1
    except (TypeError, ValueError, RuntimeError):
        return False


@configurable
class LagrangianRewardWeights(RewardWeights, SharedStatistics):
    """Weights that rise as long as a part of the reward is less than it shall be.

    Projected gradient steps on the multipliers of the constraints E[r_d] >= c_d, as in
    Tessler et al. 2019 (arXiv:1805.11074), with the mean over the steps
    of an unroll:

        λ_d ← min(max(λ_d − η (mean r_d − c_d), 0), λ_max)

    A part without a threshold keeps its weight. What is maximised is Σ w_d r_d with
    w = λ / Σ λ: then learning rates need not follow the multipliers.

    Args:
        reward_spec: rank 1, with D dimensions.
        thresholds: c_d per step, before all transformers; None for no constraint.
        initial_weights: λ at the start; ones by default.
        learning_rate: η.
        max_weight: λ_max.
        normalize: False takes w = λ.

    Raises:
        ConfigError: if they do not fit the reward, or nothing is constrained, or all
            weights could become 0.
    """

    are_learned = True
    _multipliers: Tensor  # [D]
    _thresholds: Tensor  # [D], -inf where there is none

    def __init__(
        self,
        reward_spec: TensorSpec,
        *,
        thresholds: Sequence[float | None],
        initial_weights: Sequence[float] | None = None,
        learning_rate: float = 0.01,
        max_weight: float = 100.0,
        normalize: bool = True,
    ) -> None:
        check_positive(learning_rate=learning_rate, max_weight=max_weight)
        super().__init__(reward_spec, initial_weights)
        name = type(self).__name__
        if self.weights is None:
            raise ConfigError(
                f"{name}: the reward of this environment has only one dimension"
            )
        if len(thresholds) != len(self.weights):
            raise ConfigError(
                f"{name}: {len(thresholds)} thresholds for a reward of "
                f"{len(self.weights)} dimensions. None means no constraint."
            )
        is_free = torch.tensor([threshold is None for threshold in thresholds])
        if is_free.all() or not (self.weights[is_free] > 0).any():
            raise ConfigError(
                f"{name}: expected a threshold for some parts of the reward and a "
                f"positive weight for one without, got thresholds={list(thresholds)} "
                f"and weights {self.weights.tolist()}"
            )
        numbers = [-torch.inf if c is None else c for c in thresholds]
        self.register_buffer("_thresholds", torch.tensor(numbers), persistent=False)
        self.register_buffer("_multipliers", self.weights.clone())
        # Of this rank since the last step: the number of rewards, and their sums
        self._pending = torch.zeros(1 + len(self.weights), dtype=torch.float64)
        self._learning_rate = learning_rate
        self._max_weight = max_weight
        self._normalize = normalize
        self._use_multipliers()

    def set(self, weights: Tensor | Sequence[float]) -> None:
        """Sets λ, from which the next unrolls go on."""
        super().set(weights)
        self._multipliers.copy_(self.weights)  # type: ignore[arg-type]
        self._use_multipliers()

    @torch.no_grad()
    def observe(self, steps: TimeStep) -> None:
        """One step of the multipliers; FIRST steps have no reward."""
        counted = steps.step_type.ne(int(StepType.FIRST))
        rewards = steps.reward[counted]
        if ranks.size > 1:
            number = torch.tensor([len(rewards)])
            self._pending += torch.cat([number, rewards.double().sum(0).cpu()])
        elif len(rewards):
            self._step(rewards.mean(0))

    def take_pending(self) -> Tensor:
        pending, self._pending = self._pending, torch.zeros_like(self._pending)
        return pending

    def take_in(self, pending: Tensor) -> None:
        number, *sums = pending.sum(0)
        if number > 0:
            self._step(torch.stack(sums) / number)

    @torch.no_grad()
    def _step(self, mean: Tensor) -> None:
        """One step of the multipliers, by the mean reward [D] of an unroll."""
        mean = mean.to(self._multipliers)
        slack = torch.where(self._thresholds.isfinite(), mean - self._thresholds, 0.0)
        new = self._multipliers - self._learning_rate * slack
        limited = new.clamp(0.0, self._max_weight)
        is_free = ~self._thresholds.isfinite()
        self._multipliers.copy_(torch.where(is_free, self._multipliers, limited))
        self._use_multipliers()
        for i, weight in enumerate(self.weights.unbind()):  # type: ignore[union-attr]
            summary.scalar(f"reward_weights/{i}", weight)

    def _use_multipliers(self) -> None:
        weights = self._multipliers
        if self._normalize:
            weights = weights / weights.sum()
        self.weights.copy_(weights)  # type: ignore[union-attr]


def learns_reward_weights(algorithm: nn.Module) -> bool:
    """Whether an algorithm changes the weights, so that its returns do not compare."""
    return any(
        isinstance(part, RewardWeights) and part.are_learned
        for part in algorithm.modules()
    )
