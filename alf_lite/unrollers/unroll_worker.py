"""The process of an unroll worker: acts in its own environments, as it is asked to."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import gin
import torch
from torch import Tensor

from alf_lite.config import shipping as config_shipping
from alf_lite.data_structures import AlgStep, Experience
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, EnvError
from alf_lite.processes import child_process
from alf_lite.processes.shared_tensors import SharedTensors
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers import worker_messages as messages
from alf_lite.unrollers.parameter_board import ParameterBoard
from alf_lite.unrollers.sync_unroller import SyncUnroller, to_device
from alf_lite.unrollers.unroll import Policy
from alf_lite.unrollers.unroll_slots import RowSpecs, UnrollSlots, row_specs
from alf_lite.unrollers.worker_environment import StopRequested, WorkerEnvironment
from alf_lite.utils import random_state

Nest = Any


class WorkerPolicy(Policy, Protocol):
    """The algorithm of a worker, which follows the one that is trained."""

    @property
    def overwrite_policy_output(self) -> bool: ...

    def shared_tensors(self) -> dict[str, Tensor]:
        """Everything that acting depends on, by name; is overwritten."""
        ...

    def after_refresh(self) -> None:
        """Called when the tensors have new values."""


class WorkerParts(NamedTuple):
    """What a recipe builds in the process of a worker."""

    env: Environment
    policy: WorkerPolicy


# (seed) → WorkerParts; travels by ``config_shipping``.
Recipe = Callable[[int], WorkerParts]


class WorkerSettings(NamedTuple):
    """What a worker must know. Plain data, as it is pickled."""

    worker_index: int
    recipe: bytes
    seed: int
    unroll_length: int
    bootstrap: bool
    num_slots: int
    step_interval: float  # seconds
    tensor_specs: dict[str, TensorSpec]  # of what is on the parameter board
    num_workers: int


class WorkerDescription(NamedTuple):
    """What the trainer must know of a worker."""

    rows: RowSpecs
    batch_size: int
    config_use: Any  # what building took from the configuration


def control_specs(num_workers: int) -> list[TensorSpec]:
    """Of the memory for a request to stop, and for the heartbeats of all workers."""
    return [
        TensorSpec((1,), dtype=torch.int64),
        TensorSpec((num_workers,), dtype=torch.int64),
    ]


def main(settings: WorkerSettings, connection: Connection, stacks: Connection) -> None:
    """Unrolls until the trainer asks it to stop or is gone.

    Args:
        settings: what to do.
        connection: see ``worker_messages``; first come the descriptors of the control
            memory and of the parameter board.
        stacks: see ``child_process.prepare_child``.
    """
    child_process.prepare_child(stacks)
    child_process.die_with_parent(os.getppid())
    torch.set_num_threads(1)
    worker = _Worker(settings, connection)
    try:
        worker.start()
        worker.serve()
    except (StopRequested, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the trainer has had enough, or died
    except BaseException as error:  # SystemExit and the like must not pass silently
        _report(connection, error)
    worker.close()
    child_process.exit_now()


class _Worker:
    def __init__(self, settings: WorkerSettings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._env: Environment | None = None

    def start(self) -> None:
        """Builds everything and describes it."""
        settings = self._settings
        control = SharedTensors(control_specs(settings.num_workers))
        self._attach(control)
        stop, heartbeats = (tensor.numpy() for tensor in control.tensors)
        board = ParameterBoard(list(settings.tensor_specs.values()))
        self._attach(board)

        random_state.seed_everything(settings.seed)
        parts = _build(settings)
        self._env = env = WorkerEnvironment(
            parts.env,
            first_env_id=settings.worker_index * parts.env.batch_size,
            step_interval=settings.step_interval,
            heartbeat=heartbeats[settings.worker_index : settings.worker_index + 1],
            stop=stop,
        )
        self._policy = policy = parts.policy
        self._board = board
        self._tensors = _in_order(policy.shared_tensors(), settings.tensor_specs)
        self._version = 0
        self._refresh()
        self._unroller = SyncUnroller(
            env, policy, overwrite_policy_output=policy.overwrite_policy_output
        )
        self._unroller.reset(random_state.derive_seed(settings.seed, "environments"))
        rows = _first_row(env, policy)
        description = WorkerDescription(
            rows, env.batch_size, config_shipping.export_config_use()
        )
        dumped = reduction.ForkingPickler.dumps(description)
        self._connection.send_bytes(messages.READY + bytes(dumped))
        self._slots = UnrollSlots(
            rows, settings.num_slots, settings.unroll_length, settings.bootstrap
        )

    def serve(self) -> None:
        """Answers requests until the connection ends."""
        while True:
            message = self._connection.recv_bytes()
            kind, content = message[:1], message[1:]
            if kind == messages.ATTACH:
                self._attach(self._slots)
            else:
                assert kind == messages.UNROLL, message
                self._unroll(messages.requested_slot(content))

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _unroll(self, slot: int) -> None:
        begin = time.perf_counter()
        self._refresh()
        settings = self._settings
        unroll = self._unroller.unroll(
            settings.unroll_length, settings.bootstrap, self._slots.rows(slot)
        )
        report = messages.UnrollReport(
            slot=slot,
            version=self._version,
            is_first=unroll.is_first_unroll,
            env_step_seconds=unroll.env_step_seconds,
            seconds=time.perf_counter() - begin,
        )
        self._connection.send_bytes(report.pack())

    def _refresh(self) -> None:
        """Takes over the newest parameters."""
        version = self._board.read(self._tensors, self._version)
        if version != self._version:
            self._version = version
            self._policy.after_refresh()

    def _attach(self, memory: SharedTensors | ParameterBoard | UnrollSlots) -> None:
        descriptor = reduction.recv_handle(self._connection)
        memory.attach(descriptor)
        os.close(descriptor)


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


def _first_row(env: Environment, policy: Policy) -> RowSpecs:
    """What one row of an unroll consists of, seen without a step."""
    batch_size = env.batch_size
    with torch.inference_mode():
        time_step = to_device(env.current_time_step, policy.device)
        state: Nest = policy.get_initial_rollout_state(batch_size)
        inputs, _ = policy.transform_timestep(
            time_step, policy.get_initial_transform_state(batch_size)
        )
        step: AlgStep = policy.rollout_step(inputs, state)
    experience = Experience(inputs, step.output, step.info, state)
    return row_specs(experience, time_step)


def _report(connection: Connection, error: BaseException) -> None:
    """The last words."""
    if isinstance(error, ConfigError):
        message = messages.BAD_CONFIG + str(error).encode()
    elif isinstance(error, EnvError):
        message = messages.ENV_FAILED + str(error).encode()
    else:
        text = "".join(traceback.format_exception(error))
        message = messages.RAISED + text.encode(errors="replace")
    with contextlib.suppress(OSError):
        connection.send_bytes(message)
