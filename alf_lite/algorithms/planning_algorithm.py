"""What algorithms have in common that look ahead for the best sequence of actions.

:class:`PlanningAlgorithm` keeps a plan from step to step, and has it refined by one of
the :mod:`~alf_lite.algorithms.parts.trajectory_optimizers`. What a sequence is worth,
and how that is learnt, is a subclass's.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch
from torch import Tensor

from alf_lite.algorithms.parts.trajectory_optimizers import (
    CrossEntropy,
    Mppi,
    Plan,
    TrajectoryOptimizer,
    ValueFn,
    box_actions,
    shifted,
)
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_count, check_unit_interval
from alf_lite.utils.wide_products import largest_matrix, wide_products

Nest = Any


@configurable
class PlanningAlgorithm(RLAlgorithm):
    """Plans H actions at every step, in boxes, and takes the first one.

    The mean of a plan [B, H, A], one step on, is where the next one begins. So it is
    the recurrent state, and zeros where an episode begins.
    """

    skips_rollout_of_random_steps = True
    tells_priority = False
    has_stochastic_policy = False
    explores_by_epsilon = False
    default_planner: ClassVar[type[CrossEntropy | Mppi]] = CrossEntropy

    _plan_noise: Tensor  # [iterations, N, H, A], what predict_step plans with

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        gamma: float = 1.0,
        horizon: int = 25,
        planner: TrajectoryOptimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Stores what plans are made with.

        Args:
            observation_spec: of one observation.
            action_spec: of one action: boxes.
            gamma: γ of the value of a plan.
            horizon: H.
            planner: any of ``trajectory_optimizers``; None: ``default_planner``.
            **kwargs: see :class:`RLAlgorithm`.

        Raises:
            ValueError: if actions are no boxes, or a number is out of range.
            ConfigError: if the reward has several dimensions.
        """
        actions = box_actions(action_spec)
        check_unit_interval(gamma=gamma)
        check_count(horizon=horizon)
        plan_spec = TensorSpec((horizon, actions.vector_size))
        super().__init__(
            observation_spec,
            action_spec,
            is_on_policy=False,
            rollout_state_spec=plan_spec,
            **kwargs,
        )
        if self.has_multidim_reward:
            raise ConfigError(f"{self._name} takes one reward, got {self.reward_spec}")
        self._actions, self._gamma, self._horizon = actions, gamma, horizon
        self._planner = self.default_planner() if planner is None else planner
        noise = self._planner.make_noise(*plan_spec.shape)
        self.register_buffer("_plan_noise", noise, persistent=False)

    def predict_step(self, inputs: TimeStep, state: Tensor) -> AlgStep:
        """Plans with the same noise each time."""
        return self._act(inputs, state, self._plan_noise)

    def rollout_step(self, inputs: TimeStep, state: Tensor) -> AlgStep:
        """Plans with new noise."""
        return self._act(inputs, state, None)

    @torch.no_grad()
    def _act(self, inputs: TimeStep, last: Tensor, noise: Tensor | None) -> AlgStep:
        value_fn, candidates = self._outlook(inputs.observation, noise)
        num_rows = last.shape[0] * self._planner.num_samples
        with wide_products(num_rows, self._largest_matrix):
            plan = self._planner.optimize(value_fn, shifted(last), candidates, noise)
        action = self._first_action(plan, explores=noise is None)
        return AlgStep(output=self._actions.to_action(action), state=plan.mean)

    @functools.cached_property
    def _largest_matrix(self) -> int:
        return largest_matrix(self.parameters())

    def _outlook(
        self, observation: Nest, noise: Tensor | None
    ) -> tuple[ValueFn, Tensor | None]:
        """What values sequences from here, [B, ...], and some that may be good.

        Args:
            observation: [B, ...].
            noise: as :meth:`TrajectoryOptimizer.optimize` takes it: if there is some,
                nothing may be drawn.
        """
        raise NotImplementedError

    def _first_action(self, plan: Plan, explores: bool) -> Tensor:
        """[B, A] in [-1, 1]: of the mean."""
        return plan.mean[:, 0]
