"""All unroll workers of a run: what they finish, and what happens when one fails."""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Mapping, Sequence
from multiprocessing import reduction, util
from typing import NamedTuple

import torch
from torch import Tensor

from alf_lite.config import shipping as config_shipping
from alf_lite.errors import AlfLiteError, ConfigError
from alf_lite.processes.shared_tensors import SharedTensors
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers import worker_messages as messages
from alf_lite.unrollers.parameter_board import ParameterBoard
from alf_lite.unrollers.unroll import Unroll
from alf_lite.unrollers.unroll_slots import UnrollSlots
from alf_lite.unrollers.unroll_worker import (
    WorkerDescription,
    WorkerSettings,
    control_specs,
)
from alf_lite.unrollers.worker_messages import UnrollReport
from alf_lite.unrollers.worker_process import CLOSE_SECONDS, WorkerProcess
from alf_lite.utils.random_state import derive_seed

_logger = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0  # between two looks at the heartbeats
_START_SECONDS = 60.0  # at least, until a worker has built its environment


class PoolOptions(NamedTuple):
    """How many workers there are and what they do."""

    num_workers: int
    unroll_length: int  # T of every unroll
    bootstrap: bool  # whether an unroll has a bootstrap row
    slots_per_worker: int
    step_interval: float  # seconds
    timeout_seconds: float  # without a step of a worker that has something to do
    max_restarts: int  # of all workers together


class Ready(NamedTuple):
    """A worker, new or replaced, can be asked for unrolls."""

    worker: int


class Finished(NamedTuple):
    """A worker has filled a slot."""

    worker: int
    report: UnrollReport


class Lost(NamedTuple):
    """A worker failed and is being replaced; what it was asked for does not come."""

    worker: int


Event = Ready | Finished | Lost


