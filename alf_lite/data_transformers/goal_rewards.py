"""The reward for a goal, as a function of what was achieved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from alf_lite.environments.environment import Environment
from alf_lite.environments.worker_environments import RemoteEnvironment

# achieved goals [N, ...], desired goals [N, ...] → rewards [N] or [N, D]
RewardFunction = Callable[[Tensor, Tensor], Tensor]


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
