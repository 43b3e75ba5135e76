"""Environments that tests run in processes: without torch, which takes seconds each."""

from __future__ import annotations

import functools
import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from alf_lite.config import configurable
from alf_lite.testing.structured_environments import CountingEnv

BOX = spaces.Box(-1, 1, (2,))
ONE = spaces.Box(-1.0, 1.0, (1,), np.float32)


@configurable
def limited(env, max_steps=9):
    return gymnasium.wrappers.TimeLimit(env, max_steps)


class OddEnv(gymnasium.Env):
    """Has the attributes that it is given; those that are errors raise."""

    def __init__(self, **attributes):
        attributes = {
            "observation_space": BOX,
            "action_space": spaces.Discrete(2),
            **attributes,
        }
        for name, value in attributes.items():
            if value is not ...:
                object.__setattr__(self, name, value)

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if isinstance(value, Exception):
            raise value
        return value

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class NumberedEnv(OddEnv):
    """Observes its number, and makes a file of that name, if it has a directory."""

    def __init__(self, directory=None, *, env_index):
        box = spaces.Box(0, 9, (2,))
        super().__init__(observation_space=box, env_index=env_index)
        if directory is not None:
            (directory / f"{env_index}-{os.getpid()}").touch()

    def reset(self, *, seed=None, options=None):
        return np.full(2, self.env_index, np.float32), {}


class ReportingEnv(CountingEnv):
    """Episodes of three steps; reports its speed, and how it went at the end."""

    def __init__(self):
        super().__init__((3,))

    def step(self, action):
        *result, info = super().step(action)
        info = {"speed": 2.0, "nested": {"x": 1}}
        return (*result, {**info, "success": 1} if result[2] else info)


class StepsCounted(gymnasium.Env):
    """Episodes of a length that is drawn; a file counts the steps of all of them."""

    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, path):
        self.path = path

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.missing = int(self.np_random.integers(1, 20))
        return self.observe(), {}

    def step(self, action):
        with self.path.open("ab") as file:
            file.write(b"s")
        self.missing -= 1
        return self.observe(), float(action), self.missing == 0, False, {"left": 0.5}

    def observe(self):
        return self.np_random.random(2, np.float32)


class InfoMaskEnv(gymnasium.Env):
    """After t steps the mask rules out all values but t % n of each component."""

    def __init__(self, action_space=None, observation_space=ONE, mask=None) -> None:
        self.action_space = action_space or spaces.Discrete(3)
        self.observation_space = observation_space
        self._mask = mask

    def reset(self, *, seed=None, options=None) -> tuple:
        super().reset(seed=seed)
        self._num_steps = 0
        return self.observation_space.sample(), self._info()

    def step(self, action):
        self._num_steps += 1
        is_end = self._num_steps == 4
        return self.observation_space.sample(), 0.0, is_end, False, self._info()

    def _info(self) -> dict:
        if self._mask is not None:
            return self._mask
        return {"action_mask": np.eye(3, dtype=np.int8)[self._num_steps % 3]}


class Hangs(gymnasium.Env):
    """Waits for ever in its 12th step; makes a file before, if it has a path."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)
    num_steps = 0

    def __init__(self, path=None):
        self._path = path

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 12:
            if self._path is not None:
                self._path.touch()
            time.sleep(1000)
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Ladder(gymnasium.Env):
    """Episodes of three steps, whose return is that of the level they began at."""

    observation_space = spaces.Box(-10, 10, (2,))
    action_space = spaces.Discrete(2)
    height = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now, self.t = self.height, 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        return self._observation(), self.now / 3, self.t == 3, False, {}

    def set_height(self, height: float) -> None:
        self.height = height

    def _observation(self) -> np.ndarray:
        return np.array([self.now, self.np_random.uniform()], np.float32)


class PoolSpec:
    """As EnvPool's: no id."""


class Pool(VectorEnv, gymnasium.Env):
    """As EnvPool's: is both kinds, batches no space, and seeds when it is made."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    spec = PoolSpec()

    def __init__(self, num_envs=4):
        self._env = SyncVectorEnv(
            [functools.partial(gymnasium.make, "CartPole-v1")] * num_envs
        )
        self.num_envs = num_envs
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self.single_observation_space = self.observation_space
        self.single_action_space = self.action_space

    def reset(self, *, seed=None, options=None):
        return self._env.reset(seed=3)

    def step(self, actions):
        return self._env.step(actions)


class GoodEnv(gymnasium.Env):
    """Random walks of five steps; subclasses have one fault each."""

    observation_space: spaces.Space = spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space: spaces.Space = spaces.Discrete(3)

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        info = {"height": 0.5, "name": "x"}
        return self.observe(), self.reward(), self.steps == 5, False, info

    def observe(self):
        return self.np_random.random(2, np.float32)

    def reward(self):
        return 1.0