class WorkerPool:
    """Starts, watches, replaces and ends the workers.

    Every wait has an end, and watches whether the processes live. A worker that fails
    is replaced by one that starts new episodes, if ``max_restarts`` allows it and it
    did not raise before its first unroll; otherwise its error is raised, and all
    workers are gone.

    Args:
        recipe: of ``unroll_worker.Recipe``, by ``config_shipping``.
        options: see there.
        tensors: what acting depends on, by name.
        preload: modules that every worker needs.

    Raises:
        ConfigError: if there is not enough memory.
    """

    def __init__(
        self,
        recipe: bytes,
        options: PoolOptions,
        tensors: Mapping[str, Tensor],
        preload: Sequence[str] = (),
    ) -> None:
        self._recipe = recipe
        self._options = options
        self._preload = tuple(preload)
        self._specs = {
            name: TensorSpec.from_tensor(tensor) for name, tensor in tensors.items()
        }
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._descriptors: list[int] = []
        self._finalizer = util.Finalize(
            self, _close_all, (self._descriptors, self._selector), exitpriority=90
        )
        self._control = SharedTensors(control_specs(options.num_workers))
        self._board = ParameterBoard(list(self._specs.values()))
        try:
            self._descriptors.append(
                self._control.create("unroll workers", "Free some memory.")
            )
            self._descriptors.append(self._board.create())
        except ValueError as error:
            raise ConfigError(str(error)) from error
        stop, heartbeats = (tensor.numpy() for tensor in self._control.tensors)
        self._stop, self._heartbeats = stop, heartbeats
        self.num_restarts = 0
        self._watched_at = time.monotonic()

    @property
    def version(self) -> int:
        """Of the parameters that were published last."""
        return self._board.version

    def publish(self, tensors: Mapping[str, Tensor]) -> int:
        """Gives all workers new values of the tensors. Returns their version."""
        return self._board.publish([tensors[name] for name in self._specs])

    def start(self, seed: int) -> None:
        """Starts all workers; each of them is reported as ``Ready``.

        Args:
            seed: of everything random in them.
        """
        self._seed = seed
        for index in range(self._options.num_workers):
            self._workers.append(_Worker(self._start_process(index, incarnation=0)))

    def request(self, worker: int, slot: int) -> None:
        """Asks a worker for an unroll in a slot."""
        state = self._workers[worker]
        if state.num_requested == 0:
            state.alive_at = time.monotonic()
        state.num_requested += 1
        state.process.send(messages.unroll_request(slot))

    def read(self, worker: int, report: UnrollReport) -> Unroll:
        """Views of a finished unroll."""
        state = self._workers[worker]
        assert state.slots is not None, worker
        experience, time_steps = state.slots.read(report.slot)
        env_ids = None
        if self._options.num_workers > 1:
            env_ids = state.env_ids
        return Unroll(
            experience,
            time_steps,
            report.env_step_seconds,
            report.is_first,
            env_ids,
        )

    def poll(self, timeout: float) -> list[Event]:
        """What has happened, after at most ``timeout`` seconds.

        Raises:
            EnvError: if an environment failed.
            WorkerError: if a worker died, hung or raised.
            ConfigError: if a worker cannot be built.
        """
        events: list[Event] = []
        try:
            ready = self._selector.select(min(timeout, _WATCH_SECONDS))
            for index in {key.data for key, _ in ready}:
                self._listen(index, events)
            self._watch(events)
        except BaseException:
            self.kill()
            raise
        return events

    def close(self) -> None:
        """Ends all workers; those that do not end within two seconds are killed."""
        self._stop[0] = 1
        for worker in self._workers:
            worker.process.hang_up()
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Ends all workers now."""
        for worker in self._workers:
            worker.process.kill()
        self._workers.clear()
        self._finalizer()

    # Processes

    def _start_process(self, index: int, incarnation: int) -> WorkerProcess:
        options = self._options
        settings = WorkerSettings(
            worker_index=index,
            recipe=self._recipe,
            seed=derive_seed(self._seed, "unroll worker", index, incarnation),
            unroll_length=options.unroll_length,
            bootstrap=options.bootstrap,
            num_slots=options.slots_per_worker,
            step_interval=options.step_interval,
            tensor_specs=self._specs,
            num_workers=options.num_workers,
        )
        process = WorkerProcess(settings, self._descriptors[:2], self._preload)
        for source in (process.connection, process.sentinel):
            self._selector.register(source, selectors.EVENT_READ, index)
        return process

    def _listen(self, index: int, events: list[Event]) -> None:
        """Reads all that a worker has sent; notices if it is gone."""
        process = self._workers[index].process
        try:
            while process.connection.poll(0):
                message = process.connection.recv_bytes()
                if message[:1] == messages.DONE:
                    events.append(self._done(index, message[1:]))
                elif message[:1] == messages.READY:
                    self._introduce(index, message[1:])
                    events.append(Ready(index))
                else:
                    self._fail(index, process.error_of(message), events)
                    return
        except (EOFError, OSError):
            self._fail(index, process.death(), events, is_sudden=True)

    def _done(self, index: int, content: bytes) -> Finished:
        state = self._workers[index]
        state.num_requested -= 1
        state.has_delivered = True
        return Finished(index, UnrollReport.unpack(content))

    def _introduce(self, index: int, content: bytes) -> None:
        """Gives a new worker its slots, whose size only it knows."""
        options, state = self._options, self._workers[index]
        description: WorkerDescription = reduction.ForkingPickler.loads(content)
        config_shipping.import_config_use(description.config_use)
        if state.slots is None:
            slots = UnrollSlots(
                description.rows,
                options.slots_per_worker,
                options.unroll_length,
                options.bootstrap,
            )
            try:
                state.descriptor = slots.create(options.num_workers)
            except ValueError as error:
                raise ConfigError(str(error)) from error
            self._descriptors.append(state.descriptor)
            state.slots = slots
            first = index * description.batch_size
            state.env_ids = torch.arange(first, first + description.batch_size)
        state.is_ready = True
        state.alive_at = time.monotonic()
        state.process.send(messages.ATTACH)
        state.process.send_descriptor(state.descriptor)

    # Failures

    def _watch(self, events: list[Event]) -> None:
        """Finds workers that have something to do and do not do it."""
        now = time.monotonic()
        pause = now - self._watched_at
        if pause < _WATCH_SECONDS:
            return
        self._watched_at = now
        timeout = self._options.timeout_seconds
        for index, state in enumerate(self._workers):
            beat = int(self._heartbeats[index])
            has_work = state.num_requested > 0 or not state.is_ready
            allowed = timeout if state.is_ready else max(timeout, _START_SECONDS)
            # After a pause of this process the workers get their time anew: perhaps
            # they were stopped, too.
            if beat != state.heartbeat or not has_work or pause > timeout:
                state.heartbeat, state.alive_at = beat, now
            elif now - state.alive_at > allowed:
                self._fail(index, state.process.hang(allowed), events)

    def _fail(
        self,
        index: int,
        error: AlfLiteError,
        events: list[Event],
        *,
        is_sudden: bool = False,
    ) -> None:
        """Replaces a worker, or raises its error.

        Args:
            index: of the worker.
            error: why it is gone.
            events: a ``Lost`` is added.
            is_sudden: whether the process died without a word.
        """
        state, options = self._workers[index], self._options
        # What fails before the first unroll would fail again.
        is_hopeless = isinstance(error, ConfigError) or not (
            state.has_delivered or is_sudden
        )
        if is_hopeless or self.num_restarts >= options.max_restarts:
            if self.num_restarts and not is_hopeless:
                error.add_note(
                    f"Unroll workers had been replaced {self.num_restarts} times "
                    "(TrainerConfig.max_worker_restarts)."
                )
            raise error
        self.num_restarts += 1
        _logger.warning(
            "%s\nThe worker is replaced (%d of %d times) and starts new episodes.",
            error,
            self.num_restarts,
            options.max_restarts,
        )
        self._selector.unregister(state.process.connection)
        self._selector.unregister(state.process.sentinel)
        state.process.kill()
        state.process = self._start_process(index, incarnation=self.num_restarts)
        state.num_requested = 0
        state.is_ready = state.has_delivered = False
        state.alive_at = time.monotonic()
        events.append(Lost(index))


class _Worker:
    """What the pool knows of one worker."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.slots: UnrollSlots | None = None
        self.descriptor = -1  # of the memory of the slots
        self.env_ids: Tensor | None = None
        self.num_requested = 0  # unrolls that it has not reported
        self.is_ready = False
        self.has_delivered = False  # since it was started
        self.heartbeat = 0
        self.alive_at = time.monotonic()


def _close_all(descriptors: list[int], selector: selectors.BaseSelector) -> None:
    selector.close()
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
