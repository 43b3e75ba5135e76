"""All unroll workers of a run: what they finish, and what happens when one fails."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from multiprocessing import reduction, util
from typing import NamedTuple

import torch
from torch import Tensor

from alf_lite.config import shipping as config_shipping
from alf_lite.errors import AlfLiteError, ConfigError, WorkerError
from alf_lite.processes.child_main import error_of
from alf_lite.processes.child_process import (
    ChildDiedError,
    ChildGroup,
    ChildProcess,
    start_server,
)
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers import unroll_worker
from alf_lite.unrollers.unroll import Unroll
from alf_lite.unrollers.unroll_worker import (
    PoolOptions,
    UnrollReport,
    WorkerDescription,
    WorkerSettings,
)
from alf_lite.unrollers.worker_memory import (
    ParameterStore,
    UnrollSlots,
    control_memory,
)
from alf_lite.utils.random_state import derive_seed

_logger = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0  # between two looks at the heartbeats
_START_SECONDS = 60.0  # at least, until a worker has built its environment


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
    did not raise or hang before any worker had finished an unroll; otherwise its error
    is raised, and all workers are gone.

    Args:
        recipe: an ``unroll_worker.Recipe``, by ``config_shipping``.
        recipe_module: is imported for it.
        options: see there.
        tensors: what acting depends on, by name.

    Raises:
        ConfigError: if there is not enough memory.
    """

    def __init__(
        self,
        recipe: bytes,
        recipe_module: str,
        options: PoolOptions,
        tensors: Mapping[str, Tensor],
    ) -> None:
        self._recipe = recipe
        self._recipe_module = recipe_module
        self._options = options
        self._specs = {
            name: TensorSpec.from_tensor(tensor) for name, tensor in tensors.items()
        }
        self._processes = ChildGroup(
            unroll_worker.serve, name="unroll-worker", method="forkserver"
        )
        self._workers: list[_Worker] = []
        self._descriptors: list[int] = []
        self._finalizer = util.Finalize(
            self, _close_all, (self._descriptors,), exitpriority=90
        )
        control = control_memory(options.num_workers)
        self._store = ParameterStore(list(self._specs.values()))
        self._descriptors.append(control.create())
        self._descriptors.append(self._store.create())
        self._stop, self._heartbeats = control.arrays()
        self.num_restarts = 0
        self._have_delivered = False  # any of them
        self._watched_at = time.monotonic()

    @property
    def version(self) -> int:
        """Of the parameters that were published last."""
        return self._store.version

    def publish(self, tensors: Mapping[str, Tensor]) -> int:
        """Gives all workers new values of the tensors. Returns their version."""
        return self._store.publish([tensors[name] for name in self._specs])

    def start(self, seed: int) -> None:
        """Starts all workers; each of them is reported as ``Ready``.

        Args:
            seed: of everything random in them.
        """
        self._seed = seed
        for index in range(self._options.num_workers):
            self._workers.append(_Worker())
            self._start_process(index, incarnation=0)

    def request(self, worker: int, slot: int) -> None:
        """Asks a worker for an unroll in a slot."""
        state = self._workers[worker]
        if state.num_requested == 0:
            state.alive_at = time.monotonic()
        state.num_requested += 1
        request = unroll_worker.UNROLL + unroll_worker.SLOT.pack(slot)
        self._processes.children[worker].send(request)

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
            ready = self._processes.wait(min(timeout, _WATCH_SECONDS))
            for index in {index for index, _ in ready}:
                self._listen(index, events)
            self._watch(events)
        except BaseException:
            self.kill()
            raise
        return events

    def close(self) -> None:
        """Ends all workers; those that do not end within two seconds are killed."""
        self._stop[0] = 1
        self._processes.close()
        self._finalizer()

    def kill(self) -> None:
        """Ends all workers now."""
        self._processes.kill()
        self._finalizer()

    # Processes

    def _start_process(self, index: int, incarnation: int) -> None:
        """Starts a worker, in place of the one that there was."""
        warm_up(self._recipe_module)
        settings = WorkerSettings(
            worker_index=index,
            recipe=self._recipe,
            seed=derive_seed(self._seed, "unroll worker", index, incarnation),
            options=self._options,
            tensor_specs=self._specs,
        )
        process = self._processes.start(settings, index)
        for descriptor in self._descriptors[:2]:
            process.send_descriptor(descriptor)

    def _listen(self, index: int, events: list[Event]) -> None:
        """Reads all that a worker has sent; notices if it is gone."""
        process = self._processes.children[index]
        try:
            while process.connection.poll(0):
                message = process.receive()
                kind, content = message[:1], message[1:]
                if kind == unroll_worker.DONE:
                    events.append(self._done(index, content))
                elif kind == unroll_worker.READY:
                    self._introduce(index, content)
                    events.append(Ready(index))
                else:
                    error = error_of(message, _where(process), WorkerError)
                    assert error is not None, message
                    self._fail(index, error, events)
                    return
        except ChildDiedError as error:
            death = WorkerError(f"{_where(process)}: {error}")
            self._fail(index, death, events, is_sudden=True)

    def _done(self, index: int, content: bytes) -> Finished:
        state = self._workers[index]
        state.num_requested -= 1
        self._have_delivered = True
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
            state.descriptor = slots.create(options.num_workers)
            self._descriptors.append(state.descriptor)
            state.slots = slots
            first = index * description.batch_size
            state.env_ids = torch.arange(first, first + description.batch_size)
        state.is_ready = True
        state.alive_at = time.monotonic()
        process = self._processes.children[index]
        process.send(unroll_worker.ATTACH)
        process.send_descriptor(state.descriptor)

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
                self._fail(index, self._hang(index, allowed), events)

    def _hang(self, index: int, seconds: float) -> WorkerError:
        process = self._processes.children[index]
        return WorkerError(
            f"{_where(process)}: no step of its environments for {seconds:g} s, so it "
            "was killed. If they need longer, raise TrainerConfig."
            f"worker_timeout_seconds.{process.ask_for_stack()}"
        )

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
        # What fails before the first unroll of all would fail again.
        is_hopeless = isinstance(error, ConfigError) or not (
            self._have_delivered or is_sudden
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
        self._start_process(index, incarnation=self.num_restarts)
        state.num_requested = 0
        state.is_ready = False
        state.alive_at = time.monotonic()
        events.append(Lost(index))


class _Worker:
    """What the pool knows of one worker."""

    def __init__(self) -> None:
        self.slots: UnrollSlots | None = None
        self.descriptor = -1  # of the memory of the slots
        self.env_ids: Tensor | None = None
        self.num_requested = 0  # unrolls that it has not reported
        self.is_ready = False
        self.heartbeat = 0
        self.alive_at = time.monotonic()


def warm_up(recipe_module: str) -> None:
    """Has what all workers need imported once, for all of them to be forked from."""
    # Building an optimizer imports the second one, which takes a second.
    start_server([unroll_worker.__name__, "torch._dynamo", recipe_module])


def _where(process: ChildProcess) -> str:
    return f"unroll worker {process.index}, process {process.pid}"


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
