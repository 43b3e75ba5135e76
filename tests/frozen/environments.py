"""Environments of all kinds, whose time steps are kept."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.environments import episode_wrappers, levels, mini_grid, wrappers
from alf_lite.testing import goal_environment, masked_environment, maze, reversi
from alf_lite.testing import probe_environments as probes
from alf_lite.testing import structured_environments as structured
from tests.environments import light_environments

with_ = functools.partial
Arguments = Callable[[], dict[str, Any]]


def named(env_name: str, count: int = 3, **kwargs: Any) -> Arguments:
    return lambda: {
        "env_name": env_name,
        "num_parallel_environments": count,
        **kwargs,
    }


def made(env_ctor: Callable[..., Any], count: int = 3, **kwargs: Any) -> Arguments:
    return lambda: {
        "env_ctor": env_ctor,
        "num_parallel_environments": count,
        **kwargs,
    }


def with_extra(module: str, arguments: Arguments) -> Arguments | None:
    """None where an environment is not installed."""
    return arguments if importlib.util.find_spec(module) else None


def pole_vector() -> gymnasium.vector.VectorEnv:
    return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")


ODD_SPACE = spaces.Dict(
    {
        "choice": spaces.Discrete(3, start=-1),
        "box": spaces.Box(
            np.array([-1.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64
        ),
        "parts": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2))),
    }
)

# Name -> the arguments of create_environment.
ENVIRONMENTS: dict[str, Arguments | None] = {
    "cart_pole": named("CartPole-v1"),
    "cart_pole_alone": named("CartPole-v1", 1),
    "cart_pole_native": named("CartPole-v1", vectorization_mode="native"),
    "cart_pole_processes": named("CartPole-v1", 2, vectorization_mode="async"),
    "cart_pole_vector": made(pole_vector),
    "cart_pole_short": named("CartPole-v1", max_episode_steps=7),
    "pendulum": named("Pendulum-v1"),
    "pendulum_processes": named("Pendulum-v1", 2, vectorization_mode="async"),
    "acrobot": named("Acrobot-v1"),
    "mountain_car": named("MountainCarContinuous-v0"),
    "frozen_lake": named("FrozenLake8x8-v1"),
    "taxi": named("Taxi-v4"),
    "torch_cart_pole": named("torch/CartPole", 16),
    "torch_pendulum": named("torch/Pendulum", 16),
    "torch_point_mass": named("torch/PointMass", 16),
    "half_cheetah": with_extra("mujoco", named("HalfCheetah-v5", 2)),
    "lunar_lander": with_extra("Box2D", named("LunarLander-v3", 2)),
    "pong": with_extra(
        "ale_py", named("ALE/Pong-v5", 2, wrappers=[wrappers.atari_preprocessing])
    ),
    "door_key": with_extra(
        "minigrid",
        named(
            "minigrid:MiniGrid-DoorKey-5x5-v0",
            wrappers=[mini_grid.MiniGridObservation],
        ),
    ),
    "door_key_state": with_extra(
        "minigrid",
        named(
            "minigrid:MiniGrid-DoorKey-5x5-v0",
            wrappers=[with_(mini_grid.MiniGridState, num_objects=2)],
        ),
    ),
    "counting": made(
        with_(structured.CountingEnv, episode_lengths=(3, 1, 5)),
        env_info_keys=["step", "episode?"],
    ),
    "counting_truncated": made(
        with_(structured.CountingEnv, episode_lengths=(1, 4), truncates=True)
    ),
    "two_rewards": made(structured.VectorRewardEnv),
    "constrained": made(structured.ConstrainedEnv),
    "memory": made(structured.MemoryEnv),
    "nested": made(structured.NestedEnv),
    "nested_processes": made(structured.NestedEnv, 2, vectorization_mode="async"),
    "image": made(structured.ImageEnv),
    "image_processes": made(structured.ImageEnv, 2, vectorization_mode="async"),
    "identity": made(with_(probes.IdentityEnv, ODD_SPACE)),
    "discounts": made(probes.DiscountEnv),
    "time_limit": made(probes.TimeLimitEnv),
    "two_answers": made(probes.TwoAnswersEnv),
    "masked": made(masked_environment.ForbiddenActionEnv),
    "maze_levels": made(
        maze.MazeEnv, wrappers=[with_(levels.LevelSeeds, num_levels=5)]
    ),
    "reversi": made(reversi.ReversiEnv),
    "goals": made(goal_environment.PointGoalEnv),
    "reporting": made(light_environments.ReportingEnv),
    "tasks": made(
        with_(levels.TaskMixture, ["CartPole-v1", "CartPole-v0"]),
        env_info_keys=["level"],
    ),
    "repeated": named(
        "Pendulum-v1", wrappers=[with_(episode_wrappers.ActionRepeat, num_repeats=3)]
    ),
    "noisy": named(
        "Pendulum-v1",
        wrappers=[episode_wrappers.CorrelatedActionNoise],
    ),
    "first_lengths": named(
        "Pendulum-v1",
        wrappers=[with_(episode_wrappers.RandomFirstEpisodeLength, max_length=9)],
    ),
    "previous_action": named(
        "Pendulum-v1",
        wrappers=[
            with_(wrappers.ObservationElements, indices=[0, 1]),
            episode_wrappers.ActionObservation,
        ],
    ),
}
