"""The environments of unroll workers: as the trainer and as a worker has them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from alf_lite.data_structures import TimeStep
from alf_lite.environments.environment import (
    Environment,
    EnvironmentWithSpecs,
    StepRow,
)
from alf_lite.processes.child_main import StopRequested

Nest = Any


class _WithSpecsOf(EnvironmentWithSpecs):
    """Has the specs of another environment, also when that is gone.

    Args:
        env: the other one.
        num_copies: how many such environments this one stands for.
    """

    def __init__(self, env: Environment, num_copies: int = 1) -> None:
        super().__init__(
            num_copies * env.batch_size,
            env.observation_spec,
            env.action_spec,
            reward_spec=env.reward_spec,
            env_info_spec=env.env_info_spec,
            recorded_values=env.recorded_values,
            name=env.name,
        )
        self._metadata = dict(env.metadata)

    @property
    def metadata(self) -> dict[str, Any]:
        return self._metadata


class RemoteEnvironment(_WithSpecsOf):
    """The environments of all workers: cannot be stepped by this process.

    Args:
        env: as each of the workers has one; is owned from now on.
        num_workers: how many there are.
        recipe: how a worker builds its environment and its policy, as bytes.
        recipe_module: is imported for that.
    """

    def __init__(
        self,
        env: Environment,
        num_workers: int,
        recipe: bytes = b"",
        recipe_module: str = "",
    ) -> None:
        super().__init__(env, num_workers)
        self._original: Environment | None = env
        self._is_lent = False
        self.recipe = recipe
        self.recipe_module = recipe_module

    @property
    def current_time_step(self) -> TimeStep:
        self._refuse()

    def reset(self, seed: int | None = None) -> NoReturn:
        self._refuse()

    def step(self, action: Nest) -> NoReturn:
        self._refuse()

    def borrow_original(self) -> Environment:
        """The environment that was described, for one who needs more than its specs."""
        if self._original is None:
            raise RuntimeError(f"{self._name} was closed")
        self._is_lent = True
        return self._original

    def release(self) -> None:
        """Closes the environment that was described, unless somebody borrowed it."""
        if not self._is_lent:
            self.close()

    def close(self) -> None:
        if self._original is not None:
            self._original.close()
            self._original = None

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            f"{self._name} is stepped by unroll workers, not by this process"
        )


class WorkerEnvironment(_WithSpecsOf):
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
        super().__init__(env)
        self._env = env
        ids = torch.arange(first_env_id, first_env_id + env.batch_size)
        self._env_ids = ids.to(torch.int32)
        self._step_interval = step_interval
        self._heartbeat = heartbeat
        self._stop = stop
        self._next_step_time = 0.0

    @property
    def current_time_step(self) -> TimeStep:
        if self._current is None:
            return self._env.current_time_step  # raises
        return self._current

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
        self._current = self._env.step_into(action, row)
        self._heartbeat[0] += 1
        return self._current

    def close(self) -> None:
        self._env.close()

    def _seen(self, time_step: TimeStep) -> TimeStep:
        self._heartbeat[0] += 1
        self._current = time_step._replace(env_id=self._env_ids)
        return self._current

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
