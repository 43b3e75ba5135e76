"""Unroll workers that are processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing import util

from torch import Tensor

from alf_lite.errors import WorkerError
from alf_lite.processes.child_main import error_of
from alf_lite.processes.child_process import (
    ChildDiedError,
    ChildGroup,
    ChildProcess,
    start_server,
)
from alf_lite.unrollers import process_worker
from alf_lite.unrollers.unroll_worker import PoolOptions
from alf_lite.unrollers.worker_memory import (
    ParameterStore,
    UnrollSlots,
    control_memory,
)
from alf_lite.unrollers.worker_pool import (
    Event,
    Finished,
    PoolWorker,
    Ready,
    WorkerPool,
)


class _ProcessWorker(PoolWorker):
    """What the pool knows of one worker."""

    process: ChildProcess

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.slots: UnrollSlots | None = None
        self.descriptor = -1  # of the memory of the slots

    @property
    def where(self) -> str:
        return f"{super().where}, process {self.process.pid}"


class ProcessPool(WorkerPool[_ProcessWorker]):
    """A ``WorkerPool`` of child processes, with shared memory between them and this.

    Args:
        recipe: see ``WorkerPool``, as for the others.
        recipe_module: is imported for it.

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
        super().__init__(recipe, options, tensors)
        self._recipe_module = recipe_module
        self._processes = ChildGroup(
            process_worker.serve, name="unroll-worker", method="forkserver"
        )
        self._descriptors: list[int] = []
        self._finalizer = util.Finalize(
            self, _close_all, (self._descriptors,), exitpriority=90
        )
        control = control_memory(options.num_workers)
        self._store = ParameterStore(list(self._specs.values()))
        self._descriptors.append(control.create())
        self._descriptors.append(self._store.create())
        self._stop, self._heartbeats = control.arrays()

    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        self.version = self._store.publish([tensors[name] for name in self._specs])

    def close(self) -> None:
        self._stop[0] = 1
        self._processes.close()
        self._finalizer()

    def kill(self) -> None:
        self._processes.kill()
        self._finalizer()

    def _start(self, index: int) -> _ProcessWorker:
        worker = _ProcessWorker(index)
        self._start_process(worker, incarnation=0)
        return worker

    def _replace(self, worker: _ProcessWorker) -> None:
        self._start_process(worker, incarnation=self.num_restarts)
        worker.restart()

    def _start_process(self, worker: _ProcessWorker, incarnation: int) -> None:
        warm_up(self._recipe_module)
        settings = self._settings(worker.index, incarnation)
        worker.process = self._processes.start(settings, worker.index)
        for descriptor in self._descriptors[:2]:
            worker.process.send_descriptor(descriptor)

    def _send_request(self, worker: _ProcessWorker, slot: int) -> None:
        worker.process.send(process_worker.UNROLL + process_worker.SLOT.pack(slot))

    def _slot_of(self, worker: _ProcessWorker, slot: int) -> tuple[UnrollSlots, int]:
        assert worker.slots is not None, worker.index
        return worker.slots, slot

    def _hear(self, timeout: float, events: list[Event]) -> None:
        # One message of each at a time: to ask a connection whether there is more
        # takes longer than to ask for all of them.
        while speaking := [i for i, speaks in self._processes.wait(timeout) if speaks]:
            for index in speaking:
                self._listen(self._workers[index], events)
            timeout = 0.0

    def _listen(self, worker: _ProcessWorker, events: list[Event]) -> None:
        """Reads a message of a worker; notices if it is gone."""
        try:
            message = worker.process.receive()
        except ChildDiedError as error:
            death = WorkerError(f"{worker.where}: {error}")
            self._fail(worker, death, events, is_sudden=True)
            return
        kind, content = message[:1], message[1:]
        if kind == process_worker.DONE:
            report = self._take_in_report(worker, content)
            events.append(Finished(worker.index, report))
        elif kind == process_worker.READY:
            self._give_slots(worker, content)
            events.append(Ready(worker.index))
        else:
            found = error_of(message, worker.where, WorkerError)
            assert found is not None, message
            self._fail(worker, found, events)

    def _give_slots(self, worker: _ProcessWorker, content: bytes) -> None:
        """Gives a new worker its slots, whose size only it knows."""
        options = self._options
        description = self._introduce(worker, content)
        if worker.slots is None:
            slots = options.make_slots(description.rows, options.slots_per_worker)
            worker.descriptor = slots.create(options.num_workers)
            self._descriptors.append(worker.descriptor)
            worker.slots = slots
        worker.process.send(process_worker.ATTACH)
        worker.process.send_descriptor(worker.descriptor)

    def _lives(self, worker: _ProcessWorker, is_silent: bool) -> bool:
        before = worker.heartbeat
        worker.heartbeat = int(self._heartbeats[worker.index])
        return worker.heartbeat != before

    def _stack_of(self, worker: _ProcessWorker) -> str:
        return worker.process.ask_for_stack()


def warm_up(recipe_module: str) -> None:
    """Has what all workers need imported once, for all of them to be forked from."""
    start_server([process_worker.__name__, recipe_module])


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
