"""Hindsight experience replay: learns from goals that were not meant to be reached.

Andrychowicz et al. 2017 (arXiv:1707.01495).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.data_transformers.data_transformer import (
    ReplayTransformer,
    TransformStage,
    WindowOrigin,
    select_leaves,
)
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.checks import check_choice
from alf_lite.utils.tensor_utils import expand_dims_as

# achieved goals [N, ...], desired goals [N, ...] → rewards [N] or [N, D]
RewardFunction = Callable[[Tensor, Tensor], Tensor]
Nest = Any
GoalStrategy = Literal["future", "final", "episode"]

_logger = logging.getLogger(__name__)

# Of steps whose reward is another for their own goal: rounding may do so to a few.
_MAX_DIFFERENT = 0.01


def reward_function_of(env: Environment) -> RewardFunction | None:
    """The environment's own ``compute_reward``; None if it cannot be reached.

    An Environment computes on tensors. A vector environment, or each of the single
    environments of one in this process, does on numpy arrays, as
    ``compute_reward(achieved_goals, desired_goals)`` or with a third argument for
    infos, which are empty here.
    """
    if isinstance(env, RemoteEnvironment):
        env = env.borrow_original()
    own = getattr(env, "compute_reward", None)
    if own is not None:
        return own
    vector_env = getattr(env, "vector_env", None)
    compute_reward = getattr(vector_env, "compute_reward", None)
    if compute_reward is None:
        for single_env in getattr(vector_env, "envs", ())[:1]:
            compute_reward = _attribute(single_env, "compute_reward")
    return None if compute_reward is None else _on_tensors(compute_reward)


def _attribute(env: Any, name: str) -> Any:
    """Of the environment or of what its wrappers contain."""
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    return getattr(env, name, None)


def _on_tensors(compute_reward: Callable[..., Any]) -> RewardFunction:
    parameters = inspect.signature(compute_reward).parameters.values()
    required = [
        p
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    infos: tuple[Any, ...] = ({},) if len(required) > 2 else ()

    def on_tensors(achieved: Tensor, desired: Tensor) -> Tensor:
        reward = compute_reward(achieved.cpu().numpy(), desired.cpu().numpy(), *infos)
        return torch.from_numpy(np.asarray(reward)).to(achieved.device)

    return on_tensors


@configurable
class HindsightExperienceTransformer(ReplayTransformer):
    """Replaces the desired goal of some replayed windows by one that was achieved.

    The new goal of a window is what was achieved at another step of the same episode,
    drawn by ``strategy`` from the goals that are stored:

        future: after the window's first step, uniformly; its own outcome included
        final: at the end of the episode
        episode: after any step of the episode, uniformly

    An episode that still goes on ends with the newest step that is stored. All steps of
    the window get the same goal, and their rewards are computed for it, except that of
    a FIRST step, which is 0. Everything else stays as it was, the discount too:
    reaching the new goal does not terminate an episode.

    Where a window crosses the end of an episode, its steps of the next episode are a
    window of their own: another draw, and a goal of that episode. The ``rollout_info``
    is not changed; what it says about goals are the old ones.

    The reward function must give what was recorded where the goal is the recorded one.
    That of an environment does not know of wrappers that change rewards, such as
    ``ActionRepeat``; a warning says so when the first windows are drawn.

    Differences from the paper: (1) windows are relabelled or not when they are drawn,
    instead of being stored several times. (2) ``future`` draws from the outcomes of the
    window's first step and of later ones, as most implementations do.

    Args:
        observation_spec: of one raw observation, which holds both goals.
        reward_spec: of one raw reward.
        her_proportion: the probability that a window is relabelled.
        strategy: see above.
        achieved_goal_field: name of the part with the goal that was achieved.
        desired_goal_field: name of the part with the goal to achieve.
        reward_function: of achieved goals [N, ...] and desired goals [N, ...], returns
            rewards [N, *reward_spec.shape]. None means the environment's own
            ``compute_reward``, see :func:`reward_function_of`.

    Raises:
        ValueError: if an argument is out of range, a field does not exist, or the two
            goals have different specs.
    """

    stage = TransformStage.HINDSIGHT

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        her_proportion: float = 0.8,
        strategy: GoalStrategy = "future",
        achieved_goal_field: str = "achieved_goal",
        desired_goal_field: str = "desired_goal",
        reward_function: RewardFunction | None = None,
    ) -> None:
        if not 0 <= her_proportion <= 1:
            raise ConfigError(
                "HindsightExperienceTransformer: her_proportion must be in [0, 1], got "
                f"{her_proportion}"
            )
        if not (reward_function is None or callable(reward_function)):
            raise ConfigError(
                "HindsightExperienceTransformer: reward_function must be a function of "
                f"achieved and desired goals, got {reward_function!r}"
            )
        check_choice(GoalStrategy, strategy=strategy)
        super().__init__(observation_spec, reward_spec)
        self._achieved, achieved_spec = _goal_leaf(
            observation_spec, achieved_goal_field
        )
        self._desired, desired_spec = _goal_leaf(observation_spec, desired_goal_field)
        if (achieved_spec.shape, achieved_spec.dtype) != (
            desired_spec.shape,
            desired_spec.dtype,
        ):
            raise ConfigError(
                f"HindsightExperienceTransformer: '{achieved_goal_field}' and "
                f"'{desired_goal_field}' must have the same shape and dtype, they are "
                f"{achieved_spec} and {desired_spec}"
            )
        self._her_proportion = her_proportion
        self._strategy = strategy
        self._reward_function = reward_function
        self._is_compared = False  # with recorded rewards
        stored = Experience(time_step=TimeStep(observation=observation_spec))
        self._achieved_path, _ = nest.flatten_with_path(stored)[self._achieved]

    def set_environment(self, env: Environment) -> None:
        if self._reward_function is None:
            self._reward_function = reward_function_of(env)
        if self._reward_function is None:
            raise ConfigError(
                f"{env.name} has no compute_reward(achieved_goal, desired_goal) in "
                "this process. Bind HindsightExperienceTransformer.reward_function to "
                "a function of two tensors, or use vectorization_mode='sync'."
            )

    def transform_experience(
        self, experience: Experience, source: WindowOrigin | None = None
    ) -> Experience:
        assert source is not None, "it has to know where the windows are"
        time_step = experience.time_step
        goals, relabelled = self._draw_goals(source, time_step.step_type.shape[1])
        device = time_step.step_type.device
        goals, relabelled = goals.to(device), relabelled.to(device)
        leaves = nest.flatten(time_step.observation)
        achieved, desired = leaves[self._achieved], leaves[self._desired]
        if not self._is_compared and bool(relabelled.any()):
            self._is_compared = True
            self._compare(time_step, achieved, desired)
        leaves[self._desired] = torch.where(
            expand_dims_as(relabelled, desired), goals, desired
        )
        time_step = time_step._replace(
            observation=nest.pack_sequence_as(time_step.observation, leaves),
            reward=self._rewards(time_step, achieved, goals, relabelled),
        )
        return experience._replace(time_step=time_step)

    def _draw_goals(
        self, source: WindowOrigin, num_steps: int
    ) -> tuple[Tensor, Tensor]:
        """Goals [B, N, ...] for all steps, and which steps get theirs, [B, N] bool.

        Args:
            source: of the windows.
            num_steps: N, with the history.
        """
        buffer = source.buffer
        env_ids = source.batch_info.env_ids.cpu().unsqueeze(1)  # [B, 1]
        positions = source.positions(num_steps)  # [B, N]
        first, last = buffer.get_episode_bounds(env_ids, positions)
        # Where the part of the window in the step's episode begins. Steps of the
        # history share the goal of the window's first step, or are of earlier episodes.
        begin = torch.maximum(first, positions[:, source.num_history_steps, None])
        index = begin - positions[:, :1]
        # One draw per part: that of its first step.
        coin, number = torch.rand((2, *positions.shape), dtype=torch.float64)
        coin, number = coin.gather(1, index), number.gather(1, index)
        relabelled = (coin < self._her_proportion) & (begin < last)
        goal_positions = self._goal_positions(first, begin, last, number)
        # Read something that exists where no goal is needed.
        goal_positions = torch.where(relabelled, goal_positions, positions)
        goals = buffer.get_field(self._achieved_path, env_ids, goal_positions)
        return goals, relabelled

    def _goal_positions(
        self, first: Tensor, begin: Tensor, last: Tensor, number: Tensor
    ) -> Tensor:
        """Where to look for the goals.

        Args:
            first: [B, N], of the episode.
            begin: [B, N], of the part of the window in that episode.
            last: [B, N], of the episode.
            number: [B, N], uniform in [0, 1).
        """
        if self._strategy == "final":
            return last
        before = begin if self._strategy == "future" else first
        return before + 1 + (number * (last - before)).long()

    def _compare(self, time_step: TimeStep, achieved: Tensor, desired: Tensor) -> None:
        """Warns of a reward function that gives others than those recorded [B, N]."""
        steps = ~time_step.is_first()
        recorded = time_step.reward[steps]
        computed = self._computed(achieved[steps], desired[steps]).to(recorded)
        differs = ~torch.isclose(computed, recorded, rtol=1e-3, atol=1e-3)
        differs = differs.flatten(1).any(1) if differs.ndim > 1 else differs
        num_different, num_steps = int(differs.sum()), len(differs)
        if num_different > _MAX_DIFFERENT * num_steps:
            i = int(differs.int().argmax())
            _logger.warning(
                "HindsightExperienceTransformer: at %d of %d steps the reward function "
                "gives another reward for the goal that was meant than was recorded, "
                "such as %s in place of %s. Wrappers that change rewards, such as "
                "ActionRepeat, are not asked: leave them out, or bind reward_function.",
                num_different,
                num_steps,
                computed[i].tolist(),
                recorded[i].tolist(),
            )

    def _rewards(
        self, time_step: TimeStep, achieved: Tensor, goals: Tensor, relabelled: Tensor
    ) -> Tensor:
        """[B, N], those for the new goals where there are."""
        changed = relabelled & ~time_step.is_first()
        num_changed = int(changed.sum())
        if num_changed == 0:
            return time_step.reward
        rewards = time_step.reward.clone()
        reward = self._computed(achieved[changed], goals[changed])
        rewards[changed] = reward.to(rewards.dtype)
        return rewards

    def _computed(self, achieved: Tensor, goals: Tensor) -> Tensor:
        """Rewards [N] or [N, D] for N goals."""
        assert self._reward_function is not None, "set_environment was not called"
        reward = self._reward_function(achieved, goals)
        reward = torch.as_tensor(reward, device=achieved.device)  # of numpy, too
        expected = (len(goals), *self.reward_spec.shape)
        if tuple(reward.shape) != expected:
            raise ValueError(
                "HindsightExperienceTransformer: the reward function must return shape "
                f"{expected} for as many goals, got {tuple(reward.shape)}"
            )
        return reward


def _goal_leaf(
    observation_spec: NestedTensorSpec, field: str
) -> tuple[int, TensorSpec]:
    """The position of a goal in the flattened observation, and its spec."""
    positions = list(
        select_leaves(observation_spec, [field], lambda spec: True, "a goal").values()
    )
    if len(positions) != 1:
        raise ConfigError(
            f"HindsightExperienceTransformer: '{field}' must be one tensor, it has "
            f"{len(positions)} parts"
        )
    return positions[0], nest.flatten(observation_spec)[positions[0]]
