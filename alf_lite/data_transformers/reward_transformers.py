"""Functions of the reward: scaling, shifting, clipping.

The reward of a FIRST step is 0. No target reads it, so it is transformed like any other
and stays 0, except under :class:`RewardShifting`.
"""

from __future__ import annotations

import math
from abc import abstractmethod

from torch import Tensor

from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.data_transformer import SingleStepTransformer
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec


class RewardTransformer(SingleStepTransformer):
    """A transformer that changes the reward and nothing else."""

    @abstractmethod
    def transform_reward(self, reward: Tensor) -> Tensor:
        """A new tensor of the same shape [..., *reward_spec.shape]."""

    def transform(self, time_step: TimeStep) -> TimeStep:
        reward = time_step.reward
        assert isinstance(reward, Tensor), "the time step has no reward"
        return time_step._replace(reward=self.transform_reward(reward))


@configurable
class RewardScaling(RewardTransformer):
    """Multiplies the reward by ``scale``."""

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        scale: float,
    ) -> None:
        super().__init__(observation_spec, reward_spec)
        if not math.isfinite(scale):
            raise ConfigError(f"RewardScaling: scale must be finite, got {scale}")
        self._scale = scale

    def transform_reward(self, reward: Tensor) -> Tensor:
        return reward * self._scale


@configurable
class RewardShifting(RewardTransformer):
    """Adds ``bias`` to the reward."""

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        bias: float,
    ) -> None:
        super().__init__(observation_spec, reward_spec)
        if not math.isfinite(bias):
            raise ConfigError(f"RewardShifting: bias must be finite, got {bias}")
        self._bias = bias

    def transform_reward(self, reward: Tensor) -> Tensor:
        return reward + self._bias


@configurable
class RewardClipping(RewardTransformer):
    """Bounds the reward to [minimum, maximum], between which 0 must lie."""

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        minimum: float = -1.0,
        maximum: float = 1.0,
    ) -> None:
        super().__init__(observation_spec, reward_spec)
        if not minimum <= 0 <= maximum or minimum == maximum:
            raise ConfigError(
                "RewardClipping: expected minimum <= 0 <= maximum, not both 0, got "
                f"{minimum} and {maximum}"
            )
        self._minimum = minimum
        self._maximum = maximum

    def transform_reward(self, reward: Tensor) -> Tensor:
        return reward.clamp(self._minimum, self._maximum)
