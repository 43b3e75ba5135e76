"""What rewards a policy beside, or in place of, what its environment gives.

An :class:`IntrinsicReward` computes one such reward, and a :class:`RewardMixture` adds
them up.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.parts.observation_parts import HelpingPart
from alf_lite.data_structures import BatchInfo, StepType, TimeStep, waits
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils import summary
from alf_lite.utils.losses import masked_mean
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.schedulers import ConstantScheduler, Scheduled, as_scheduler

Nest = Any


class IntrinsicReward(HelpingPart):
    """A reward that is computed, and mostly learned, from the steps that are trained.

    It takes no part in acting. A subclass has :meth:`calc_reward`; one that learns also
    has ``preprocess_experience``, which returns the steps as they are and, in row t of
    an info [B, T-1, ...], what ``train_step`` needs of the transition t → t+1, and
    ``calc_loss`` with loss [T, B]; rows that it has none for count as 0.

    Args:
        observation_spec: of one observation, as the RL algorithm sees it.
        action_spec: of one action.
        optimizer: see :class:`Algorithm`, as for the others.
        checkpoint: see there.
        name: see there.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        optimizer: Optimizer | None = None,
        checkpoint: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            optimizer=optimizer,
            checkpoint=checkpoint,
            name=name,
        )

    @abstractmethod
    def calc_reward(self, steps: TimeStep, batch_info: BatchInfo) -> Tensor:
        """The reward [B, T] of arriving at each of the steps, without gradient.

        What it gives for the first row, whose transition is not known, and for FIRST
        steps does not count.

        Args:
            steps: [B, T, ...], with the reward of the environment; not to be changed.
            batch_info: where they come from; empty fields if from an unroll.
        """

    @torch.no_grad()
    def reward_of(self, steps: TimeStep, batch_info: BatchInfo) -> Tensor:
        """:meth:`calc_reward`, checked, and 0 where there is no transition: [B, T].

        Raises:
            ConfigError: if it is not a tensor of floats [B, T].
        """
        reward = self.calc_reward(steps, batch_info)
        self._check_shape(reward, steps)
        has_come = _has_come(steps)
        has_come[:, 0] = False
        return torch.where(has_come, reward, 0.0)

    def _check_shape(self, reward: object, steps: TimeStep) -> None:
        shape = steps.step_type.shape
        if not (
            isinstance(reward, Tensor)
            and reward.shape == shape
            and reward.is_floating_point()
        ):
            got: object = type(reward).__name__
            if isinstance(reward, Tensor):
                got = f"{list(reward.shape)} of {reward.dtype}"
            raise ConfigError(
                f"{self.name}.calc_reward: expected a reward [B, T] = {list(shape)} of "
                f"floats, one for every step, got {got}"
            )

    def check_reward(self, reward_spec: TensorSpec) -> None:
        """Tries a copy on steps drawn from the specs: a wrong shape is found at once.

        Raises:
            ConfigError: as :meth:`reward_of`.
        """
        outer, generator = (2, 3), torch.Generator().manual_seed(0)
        observation, action = nest.map_structure(
            lambda spec: spec.sample(outer, generator),
            (self._observation_spec, self._action_spec),
        )
        steps = TimeStep(
            step_type=torch.full(outer, int(StepType.MID), dtype=torch.int32),
            reward=reward_spec.zeros(outer),
            discount=torch.ones(outer),
            observation=observation,
            prev_action=action,
            env_id=torch.zeros(outer, dtype=torch.int64),
        )
        with torch.random.fork_rng(devices=[]):
            copied = copy.deepcopy(self)
            try:
                reward = copied.calc_reward(steps, BatchInfo())
            except Exception:
                return  # it wants more of a step than that: the first batch will tell
            self._check_shape(reward, steps)


class RewardMixture(FollowsProgress):
    """r_t = w_e r^e_t + Σ_k w_k r^k_t; or the two terms, [..., 2].

    Args:
        owner: of the weights, in messages.
        names: of the intrinsic rewards, k.
        extrinsic_weight: w_e, a number or a schedule, as the others.
        intrinsic_weights: w_k of all alike, or by name; None, and what is not named: 1.
        has_two_values: each term is trained by a value of its own.

    Raises:
        ConfigError: for weights of rewards that are not there.
    """

    def __init__(
        self,
        owner: str,
        names: Sequence[str],
        extrinsic_weight: Scheduled,
        intrinsic_weights: Scheduled | Mapping[str, Scheduled] | None,
        *,
        has_two_values: bool,
    ) -> None:
        given = {} if intrinsic_weights is None else intrinsic_weights
        if not names and given != {}:
            raise ConfigError(
                f"{owner}.intrinsic_reward_weights is {given!r}, but there are no "
                "intrinsic_rewards"
            )
        if not isinstance(given, Mapping):
            given = dict.fromkeys(names, given)
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"{owner}.intrinsic_reward_weights: there is no intrinsic reward "
                    f"{name!r}.{did_you_mean(name, names) or f' There are: {names}'}"
                )
        self.names = names
        self._weights = {n: as_scheduler(given.get(n, 1.0)) for n in names}
        self._extrinsic_weight = as_scheduler(extrinsic_weight)
        self._has_two_values = has_two_values

    @property
    def changes_reward(self) -> bool:
        """Whether that of the environment does not stay as it is."""
        return self._extrinsic_weight != ConstantScheduler(1.0)

    def sum_up(self, steps: TimeStep, rewards: Mapping[str, Tensor]) -> Tensor:
        """The reward [B, T] or [B, T, 2] that steps [B, T, ...] are trained on.

        Args:
            steps: with the reward of the environment.
            rewards: [B, T], the intrinsic ones by name.
        """
        reward = self._extrinsic_weight() * steps.reward
        intrinsic = torch.zeros_like(reward) if self._has_two_values else reward
        for name, values in rewards.items():
            intrinsic = intrinsic.add(values, alpha=self._weights[name]())
            if summary.should_record():
                mean = masked_mean(values[:, 1:], _has_come(steps)[:, 1:])
                summary.scalar(f"intrinsic/{name}/reward", mean)
        if self._has_two_values:
            return torch.stack([reward, intrinsic], dim=-1)
        return intrinsic


def _has_come(steps: TimeStep) -> Tensor:
    """Whether there is a transition to each of the steps [B, T], but for the first."""
    return ~steps.is_first() & ~waits(steps.step_type, time=1)
