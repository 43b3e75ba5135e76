"""Environments that tests run in processes: without torch, which takes seconds each."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.testing.structured_environments import CountingEnv

BOX = spaces.Box(-1, 1, (2,))


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
