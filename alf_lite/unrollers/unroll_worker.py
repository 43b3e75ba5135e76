"""What an unroll worker does: builds its environments and acts in them as asked."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gin
import numpy as np
import torch
from torch import Tensor

from alf_lite.config import shipping as config_shipping
from alf_lite.data_structures import AlgStep, Experience, TimeStep
from alf_lite.environments import env_indices
from alf_lite.environments.environment import Environment, StepRow
from alf_lite.environments.specs_only_environment import WithSpecsOf
from alf_lite.errors import ConfigError
from alf_lite.processes.child_main import StopRequested
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers.sync_unroller import SyncUnroller
from alf_lite.unrollers.unroll import ActingPolicy, PreallocatedRows
from alf_lite.unrollers.worker_memory import RowSpecs, UnrollSlots, row_specs
from alf_lite.utils import random_state
from alf_lite.utils.devices import moved

Nest = Any

_REPORT = struct.Struct("=iq?dd?")


class UnrollReport(NamedTuple):
    """Says that there is a complete unroll in a slot."""

    slot: int
    version: int  # of the parameters that acted
    is_first: bool  # it begins with a reset
    env_step_seconds: float
    seconds: float  # for the whole unroll
    may_have_restarts: bool = True  # see Unroll

    def pack(self) -> bytes:
        return _REPORT.pack(*self)

    @classmethod
    def unpack(cls, content: bytes) -> UnrollReport:
        return cls._make(_REPORT.unpack(content))


class Actor(Protocol):
    """The copy of the algorithm that acts in a worker."""

    @property
    def policy(self) -> ActingPolicy: ...

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything that acting depends on, by name; is overwritten."""
        ...

    def act(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """The policy's ``rollout_step``, or what takes its place."""
        ...

    def after_refresh(self) -> None:
        """Called when the tensors have new values."""


class WorkerParts(NamedTuple):
    """What a recipe builds in the process of a worker."""

    env: Environment
    actor: Actor


# (seed) → WorkerParts; travels by ``config_shipping``.
Recipe = Callable[[int], WorkerParts]


class PoolOptions(NamedTuple):
    """How many workers there are and what they do."""

    num_workers: int
    unroll_length: int  # T of every unroll
    bootstrap: bool  # whether an unroll has a bootstrap row
    slots_per_worker: int
    step_interval: float  # seconds
    timeout_seconds: float  # without a step of a worker that has something to do
    max_restarts: int  # of all workers together
    first_worker: int = 0  # of this rank, among those of all ranks

    def make_slots(self, rows: RowSpecs, num_slots: int) -> UnrollSlots:
        """What so many unrolls of one worker are written to, when it has memory."""
        return UnrollSlots(rows, num_slots, self.unroll_length, self.bootstrap)


class WorkerSettings(NamedTuple):
    """What a worker must know. Plain data, as it is pickled."""

    worker_index: int
    recipe: bytes
    seed: int
    options: PoolOptions
    tensor_specs: dict[str, TensorSpec]  # of what is in the parameter store


class WorkerDescription(NamedTuple):
    """What the trainer must know of a worker."""

    rows: RowSpecs
    batch_size: int
    config_use: Any  # what building took from the configuration


# (tensors to overwrite, the version that they hold) → the version that they hold now.
ReadParameters = Callable[[Sequence[Tensor], int], int]


class UnrollWorker:
    """The environments of one worker and a copy of the algorithm that acts in them.

    Args:
        settings: what to build.
        read_parameters: takes over the newest ones.
        heartbeat: int64 [1]; counts resets and steps.
        stop: int64 [1]; not 0 once the worker shall end.

    Raises:
        ConfigError: if it cannot be built, or otherwise than in the trainer.
        EnvError: if an environment fails.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        read_parameters: ReadParameters,
        heartbeat: np.ndarray,
        stop: np.ndarray,
    ) -> None:
        self._options = settings.options
        self._read_parameters = read_parameters
        self._version = 0
        random_state.seed_everything(settings.seed)
        parts = _build(settings)
        self._env = WorkerEnvironment(
            parts.env,
            first_env_id=settings.worker_index * parts.env.batch_size,
            step_interval=settings.options.step_interval,
            heartbeat=heartbeat,
            stop=stop,
        )
        self._actor = actor = parts.actor
        self._tensors = _in_order(actor.tensors, settings.tensor_specs)
        self._refresh()
        self._unroller = SyncUnroller(self._env, actor.policy, rollout_step=actor.act)
        self._seed = settings.seed

    def begin_episodes(self) -> WorkerDescription:
        """Resets the environments; says what one row of an unroll consists of."""
        self._unroller.reset(random_state.derive_seed(self._seed, "environments"))
        return WorkerDescription(
            _first_row(self._env, self._actor),
            self._env.batch_size,
            config_shipping.export_config_use(),
        )

    def unroll(self, slot: int, rows: PreallocatedRows) -> UnrollReport:
        """Unrolls with the newest parameters into ``rows``.

        Args:
            slot: for the report.
            rows: where the unroll is written.

        Raises:
            StopRequested: if the worker shall end.
        """
        begin = time.perf_counter()
        self._refresh()
        options = self._options
        unroll = self._unroller.unroll(options.unroll_length, options.bootstrap, rows)
        return UnrollReport(
            slot=slot,
            version=self._version,
            is_first=unroll.is_first_unroll,
            env_step_seconds=unroll.env_step_seconds,
            seconds=time.perf_counter() - begin,
            may_have_restarts=unroll.may_have_restarts,
        )

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()

    def _refresh(self) -> None:
        """Takes over the newest parameters."""
        version = self._read_parameters(self._tensors, self._version)
        if version != self._version:
            self._version = version
            self._actor.after_refresh()


def _build(settings: WorkerSettings) -> WorkerParts:
    arrived = config_shipping.load_for("what the workers build", settings.recipe)
    recipe: Recipe = arrived.value
    number = settings.options.first_worker + settings.worker_index
    with (
        gin.config_scope(arrived.config_scope or None),
        env_indices.counted_after(batches=number),
    ):
        return recipe(settings.seed)


def _in_order(tensors: dict[str, Tensor], specs: dict[str, TensorSpec]) -> list[Tensor]:
    """The tensors in the order of the specs.

    Raises:
        ConfigError: if the trainer has others.
    """
    own = {name: TensorSpec.from_tensor(tensor) for name, tensor in tensors.items()}
    for name in sorted(own.keys() | specs.keys()):
        if own.get(name) != specs.get(name):
            raise ConfigError(
                f"the algorithm in the worker has {name}: {own.get(name)}, the one in "
                f"training {specs.get(name)}. Both must be built alike: an algorithm "
                "may not depend on anything but its arguments and the configuration."
            )
    return [tensors[name] for name in specs]


def _first_row(env: Environment, actor: Actor) -> RowSpecs:
    """What one row of an unroll consists of, seen without a step."""
    policy, batch_size = actor.policy, env.batch_size
    with torch.inference_mode():
        time_step = moved(env.current_time_step, policy.device)
        state: Nest = policy.get_initial_rollout_state(batch_size)
        inputs, _ = policy.transform_timestep(
            time_step, policy.get_initial_transform_state(batch_size)
        )
        step = actor.act(inputs, state)
    experience = Experience(inputs, step.output, step.info, state)
    return row_specs(experience, time_step)


class WorkerEnvironment(WithSpecsOf):
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

    @property
    def num_restarts(self) -> int:
        return self._env.num_restarts

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
