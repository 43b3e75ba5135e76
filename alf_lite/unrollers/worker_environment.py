"""The environment of an unroll worker, which others watch and can stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.environments.step_rows import StepRow
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any


class StopRequested(BaseException):
    """The trainer wants the worker to end, be it in the middle of an unroll."""


class WorkerEnvironment(Environment):
    """Steps another environment, says that it lives, and keeps the pace.

    Args:
        env: of the worker.
        first_env_id: of its environments among those of all workers.
        step_interval: seconds from one step to the next at least.
        heartbeat: int64 [1]; counts resets and steps.
        stop: int64 [1]; not 0 once the worker shall end.
    """

    def __init__(
        self,
        env: Environment,
        *,
        first_env_id: int,
        step_interval: float,
        heartbeat: np.ndarray,
        stop: np.ndarray,
    ) -> None:
        self._env = env
        ids = torch.arange(first_env_id, first_env_id + env.batch_size)
        self._env_ids = ids.to(torch.int32)
        self._step_interval = step_interval
        self._heartbeat = heartbeat
        self._stop = stop
        self._next_step_time = 0.0
        self._time_step: TimeStep | None = None

    @property
    def batch_size(self) -> int:
        return self._env.batch_size

    @property
    def observation_spec(self) -> NestedTensorSpec:
        return self._env.observation_spec

    @property
    def action_spec(self) -> NestedTensorSpec:
        return self._env.action_spec

    @property
    def reward_spec(self) -> TensorSpec:
        return self._env.reward_spec

    @property
    def env_info_spec(self) -> NestedTensorSpec:
        return self._env.env_info_spec

    @property
    def name(self) -> str:
        return self._env.name

    @property
    def current_time_step(self) -> TimeStep:
        if self._time_step is None:
            return self._env.current_time_step  # raises
        return self._time_step

    def reset(self, seed: int | None = None) -> TimeStep:
        return self._seen(self._env.reset(seed))

    def step(self, action: Nest) -> TimeStep:
        """As every environment's.

        Raises:
            StopRequested: if the worker shall end.
        """
        self._wait()
        return self._seen(self._env.step(action))

    def rows_of(self, memory: TimeStep) -> Sequence[StepRow] | None:
        rows = self._env.rows_of(memory)
        if rows is not None:
            memory.env_id[:] = self._env_ids
        return rows

    def step_into(self, action: Nest, row: StepRow) -> TimeStep:
        """As :meth:`step`."""
        self._wait()
        self._time_step = self._env.step_into(action, row)
        self._heartbeat[0] += 1
        return self._time_step

    def close(self) -> None:
        self._env.close()

    def _seen(self, time_step: TimeStep) -> TimeStep:
        self._heartbeat[0] += 1
        self._time_step = time_step._replace(env_id=self._env_ids)
        return self._time_step

    def _wait(self) -> None:
        """Waits until the last step began an interval ago, unless asked to stop."""
        if self._stop[0]:
            raise StopRequested
        if not self._step_interval:
            return
        now = time.monotonic()
        while now < self._next_step_time:
            # In short naps, so that a request to stop is heard.
            time.sleep(min(self._next_step_time - now, 0.1))
            if self._stop[0]:
                raise StopRequested
            now = time.monotonic()
        self._next_step_time = now + self._step_interval
