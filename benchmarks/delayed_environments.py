"""Environments that take a given time per step, for processes that import this module.

Their ids begin with the name of this module, so that gymnasium imports it wherever they
are made: ``delayed_environments:DelayedCartPole-v1``.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

CART_POLE = f"{__name__}:DelayedCartPole-v1"
PENDULUM = f"{__name__}:DelayedPendulum-v1"


class _Delay:
    """Lets a step take longer.

    Args:
        sleep_seconds: that it waits, as for a device or a server.
        busy_seconds: that it computes: of the processor's time, so that it is the same
            work whoever else uses the processor.
    """

    def __init__(self, sleep_seconds: float, busy_seconds: float) -> None:
        self._sleep_seconds = sleep_seconds
        self._busy_seconds = busy_seconds

    def __call__(self) -> None:
        if self._sleep_seconds:
            time.sleep(self._sleep_seconds)
        if self._busy_seconds:
            end = time.thread_time() + self._busy_seconds
            while time.thread_time() < end:
                pass


class DelayedCartPole(CartPoleEnv):
    def __init__(
        self, *, sleep_seconds: float = 0.0, busy_seconds: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._delay = _Delay(sleep_seconds, busy_seconds)

    def step(self, action: Any) -> Any:
        self._delay()
        return super().step(action)


class DelayedPendulum(PendulumEnv):
    def __init__(
        self, *, sleep_seconds: float = 0.0, busy_seconds: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._delay = _Delay(sleep_seconds, busy_seconds)

    def step(self, action: Any) -> Any:
        self._delay()
        return super().step(action)


gym.register("DelayedCartPole-v1", entry_point=DelayedCartPole, max_episode_steps=500)
gym.register("DelayedPendulum-v1", entry_point=DelayedPendulum, max_episode_steps=200)
