"""Transformers that change every step for itself, without memory or statistics.

The reward of a FIRST step is 0. No target reads it, so it is transformed like any other
and stays 0, except under :class:`RewardShifting`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.data_transformer import (
    SingleStepTransformer,
    TransformStage,
    replace_specs,
    select_leaves,
)
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec


@configurable
class UntransformedTimeStep(SingleStepTransformer):
    """Puts the raw step into ``time_step.untransformed``, for the algorithm to read.

    It is the step as the environment returned it, with its own reward and goal, also
    where later transformers replace them. Must come first.
    """

    stage = TransformStage.KEEP_RAW
    keeps_entries_apart = True

    def transform(self, time_step: TimeStep) -> TimeStep:
        return time_step._replace(untransformed=time_step)

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        return rewards


class RewardTransformer(SingleStepTransformer):
    """A transformer that changes the reward and nothing else."""

    keeps_entries_apart = True

    @abstractmethod
    def transform_reward(self, reward: Tensor) -> Tensor:
        """A new tensor of the same shape [..., *reward_spec.shape]."""

    def transform(self, time_step: TimeStep) -> TimeStep:
        reward = time_step.reward
        assert isinstance(reward, Tensor), "the time step has no reward"
        return time_step._replace(reward=self.transform_reward(reward))

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        return self.transform_reward(rewards)


@configurable
class RewardScaling(RewardTransformer):
    """Multiplies the reward by ``scale``."""

    def __init__(self, *args: Any, scale: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not math.isfinite(scale):
            raise ConfigError(f"RewardScaling: scale must be finite, got {scale}")
        self._scale = scale
        if type(self) is RewardScaling:
            self.reward_factor = scale

    def transform_reward(self, reward: Tensor) -> Tensor:
        return reward * self._scale


@configurable
class RewardShifting(RewardTransformer):
    """Adds ``bias`` to the reward."""

    def __init__(self, *args: Any, bias: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
        *args: Any,
        minimum: float = -1.0,
        maximum: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if not minimum <= 0 <= maximum or minimum == maximum:
            raise ConfigError(
                "RewardClipping: expected minimum <= 0 <= maximum, not both 0, got "
                f"{minimum} and {maximum}"
            )
        self._minimum = minimum
        self._maximum = maximum

    def transform_reward(self, reward: Tensor) -> Tensor:
        return reward.clamp(self._minimum, self._maximum)


@configurable
class LifeLossDiscount(SingleStepTransformer):
    """Sets the discount to 0 where a life is lost, as if the game had ended there.

    So nothing that comes afterwards is worth anything to an algorithm. The episode goes
    on: the step is no LAST step, the game is not reset, frames are stacked across it,
    and the metrics, which see raw time steps, count whole games.

    The environment must report it, in a conf
    ``create_environment.env_info_keys = ["life_lost"]``.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        info_key: of the ``env_info`` that is not 0 where a life is lost.
    """

    keeps_entries_apart = True

    def __init__(self, *args: Any, info_key: str = "life_lost", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._info_key = info_key

    def set_environment(self, env: Environment) -> None:
        _check_scalar_info("LifeLossDiscount", env, self._info_key)

    def transform(self, time_step: TimeStep) -> TimeStep:
        if not time_step.env_info:  # of a policy that is asked for actions alone
            return time_step
        is_lost = time_step.env_info[self._info_key] != 0
        return time_step._replace(
            discount=torch.where(is_lost, 0.0, time_step.discount)
        )


@configurable
class IgnoreTermination(SingleStepTransformer):
    """Sets the discount of terminal steps, so that what would come later counts.

    For agents to whom an end is no end, such as those that explore (Burda et al. 2019,
    arXiv:1810.12894), and for environments or recorded steps that call a time limit
    terminal. Episodes end as before, and the metrics see it.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        discount: of terminal steps, between 0 and 1.
        info_key: of the ``env_info`` that is not 0 where it shall be so, such as
            ``"TimeLimit.truncated"``; None for all ends.

    Raises:
        ConfigError: if the discount is no such number.
    """

    keeps_entries_apart = True

    def __init__(
        self,
        *args: Any,
        discount: float = 1.0,
        info_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if not 0 <= discount <= 1:
            raise ConfigError(
                f"IgnoreTermination: discount must lie in [0, 1], got {discount}"
            )
        self._discount = discount
        self._info_key = info_key

    def set_environment(self, env: Environment) -> None:
        if self._info_key is not None:
            _check_scalar_info("IgnoreTermination", env, self._info_key)

    def transform(self, time_step: TimeStep) -> TimeStep:
        key, discount = self._info_key, time_step.discount
        # Of a policy that is asked for actions alone
        if not isinstance(discount, Tensor) or (key and not time_step.env_info):
            return time_step
        is_terminal = discount == 0
        if key is not None:
            is_terminal &= time_step.env_info[key] != 0
        return time_step._replace(
            discount=torch.where(is_terminal, self._discount, discount)
        )


def _check_scalar_info(asker: str, env: Environment, key: str) -> None:
    """Raises ConfigError, unless ``env_info`` has a scalar of this name."""
    spec = env.env_info_spec
    shape = spec[key].shape if key in spec else None
    if shape != ():
        problem = "no" if shape is None else f"shape {tuple(shape)} for the"
        raise ConfigError(
            f"{asker}: {env.name} has {problem} env_info {key!r}, expected a scalar. "
            f"Set create_environment.env_info_keys = [{key!r}]."
        )


@configurable
class ImageScaleTransformer(SingleStepTransformer):
    """Maps uint8 values 0 ... 255 to float32 values ``minimum`` ... ``maximum``.

    Replay buffers keep the bytes, a quarter of the memory.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        minimum: what 0 becomes.
        maximum: what 255 becomes.
        fields: names of the images, such as ``["camera"]``; None for all uint8 parts.

    Raises:
        ConfigError: if a field does not exist or is not uint8, or there is none.
    """

    keeps_entries_apart = True

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        minimum: float = -1.0,
        maximum: float = 1.0,
        fields: Sequence[str] | None = None,
    ) -> None:
        if not minimum < maximum:
            raise ConfigError(
                "ImageScaleTransformer: minimum must be less than maximum, got "
                f"{minimum} and {maximum}"
            )
        positions = select_leaves(
            observation_spec, fields, lambda spec: spec.dtype == torch.uint8, "uint8"
        ).values()
        super().__init__(observation_spec, reward_spec)
        self.transformed_observation_spec = replace_specs(
            observation_spec,
            positions,
            lambda spec: BoundedTensorSpec(spec.shape, torch.float32, minimum, maximum),
        )
        self._positions = list(positions)
        self._minimum = minimum
        self._range = maximum - minimum

    def transform(self, time_step: TimeStep) -> TimeStep:
        observation = time_step.observation
        leaves = nest.flatten(observation)
        for i in self._positions:
            # Divided first: 255 becomes exactly 1, and so the exact maximum.
            leaves[i] = (leaves[i] / 255).mul_(self._range).add_(self._minimum)
        return time_step._replace(
            observation=nest.pack_sequence_as(observation, leaves)
        )

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        return rewards
