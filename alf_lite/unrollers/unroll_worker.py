"""The worker's own side: builds its environments, and acts in them as it is asked to.

Trainer and worker say short messages on one pipe, of which the first byte says what
they are. The data lies in shared memory.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Any, NamedTuple, NoReturn, Protocol

import gin
import numpy as np
import torch
from torch import Tensor

from alf_lite.config import shipping as config_shipping
from alf_lite.data_structures import AlgStep, Experience, TimeStep
from alf_lite.environments.environment import Environment, StepRow
from alf_lite.environments.specs_only_environment import WithSpecsOf
from alf_lite.errors import ConfigError
from alf_lite.processes.child_main import Parent, StopRequested
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers.sync_unroller import SyncUnroller, to_device
from alf_lite.unrollers.unroll import ActingPolicy
from alf_lite.unrollers.worker_memory import (
    ParameterStore,
    RowSpecs,
    UnrollSlots,
    control_memory,
    row_specs,
)
from alf_lite.utils import random_state
from alf_lite.utils.threads import set_num_threads

Nest = Any

# To the worker
ATTACH = b"a"  # the descriptor of the slots' memory follows
UNROLL = b"u"  # and the slot, as one int32
# From the worker, beside its last words
READY = b"r"  # and a pickled WorkerDescription
DONE = b"d"  # and an UnrollReport
SLOT = struct.Struct("=i")
_REPORT = struct.Struct("=iqidd")


class UnrollReport(NamedTuple):
    """Says that there is a complete unroll in a slot."""

    slot: int
    version: int  # of the parameters that acted
    is_first: bool  # it begins with a reset
    env_step_seconds: float
    seconds: float  # for the whole unroll

    def pack(self) -> bytes:
        return DONE + _REPORT.pack(*self)

    @classmethod
    def unpack(cls, content: bytes) -> UnrollReport:
        slot, version, is_first, env_step_seconds, seconds = _REPORT.unpack(content)
        return cls(slot, version, bool(is_first), env_step_seconds, seconds)


class Actor(Protocol):
    """The copy of the algorithm that acts in a worker."""

    @property
    def policy(self) -> ActingPolicy: ...

    @property
    def overwrite_policy_output(self) -> bool: ...

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


def serve(settings: WorkerSettings, trainer: Parent) -> NoReturn:
    """Unrolls until the trainer asks it to stop or is gone.

    Args:
        settings: what to do.
        trainer: first sends the descriptors of the control memory and of the parameter
            store.
    """
    set_num_threads(1)
    worker = _Worker(settings, trainer)
    try:
        worker.start()
        worker.serve()
    except StopRequested:
        worker.close()
        raise


class _Worker:
    def __init__(self, settings: WorkerSettings, trainer: Parent) -> None:
        self._settings = settings
        self._trainer = trainer
        self._env: Environment | None = None

    def start(self) -> None:
        """Builds everything and describes it."""
        settings, options = self._settings, self._settings.options
        control = control_memory(options.num_workers)
        self._trainer.attach(control)
        stop, heartbeats = control.arrays()
        self._store = ParameterStore(list(settings.tensor_specs.values()))
        self._trainer.attach(self._store)

        random_state.seed_everything(settings.seed)
        parts = _build(settings)
        self._env = env = WorkerEnvironment(
            parts.env,
            first_env_id=settings.worker_index * parts.env.batch_size,
            step_interval=options.step_interval,
            heartbeat=heartbeats[settings.worker_index : settings.worker_index + 1],
            stop=stop,
        )
        self._actor = actor = parts.actor
        self._tensors = _in_order(actor.tensors, settings.tensor_specs)
        self._version = 0
        self._refresh()
        self._unroller = SyncUnroller(
            env,
            actor.policy,
            rollout_step=actor.act,
            overwrite_policy_output=actor.overwrite_policy_output,
        )
        self._unroller.reset(random_state.derive_seed(settings.seed, "environments"))
        rows = _first_row(env, actor)
        description = WorkerDescription(
            rows, env.batch_size, config_shipping.export_config_use()
        )
        dumped = reduction.ForkingPickler.dumps(description)
        self._trainer.send(READY + bytes(dumped))
        self._slots = UnrollSlots(
            rows, options.slots_per_worker, options.unroll_length, options.bootstrap
        )

    def serve(self) -> NoReturn:
        """Answers requests until the connection ends."""
        while True:
            message = self._trainer.receive()
            if message[:1] == ATTACH:
                self._trainer.attach(self._slots)
            else:
                assert message[:1] == UNROLL, message
                self._unroll(SLOT.unpack(message[1:])[0])

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _unroll(self, slot: int) -> None:
        begin = time.perf_counter()
        self._refresh()
        options = self._settings.options
        unroll = self._unroller.unroll(
            options.unroll_length, options.bootstrap, self._slots.rows(slot)
        )
        report = UnrollReport(
            slot=slot,
            version=self._version,
            is_first=unroll.is_first_unroll,
            env_step_seconds=unroll.env_step_seconds,
            seconds=time.perf_counter() - begin,
        )
        self._trainer.send(report.pack())

    def _refresh(self) -> None:
        """Takes over the newest parameters."""
        version = self._store.read(self._tensors, self._version)
        if version != self._version:
            self._version = version
            self._actor.after_refresh()


def _build(settings: WorkerSettings) -> WorkerParts:
    try:
        arrived = config_shipping.load(settings.recipe)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            "what the run is made of cannot be imported in a worker: "
            f"{type(error).__name__}: {error}. Define it at the top level of a module "
            "that is installed, or that PYTHONPATH finds."
        ) from error
    recipe: Recipe = arrived.value
    with gin.config_scope(arrived.config_scope or None):
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
        time_step = to_device(env.current_time_step, policy.device)
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
