"""What makes the observations that an RL algorithm sees: representations and goals.

Both act before it, in every step. When a step is trained on, what the RL algorithm
sees of it is made again from what is stored: a goal is stored with the step, and a
representation is computed anew, by the encoder as it is then.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from alf_lite import nest
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Field, LossInfo, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.nest import leaf_name
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec
from alf_lite.utils.device_graphs import is_traced
from alf_lite.utils.tensor_utils import flatten_outer, where_rows

Nest = Any


class HelpingPart(Algorithm):
    """What is trained beside an RL algorithm; by default there is nothing to learn.

    Args:
        observation_spec: of one observation, as this part sees it.
        action_spec: of one action.
        **kwargs: see :class:`Algorithm`.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._observation_spec = observation_spec
        self._action_spec = action_spec

    def train_step(self, inputs: TimeStep, state: Nest, rollout_info: Nest) -> AlgStep:
        """Nothing."""
        return AlgStep(state=state)

    def calc_loss(self, info: Nest) -> LossInfo:
        """None."""
        return LossInfo()


class ObservationPart(HelpingPart):
    """Changes what the parts after it observe, when acting and when training."""

    @property
    @abstractmethod
    def output_spec(self) -> NestedTensorSpec:
        """Of the observations that it makes."""

    @abstractmethod
    def pass_on(self, inputs: TimeStep, output: Nest) -> TimeStep:
        """The step as the parts after this one see it.

        Args:
            inputs: [..., *] as this part sees them.
            output: of ``rollout_step``, likewise.
        """

    @abstractmethod
    def replayed_output(self, inputs: TimeStep, rollout_info: Nest) -> Nest:
        """The output [B, T, ...] for stored steps and what was stored with them."""

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """Parts that acting does not use; unroll workers are not told of them."""
        return []

    def training_info(self, steps: TimeStep) -> Nest:
        """What ``train_step`` needs of steps [B, T, ...]: rows [B, T, ...] or T-1."""
        return ()

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Nest]:
        """The steps as later parts see them, and what this one is trained on."""
        output = self.replayed_output(root_inputs, rollout_info)
        return self.pass_on(root_inputs, output), self.training_info(root_inputs)


class RepresentationLearner(ObservationPart):
    """Learns an encoding of the observation, which takes its place for later parts.

    A subclass has :meth:`encode`, :meth:`training_info`, ``train_step`` and
    ``calc_loss``. It has no memory, and its own loss alone trains it: the loss of the
    RL algorithm, which is computed from representations, does not reach it.
    """

    @property
    @abstractmethod
    def representation_spec(self) -> TensorSpec:
        """Of one representation."""

    @abstractmethod
    def encode(self, observation: Nest) -> Tensor:
        """[B, ...] → [B, ...], representations."""

    @property
    def output_spec(self) -> NestedTensorSpec:
        return self.representation_spec

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """The representation of an observation [B, ...]."""
        encoded = self._encode(inputs.observation, inputs.step_type.shape[0])
        return AlgStep(output=encoded, state=state)

    def _encode(self, observation: Nest, num_rows: int) -> Tensor:
        encoded = self.encode(observation)
        spec = self.representation_spec
        _check_output(f"{self.name}.encode", encoded, spec, num_rows)
        return encoded

    def pass_on(self, inputs: TimeStep, output: Nest) -> TimeStep:
        return inputs._replace(observation=output)

    @torch.no_grad()
    def replayed_output(self, inputs: TimeStep, rollout_info: Nest) -> Nest:
        shape = inputs.step_type.shape
        flat = flatten_outer(inputs.observation)
        return self._encode(flat, shape.numel()).unflatten(0, shape)


class GoalState(NamedTuple):
    """Of a :class:`GoalGenerator`."""

    goal: Nest  # [B, ...], that is followed
    num_steps: Field  # [B] int64, for how many steps it has been


