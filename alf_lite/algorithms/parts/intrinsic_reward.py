"""What rewards a policy beside, or in place of, what its environment gives."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.data_structures import AlgStep, BatchInfo, LossInfo, StepType, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


class IntrinsicReward(Algorithm):
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
        super().__init__(optimizer=optimizer, checkpoint=checkpoint, name=name)
        self._observation_spec = observation_spec
        self._action_spec = action_spec

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
        has_come = steps.step_type != int(StepType.FIRST)
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

    def train_step(self, inputs: TimeStep, state: Nest, rollout_info: Nest) -> AlgStep:
        """Nothing: by default there is nothing to learn."""
        return AlgStep(state=state)

    def calc_loss(self, info: Nest) -> LossInfo:
        """None, as above."""
        return LossInfo()
