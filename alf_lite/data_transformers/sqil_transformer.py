"""Soft Q imitation learning: imitates demonstrations by a reward for being like them.

Reddy et al. 2019 (arXiv:1905.11108).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from alf_lite.config import configurable
from alf_lite.data_structures import BatchInfo, Experience, TimeStep
from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    SingleStepTransformer,
    WindowOrigin,
)
from alf_lite.data_transformers.normalizing_transformers import RewardNormalizer
from alf_lite.data_transformers.single_step_transformers import RewardTransformer
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec


@configurable
class SqilTransformer(SingleStepTransformer):
    """Rewards every step of a demonstration with 1 and every step of one's own with 0.

    An off-policy algorithm that learns from such rewards, SAC or DQN, comes back to the
    states of the demonstrations. The demonstrations are offline buffers, see
    ``TrainerConfig.offline_buffer_dir``; the paper draws half of every batch from them.
    What the environment gave as reward is not used, and stays as it is in the buffers
    and in the metrics. Nothing but the reward is changed. That of a FIRST step, which
    no target reads, is 0.

    Reward transformers that change these rewards come after this one; before it, they
    would have no effect. RewardNormalizer does not fit at all: its statistics are of
    the training environments, where the reward is always the same.

    Differences from the paper: (1) The two rewards are options. With 1 and 0, an
    episode that terminates early is worth less than one that goes on, also in the
    demonstrations; where to terminate is the goal, 0 and -1 may be better. (2) The loss
    is that of the algorithm, and the weight of the two halves of a batch what the
    trainer gives them.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward, which must be a number.
        demonstration_reward: of steps of demonstrations.
        own_reward: of all others, also while acting.
        demonstration_sources: numbers of the offline buffers that are demonstrations,
            the first one is 1, see :class:`BatchInfo`; None: all of them.

    Raises:
        ConfigError: if an argument is out of range or the reward is no number.
    """

    needs_replay = True

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        demonstration_reward: float = 1.0,
        own_reward: float = 0.0,
        demonstration_sources: Sequence[int] | None = None,
    ) -> None:
        super().__init__(observation_spec, reward_spec)
        if reward_spec.ndim:
            raise ConfigError(
                "SqilTransformer: expected a reward that is a number, got "
                f"{reward_spec}. Being like a demonstration has one dimension."
            )
        rewards = (demonstration_reward, own_reward)
        if not all(map(math.isfinite, rewards)) or demonstration_reward <= own_reward:
            raise ConfigError(
                "SqilTransformer: expected finite rewards with demonstration_reward > "
                f"own_reward, got {demonstration_reward} and {own_reward}"
            )
        self._demonstration_reward = demonstration_reward
        self._own_reward = own_reward
        self._sources = _checked_sources(demonstration_sources)
        self.num_recorded_sources = max(self._sources or [1])

    def check_neighbours(
        self, earlier: Sequence[DataTransformer], later: Sequence[DataTransformer]
    ) -> None:
        for transformer in _all_parts(earlier):
            if isinstance(transformer, RewardTransformer | RewardNormalizer):
                raise ConfigError(
                    f"SqilTransformer must come before {type(transformer).__name__}, "
                    "whose result it would replace"
                )
        for transformer in _all_parts(later):
            if isinstance(transformer, RewardNormalizer):
                raise ConfigError(
                    "SqilTransformer and RewardNormalizer do not go together: the "
                    "statistics are of the training environments, where the reward "
                    f"is always {self._own_reward}. Use RewardScaling."
                )

    def transform(self, time_step: TimeStep) -> TimeStep:
        """Rewards one's own steps."""
        return self._with_reward(
            time_step, torch.full_like(time_step.reward, self._own_reward)
        )

    def transform_experience(
        self, experience: Experience, source: WindowOrigin | None = None
    ) -> Experience:
        assert source is not None, "it has to know where the windows are from"
        time_step = experience.time_step
        is_demonstration = self._is_demonstration(source.batch_info)
        if is_demonstration is None:
            return experience._replace(time_step=self.transform(time_step))
        rows = torch.where(
            is_demonstration, self._demonstration_reward, self._own_reward
        )
        reward = rows.to(time_step.reward).unsqueeze(1).expand_as(time_step.reward)
        return experience._replace(time_step=self._with_reward(time_step, reward))

    def _with_reward(self, time_step: TimeStep, reward: Tensor) -> TimeStep:
        return time_step._replace(reward=reward.masked_fill(time_step.is_first(), 0.0))

    def _is_demonstration(self, batch_info: BatchInfo) -> Tensor | None:
        """[B] bool; None if no row is."""
        source = batch_info.source
        if not isinstance(source, Tensor):
            return None
        if self._sources is None:
            return source != 0
        return torch.isin(source, torch.tensor(self._sources, device=source.device))


def _checked_sources(sources: Sequence[int] | None) -> list[int] | None:
    if sources is None:
        return None
    numbers = list(sources)
    if not numbers or not all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in numbers
    ):
        raise ConfigError(
            "SqilTransformer: demonstration_sources must be None or the numbers of "
            f"offline buffers, of which the first is 1; got {sources!r}"
        )
    return numbers


def _all_parts(transformers: Sequence[DataTransformer]) -> list[object]:
    """The transformers and those inside of them."""
    return [part for transformer in transformers for part in transformer.modules()]
