"""Scales rewards so that discounted returns have a standard deviation of 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.statistics_transformer import (
    StatisticsTransformer,
    UpdateMode,
)
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.linear_recurrence import linear_recurrence
from alf_lite.utils.normalizers import Normalizer, NormalizerMode, NotFiniteError
from alf_lite.utils.step_arrays import StepReader


@configurable
class RewardNormalizer(StatisticsTransformer):
    """Divides the reward by the standard deviation of the running discounted return.

        R_t = γ R_{t-1} + r_t,   R_t = 0 at FIRST

    The statistics are over all steps of the training environments before the current
    unroll, FIRST steps left out; during the first unroll the reward is only clipped.
    The mean is not subtracted, because that would change which policy is best, and the
    reward of FIRST steps stays 0. Every dimension of the reward has its own scale.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        gamma: γ of the discounted return; None means that of the algorithm, and 0.99 if
            it has none.
        clipping: bounds the results to [-clipping, clipping]; None for no bounds.
        mode: how much the past counts, see :class:`Normalizer`.
        speed: of the mode ``"adaptive"``.
        update_rate: of the mode ``"moving"``.
        update_mode: see :class:`StatisticsTransformer`.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        gamma: float | None = None,
        clipping: float | None = 10.0,
        mode: NormalizerMode = "running",
        speed: float = 8.0,
        update_rate: float = 1e-4,
        update_mode: UpdateMode = "rollout",
    ) -> None:
        if gamma is not None and not 0 <= gamma <= 1:
            raise ConfigError(f"RewardNormalizer: gamma must be in [0, 1], got {gamma}")
        super().__init__(
            observation_spec,
            reward_spec,
            normalizer=Normalizer(
                {"reward": reward_spec},
                zero_mean=False,
                mode=mode,
                speed=speed,
                update_rate=update_rate,
            ),
            clipping=clipping,
            update_mode=update_mode,
        )
        self._gamma = 0.99 if gamma is None else gamma
        self._has_own_gamma = gamma is not None
        self._reader = StepReader(reward_spec)
        # [environments so far, elements of the reward], R of the last step. No buffer:
        # only training needs it, and a policy may act in any number of environments.
        self._returns = np.zeros((0, reward_spec.numel))

    def set_gamma(self, gamma: float) -> None:
        if not self._has_own_gamma:
            self._gamma = gamma

    def transform(self, time_step: TimeStep) -> TimeStep:
        reward = time_step.reward
        assert isinstance(reward, Tensor), "the time step has no reward"
        [normalized] = self.normalizer.normalize_leaves([reward], self._clipping)
        return time_step._replace(reward=normalized)

    def update_statistics(self, time_steps: TimeStep) -> None:
        steps = self._reader.read(time_steps)
        if steps.is_first.size == 0:
            return
        if not np.isfinite(steps.rewards).all():
            t, b, i = np.argwhere(~np.isfinite(steps.rewards))[0]
            raise NotFiniteError(
                f"reward: {steps.rewards[t, b, i]} at index ({t}, {b})"
            )
        is_first = steps.is_first[..., None]
        returns = linear_recurrence(
            np.where(is_first, 0.0, self._gamma),
            np.where(is_first, 0.0, steps.rewards),
            self._returns_of(steps.env_ids),
        )  # [T, B, elements of the reward]
        counted = torch.from_numpy(returns[~steps.is_first])
        self.normalizer.update(
            {"reward": counted.reshape(-1, *self._reward_spec.shape)}
        )
        self._returns[steps.env_ids] = returns[-1]

    def _returns_of(self, env_ids: np.ndarray) -> np.ndarray:
        """[B, elements of the reward], 0 for environments that are new."""
        num_missing = env_ids.max() + 1 - len(self._returns)
        if num_missing > 0:
            self._returns = np.pad(self._returns, ((0, num_missing), (0, 0)))
        return self._returns[env_ids]

    def training_state_dict(self) -> dict[str, Any]:
        return {"returns": torch.tensor(self._returns)}

    def load_training_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._returns = state_dict["returns"].numpy().copy()
