"""Unroll workers that are processes of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from multiprocessing import reduction, util

import torch
from torch import Tensor

from alf_lite.config import shipping as config_shipping
from alf_lite.errors import AlfLiteError, WorkerError
from alf_lite.processes.child_main import error_of
from alf_lite.processes.child_process import (
    ChildDiedError,
    ChildGroup,
    ChildProcess,
    start_server,
)
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers import process_worker
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
from alf_lite.unrollers.worker_pool import (
    START_SECONDS,
    WATCH_SECONDS,
    Event,
    Finished,
    Lost,
    Ready,
    RestartBudget,
)
from alf_lite.utils.random_state import derive_seed


class ProcessPool:
    """A ``WorkerPool`` of child processes, with shared memory between them and this.

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
            process_worker.serve, name="unroll-worker", method="forkserver"
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
        self._restarts = RestartBudget(options.max_restarts)
        self._watched_at = time.monotonic()

    @property
    def version(self) -> int:
        return self._store.version

    @property
    def num_restarts(self) -> int:
        return self._restarts.num_restarts

    def publish(self, tensors: Mapping[str, Tensor]) -> int:
        return self._store.publish([tensors[name] for name in self._specs])

    def start(self, seed: int) -> None:
        self._seed = seed
        for index in range(self._options.num_workers):
            self._workers.append(_Worker())
            self._start_process(index, incarnation=0)

    def request(self, worker: int, slot: int) -> None:
        state = self._workers[worker]
        if state.num_requested == 0:
            state.alive_at = time.monotonic()
        state.num_requested += 1
        request = process_worker.UNROLL + process_worker.SLOT.pack(slot)
        self._processes.children[worker].send(request)

    def read(self, worker: int, report: UnrollReport) -> Unroll:
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
        events: list[Event] = []
        try:
            ready = self._processes.wait(min(timeout, WATCH_SECONDS))
            for index in {index for index, _ in ready}:
                self._listen(index, events)
            self._watch(events)
        except BaseException:
            self.kill()
            raise
        return events

    def close(self) -> None:
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
                if kind == process_worker.DONE:
                    events.append(self._done(index, content))
                elif kind == process_worker.READY:
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
        self._restarts.have_delivered = True
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
        process.send(process_worker.ATTACH)
        process.send_descriptor(state.descriptor)

    # Failures

    def _watch(self, events: list[Event]) -> None:
        """Finds workers that have something to do and do not do it."""
        now = time.monotonic()
        pause = now - self._watched_at
        if pause < WATCH_SECONDS:
            return
        self._watched_at = now
        timeout = self._options.timeout_seconds
        for index, state in enumerate(self._workers):
            beat = int(self._heartbeats[index])
            has_work = state.num_requested > 0 or not state.is_ready
            allowed = timeout if state.is_ready else max(timeout, START_SECONDS)
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
        self._restarts.spend(error, is_sudden=is_sudden)
        state = self._workers[index]
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
    start_server([process_worker.__name__, "torch._dynamo", recipe_module])


def _where(process: ChildProcess) -> str:
    return f"unroll worker {process.index}, process {process.pid}"


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
