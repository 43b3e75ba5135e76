"""Environments and the evaluator that all libraries share in ``scores.py``.

Where observations are changed, it is done here by gymnasium and minigrid, so that every
library sees the same ones. Needs nothing of alf_lite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    FilterObservation,
    FlattenObservation,
    TimeLimit,
    TransformObservation,
)

# One action for each of a batch: (observations [B, ...], is_first [B]) → [B, ...].
Policy = Callable[[np.ndarray, np.ndarray], Any]

EVALUATION_SEED = 10_000_000  # of the first episode; training's are far below
NO_VELOCITY = "score_environments:CartPoleNoVelocity-v1"
DOOR_KEY = "score_environments:DoorKeyOneHot-5x5-v0"
BREAKOUT = "score_environments:MinAtarBreakout-v1"
DMC = "cheetah-run", "walker-run", "reacher-hard"
_MAX_BREAKOUT_STEPS = 2500  # MinAtar has no limit, and a good player never loses


def make(env_id: str) -> gym.Env:
    """By its id, which names the module that registers it if there is need."""
    return gym.make(env_id)


def _no_velocity(**kwargs: Any) -> gym.Env:
    """Positions of the cart and of the pole: only a memory tells velocities."""
    env = gym.make("CartPole-v1", **kwargs)
    space = env.observation_space
    chosen = gym.spaces.Box(space.low[[0, 2]], space.high[[0, 2]])
    return TransformObservation(env, lambda x: x[[0, 2]], chosen)


def _door_key(**kwargs: Any) -> gym.Env:
    """What is seen, one-hot, and the direction: zeros and ones."""
    from minigrid.wrappers import OneHotPartialObsWrapper

    env = OneHotPartialObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0", **kwargs))
    env = FlattenObservation(FilterObservation(env, ["image", "direction"]))
    space = gym.spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda x: x.astype(np.float32), space)


def _breakout(**kwargs: Any) -> gym.Env:
    """The grid with its channels first, as floats, for convolutions."""
    import minatar.gym

    env = minatar.gym.BaseEnv("breakout", use_minimal_action_set=True, **kwargs)
    height, width, channels = env.observation_space.shape
    space = gym.spaces.Box(0.0, 1.0, (channels, height, width), np.float32)
    env = TransformObservation(
        env, lambda x: np.moveaxis(x, -1, 0).astype(np.float32), space
    )
    return TimeLimit(env, _MAX_BREAKOUT_STEPS)


def _twice(name: str, **kwargs: Any) -> gym.Env:
    """A task of dm_control whose every action is done twice; one vector is seen."""
    from alf_lite.environments.episode_wrappers import ActionRepeat

    env = gym.make(f"shimmy:dm_control/{name}-v0", **kwargs)
    return ActionRepeat(FlattenObservation(env), num_repeats=2)


for _id, _entry in (
    *((f":Twice-{name}-v0", functools.partial(_twice, name)) for name in DMC),
    (NO_VELOCITY, _no_velocity),
    (DOOR_KEY, _door_key),
    (BREAKOUT, _breakout),
):
    gym.register(_id.partition(":")[2], _entry)


def evaluate(
    policy: Policy,
    env: str | Callable[[], gym.Env],
    num_episodes: int = 20,
    seed: int = EVALUATION_SEED,
) -> list[float]:
    """The undiscounted returns of whole episodes, each with a seed of its own.

    Args:
        policy: acts for all episodes at once. What it does for those that are over is
            not used.
        env: id, or what makes one.
        num_episodes: as many environments are made.
        seed: of the first episode; the others have those that follow.
    """
    envs = [make(env) if isinstance(env, str) else env() for _ in range(num_episodes)]
    rows = [env.reset(seed=seed + i)[0] for i, env in enumerate(envs)]
    returns, is_over = np.zeros(num_episodes), np.zeros(num_episodes, bool)
    is_first = np.ones(num_episodes, bool)
    while not is_over.all():
        actions = policy(np.stack(rows), is_first)
        is_first = np.zeros(num_episodes, bool)
        for i in np.flatnonzero(~is_over):
            rows[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
            returns[i] += float(reward)
            is_over[i] = terminated or truncated
    for one in envs:
        one.close()
    return returns.tolist()
