"""An environment that does one wrong thing at one chosen moment."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable

HARD_MESSAGE = "100% %d {x} \x00 é \N{SNOWMAN}"


class UnpicklableError(Exception):
    """Holds what cannot be sent to another process."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.function = lambda: message


class UnprintableError(Exception):
    """Fails when its message is asked for."""

    def __str__(self) -> str:
        raise RuntimeError("no message for you")


@configurable
class FaultEnv(gymnasium.Env):
    """Four numbers, two actions, and a fault.

    What it does otherwise: observation t, t, t, t at step t of the episode, reward 1,
    and a terminal state after ``episode_length`` steps.

    Args:
        mode: a key of ``FAULTS`` (what happens inside of a call), of ``RESULTS`` (what
            ``step`` returns), ``"global_random"`` (observations from the global
            generators of ``random`` and numpy), ``"close_raises"``, ``"close_hangs"``
            or ``""`` for none.
        at_step: the fault happens when that many steps were taken; the resets of
            autoreset do not count.
        until: it stops happening when that many steps were taken; None for never.
        where: ``step``, ``reset`` or ``constructor``; only for ``FAULTS``.
        instance: only the instance of this number misbehaves (the first built is 0);
            needs ``state_dir``.
        state_dir: where the instances, and the steps of all of them, are counted, so
            that the counts survive the process. None counts the steps of this instance.
        episode_length: in steps.
    """

    def __init__(
        self,
        mode: str = "",
        at_step: int = 0,
        until: int | None = None,
        where: str = "step",
        instance: int | None = None,
        state_dir: str | None = None,
        episode_length: int = 10,
    ) -> None:
        known = {*FAULTS, *RESULTS, *_OTHER_MODES, ""}
        if mode not in known:
            raise ValueError(f"mode: got {mode!r}, expected one of {sorted(known)}")
        if instance is not None and state_dir is None:
            raise ValueError("instance needs state_dir")
        self.observation_space = spaces.Box(-1e6, 1e6, (4,), np.float32)
        if mode in ("missing_key", "extra_key"):
            self.observation_space = spaces.Dict(
                {"a": spaces.Box(-1e6, 1e6, (4,)), "b": spaces.Box(-1e6, 1e6, (2,))}
            )
        self.action_space = spaces.Discrete(2)
        self._mode = mode
        self._at_step = at_step
        self._until = until
        self._where = where
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._episode_length = episode_length
        self._num_steps = 0  # of this instance, or of all that share state_dir
        self._time = 0  # in the episode
        self._is_faulty = instance is None or instance == self._count("instances") - 1
        if where == "constructor":
            self._fail(mode)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        if self._where == "reset" and self._is_due():
            self._fail(self._mode)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        is_due = self._where == "step" and self._is_due()
        if is_due:
            self._fail(self._mode)
        self._num_steps += 1
        if self._state_dir is not None:
            self._num_steps = self._count("steps")
        self._time += 1
        is_end = self._time >= self._episode_length
        result = (self._observation(), 1.0, is_end, False, dict[str, Any]())
        if is_due and self._mode in RESULTS:
            return RESULTS[self._mode](*result)
        return result

    def close(self) -> None:
        if self._mode == "close_raises":
            raise RuntimeError("close() fails")
        if self._mode == "close_hangs":
            _hang()

    def _observation(self) -> Any:
        if self._mode == "global_random":
            numbers = [random.random(), *np.random.rand(3)]  # noqa: NPY002
            return np.array(numbers, np.float32)
        value = np.full(4, self._time, np.float32)
        if isinstance(self.observation_space, spaces.Dict):
            return {"a": value, "b": value[:2]}
        return value

    def _fail(self, mode: str) -> None:
        if self._is_faulty and mode in FAULTS:
            FAULTS[mode]()

    def _is_due(self) -> bool:
        return (
            self._is_faulty
            and self._num_steps >= self._at_step
            and (self._until is None or self._num_steps < self._until)
        )

    def _count(self, name: str) -> int:
        """Counts up in a file and returns the new number; safe between processes."""
        assert self._state_dir is not None
        path = self._state_dir / name
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, b"x")
            return os.lseek(descriptor, 0, os.SEEK_CUR)
        finally:
            os.close(descriptor)


def _raise(error: Exception) -> None:
    raise error


def _hang() -> None:
    while True:
        time.sleep(3600)


def _spin() -> None:
    while True:
        pass


FAULTS: dict[str, Callable[[], None]] = {
    "raise": lambda: _raise(RuntimeError(HARD_MESSAGE)),
    "raise_long": lambda: _raise(RuntimeError("x" * 1_000_000)),
    "raise_unpicklable": lambda: _raise(UnpicklableError(HARD_MESSAGE)),
    "raise_unprintable": lambda: _raise(UnprintableError()),
    "system_exit": lambda: sys.exit(0),
    "exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segmentation_fault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": _hang,
    "spin": _spin,
}

# (observation, reward, terminated, truncated, info) -> what step returns instead
RESULTS: dict[str, Callable[..., Any]] = {
    "nan_observation": lambda o, *rest: (_with(o, 3, np.nan), *rest),
    "inf_observation": lambda o, *rest: (_with(o, 3, np.inf), *rest),
    "nan_reward": lambda o, r, *rest: (o, np.nan, *rest),
    "inf_reward": lambda o, r, *rest: (o, -np.inf, *rest),
    "huge_reward": lambda o, r, *rest: (o, 1e300, *rest),
    "short_observation": lambda o, *rest: (o[:1], *rest),
    "long_observation": lambda o, *rest: (np.append(o, o[:1]), *rest),
    "scalar_observation": lambda o, *rest: (o[0], *rest),
    "transposed_observation": lambda o, *rest: (o[None], *rest),
    "none_observation": lambda o, *rest: (None, *rest),
    "object_observation": lambda o, *rest: (o.astype(object), *rest),
    "complex_observation": lambda o, *rest: (o.astype(complex), *rest),
    "text_observation": lambda o, *rest: (o.astype(str), *rest),
    "double_observation": lambda o, *rest: (o.astype(np.float64), *rest),
    "integer_observation": lambda o, *rest: (o.astype(np.int64), *rest),
    "list_observation": lambda o, *rest: (o.tolist(), *rest),
    "out_of_bounds": lambda o, *rest: (_with(o, 2, 2e6), *rest),
    "missing_key": lambda o, *rest: ({"a": o["a"]}, *rest),
    "extra_key": lambda o, *rest: ({**o, "c": o["b"]}, *rest),
    "old_api": lambda o, r, te, tr, info: (o, r, te or tr, info),
    "array_reward": lambda o, r, *rest: (o, np.array([r]), *rest),
    "text_reward": lambda o, r, *rest: (o, str(r), *rest),
    "none_reward": lambda o, r, *rest: (o, None, *rest),
    "text_terminated": lambda o, r, te, *rest: (o, r, "no", *rest),
    "none_info": lambda o, r, te, tr, info: (o, r, te, tr, None),
    "both_ends": lambda o, r, te, tr, info: (o, r, True, True, info),
}

_OTHER_MODES = ("global_random", "close_raises", "close_hangs")


def _with(observation: np.ndarray, index: int, value: float) -> np.ndarray:
    changed = observation.copy()
    changed[index] = value
    return changed
