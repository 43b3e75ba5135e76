"""Episodes with numbers that are recognised, and what is read of buffers."""

from __future__ import annotations

from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer

OBSERVATION_SPACE = spaces.Dict(
    {
        "arm": spaces.Tuple(
            [
                spaces.Box(-np.inf, np.inf, (2,), np.float64),
                spaces.Discrete(5, start=10),
            ]
        ),
        "picture": spaces.Box(0, 255, (2, 2), np.uint8),
    }
)
ACTION_SPACE = spaces.Dict(
    {"force": spaces.Box(-2.0, 6.0, (1,)), "gear": spaces.Discrete(3, start=1)}
)


class SpacesEnv(gymnasium.Env):
    """Has spaces, and does nothing."""

    def __init__(self, observation_space: Any = None, action_space: Any = None) -> None:
        self.observation_space = observation_space or spaces.Box(
            -np.inf, np.inf, (1,), np.float32
        )
        self.action_space = action_space or spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


def make_env(observation_space=None, action_space=None, **kwargs) -> Environment:
    return create_environment(
        env_ctor=lambda: SpacesEnv(observation_space, action_space), **kwargs
    )


def load_instead(algorithm: RLAlgorithm, *buffers: ReplayBuffer) -> None:
    """Has an algorithm load these for what ``offline_buffer_dir`` names."""
    target = "alf_lite.datasets.offline_buffers.load_replay_buffer"
    with mock.patch(target, side_effect=buffers):
        algorithm.load_offline_replay_buffer()


def nested_env() -> Environment:
    return make_env(OBSERVATION_SPACE, ACTION_SPACE)


def flat_episode(
    num_actions: int, begin: float = 0.0, terminated: bool = True
) -> dict[str, np.ndarray]:
    """Observation [t] is begin + t, its action in [-2, 2] is a tenth of it."""
    end = np.arange(num_actions) == num_actions - 1
    observation = begin + np.arange(num_actions + 1, dtype=np.float32)
    return {
        "observation": observation[:, None],
        "action": observation[:-1, None] / 10,
        "reward": observation[1:] * 2,
        "terminated": end & terminated,
        "truncated": end & (not terminated),
    }


def nested_episode(num_actions: int) -> dict[str, np.ndarray]:
    numbers = np.arange(num_actions + 1)
    end = np.arange(num_actions) == num_actions - 1
    return {
        "observation/arm/0": np.stack([numbers, -numbers], 1).astype(np.float64),
        "observation/arm/1": 10 + numbers % 5,
        "observation/picture": np.tile(numbers[:, None, None], (1, 2, 2)).astype(
            np.uint8
        ),
        "action/force": np.linspace(-2, 6, num_actions, dtype=np.float32)[:, None],
        "action/gear": 1 + numbers[:-1] % 3,
        "reward": numbers[1:].astype(np.float64),
        "terminated": end,
        "truncated": np.zeros(num_actions, bool),
    }


def rows(buffer: ReplayBuffer, env_id: int = 0) -> Any:
    """Everything stored of one environment as arrays [T, ...]."""
    begin = buffer.begin_positions[env_id : env_id + 1]
    length = int(buffer.sizes[env_id])
    steps = buffer.get_windows(torch.tensor([env_id]), begin, length)
    return nest.map_structure(lambda t: t[0].numpy(), steps)


def assert_equal_steps(first: ReplayBuffer, second: ReplayBuffer) -> None:
    for (path, a), (_, b) in zip(
        nest.flatten_with_path(rows(first)),
        nest.flatten_with_path(rows(second)),
        strict=True,
    ):
        assert a == pytest.approx(b, abs=1e-6), path