class GoalGenerator(ObservationPart):
    """Gives the policy a goal to follow, which it sees beside the observation.

    The parts after it observe ``{"observation": ..., "goal": ...}``. A new goal is
    drawn where an episode begins, and after ``num_steps_per_goal`` steps. It is stored
    with the step as its rollout info. A subclass has :meth:`draw`.

    Args:
        observation_spec: of one observation.
        action_spec: of one action.
        goal_spec: of one goal.
        num_steps_per_goal: None: a goal lasts for a whole episode.
        **kwargs: see :class:`Algorithm`.

    Raises:
        ConfigError: if there is no goal space.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        goal_spec: NestedTensorSpec,
        num_steps_per_goal: int | None = None,
        **kwargs: Any,
    ) -> None:
        if nest.is_empty(goal_spec):
            raise ConfigError(
                f"{kwargs.get('name') or type(self).__name__} has no goal space: "
                f"goal_spec is {goal_spec!r}, expected the spec of one goal, such as "
                "BoundedTensorSpec((2,), minimum=-1, maximum=1)"
            )
        if num_steps_per_goal is not None and num_steps_per_goal < 1:
            raise ConfigError(
                f"num_steps_per_goal must be positive or None, got {num_steps_per_goal}"
            )
        state_spec = GoalState(goal_spec, TensorSpec((), torch.int64))
        super().__init__(
            observation_spec, action_spec, rollout_state_spec=state_spec, **kwargs
        )
        self._goal_spec = goal_spec
        self._num_steps_per_goal = num_steps_per_goal

    @abstractmethod
    def draw(self, inputs: TimeStep) -> Nest:
        """A new goal for every row of a step: [B, ...]."""

    def _draw(self, inputs: TimeStep) -> Nest:
        goal = self.draw(inputs)
        num_rows = inputs.step_type.shape[0]  # an export would fix len()
        _check_output(f"{self.name}.draw", goal, self._goal_spec, num_rows)
        return goal

    @property
    def goal_spec(self) -> NestedTensorSpec:
        """Of one goal."""
        return self._goal_spec

    @property
    def output_spec(self) -> NestedTensorSpec:
        return {"observation": self._observation_spec, "goal": self._goal_spec}

    def rollout_step(self, inputs: TimeStep, state: GoalState) -> AlgStep:
        """The goal of now, [B, ...]; it is also what is stored."""
        is_new = inputs.is_first()
        if self._num_steps_per_goal is not None:
            is_new = is_new | (state.num_steps >= self._num_steps_per_goal)
        goal, num_steps = state
        if is_traced() or is_new.any():
            goal = where_rows(is_new, self._draw(inputs), goal)
            num_steps = torch.where(is_new, 0, num_steps)
        return AlgStep(output=goal, state=GoalState(goal, num_steps + 1), info=goal)

    def pass_on(self, inputs: TimeStep, output: Nest) -> TimeStep:
        observation = {"observation": inputs.observation, "goal": output}
        return inputs._replace(observation=observation)

    def replayed_output(self, inputs: TimeStep, rollout_info: Nest) -> Nest:
        """The goal of then; one for each window [T, ...] where none was stored."""
        if not nest.is_empty(rollout_info):
            return rollout_info
        batch_size, length = inputs.step_type.shape
        goal = self._draw(nest.map_structure(lambda t: t[:, 0], inputs))
        return nest.map_structure(
            lambda t: t.unsqueeze(1).expand(batch_size, length, *t.shape[1:]), goal
        )


@configurable
class RandomGoal(GoalGenerator):
    """A goal drawn uniformly: a category, or a point between bounds.

    Args:
        observation_spec: of one observation.
        action_spec: of one action.
        num_categories: goals are one-hot vectors of this size.
        goal_spec: or they are drawn from bounded specs, in place of categories.
        **kwargs: see :class:`GoalGenerator`.

    Raises:
        ConfigError: unless exactly one of the two is given, and drawn from.
    """

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        num_categories: int | None = None,
        goal_spec: NestedTensorSpec = (),
        num_steps_per_goal: int | None = None,
        name: str | None = None,
    ) -> None:
        if num_categories is not None:
            if not nest.is_empty(goal_spec) or num_categories < 1:
                raise ConfigError(
                    "RandomGoal: give num_categories, a positive number, or goal_spec; "
                    f"got num_categories={num_categories} and goal_spec={goal_spec!r}"
                )
            goal_spec = TensorSpec((num_categories,))
        elif not all(isinstance(s, BoundedTensorSpec) for s in nest.flatten(goal_spec)):
            raise ConfigError(
                f"RandomGoal draws between bounds, got goal_spec={goal_spec!r}"
            )
        super().__init__(
            observation_spec,
            action_spec,
            goal_spec=goal_spec,
            num_steps_per_goal=num_steps_per_goal,
            name=name,
        )
        self._num_categories = num_categories

    def draw(self, inputs: TimeStep) -> Nest:
        batch_size, device = inputs.step_type.shape, inputs.step_type.device
        if self._num_categories is None:
            return nest.map_structure(
                lambda spec: spec.sample(batch_size).to(device), self._goal_spec
            )
        # Not by randint, whose numbers an exported policy cannot be given.
        index = (torch.rand_like(inputs.discount) * self._num_categories).long()
        return functional.one_hot(index, self._num_categories).float()


def _check_output(
    method: str, output: Nest, spec: NestedTensorSpec, num_rows: int
) -> None:
    """Compares what a subclass made of B steps with what it says of one.

    Raises:
        ConfigError: if the structure or a shape differs.
    """
    if torch.compiler.is_compiling():
        return
    if isinstance(output, Tensor) and isinstance(spec, TensorSpec):  # mostly
        leaves = [("", spec)]
    else:
        try:
            nest.assert_same_structure(spec, output)
        except ValueError as error:
            raise ConfigError(f"{method} returned another nest: {error}") from error
        leaves = nest.flatten_with_path(spec)
    for (path, leaf_spec), leaf in zip(leaves, nest.flatten(output), strict=True):
        shape = (num_rows, *leaf_spec.shape)
        if not isinstance(leaf, Tensor) or leaf.shape != shape:
            got = list(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise ConfigError(
                f"{leaf_name(method, path)}: expected [B, ...] = {list(shape)}, a row "
                f"for each step like {leaf_spec}, got {got}"
            )
