"""Unroll workers that are actors of Ray, on this machine or on others."""

from __future__ import annotations

import logging
import os
import queue
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing import reduction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.errors import ConfigError, WorkerError, failure_text
from alf_lite.processes.child_main import CLOSE_SECONDS, error_of
from alf_lite.processes.child_process import raise_descriptor_limit
from alf_lite.processes.ray_cluster import (
    ActorLostError,
    RayActor,
    RayCluster,
    answer_of,
)
from alf_lite.unrollers.ray_worker import GROUPS, LIFE, NEWS, UNROLLS, Place, RayWorker
from alf_lite.unrollers.unroll_worker import PoolOptions, UnrollReport
from alf_lite.unrollers.worker_memory import UnrollSlots, flat_parameters
from alf_lite.unrollers.worker_pool import (
    START_SECONDS,
    Event,
    Finished,
    PoolWorker,
    Ready,
    WorkerPool,
)

_logger = logging.getLogger(__name__)

# Parameters up to this size are sent to each worker: to look for them in the object
# store takes it some milliseconds, and the trainer twice the time of a message.
_MESSAGE_BYTES = 64 * 1024
_ALL_MESSAGES_BYTES = 8 * 1024 * 1024  # of all workers together
_PLACE_SECONDS = 30.0  # without a process, until that is said; then every minute
_MAX_UNPLACED = 5  # actors of one worker that Ray loses before they begin
_NODE_SECONDS = 60.0  # in which the workers of a machine that is lost are missed


class _Arrival(NamedTuple):
    """An answer, or that there will be none."""

    worker: int
    incarnation: int
    call: str
    future: Future[Any]


class _LostNode(NamedTuple):
    """Workers of one machine that died without a word, at the same time."""

    until: float
    workers: set[int]


class _RayWorker(PoolWorker):
    """What the pool knows of one worker."""

    actor: RayActor

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.slots: list[UnrollSlots] = []
        self.num_unplaced = 0  # actors in a row that were lost before they began

    def begin(self, actor: RayActor, incarnation: int) -> None:
        """A new actor does the work from now on."""
        self.restart()
        self.actor = actor
        self.incarnation = incarnation
        self.place: Place | None = None  # until a machine has room for it
        self.num_finished = 0  # unrolls that it has reported
        self.arrived: dict[int, UnrollReport] = {}  # before an earlier one, by number
        self.told_version = 0  # of the parameters
        self.stack = ""
        self.is_asked = False  # whether it lives
        self.began_at = self.alive_at
        self.say_at = self.began_at + _PLACE_SECONDS

    @property
    def where(self) -> str:
        if self.place is None:
            return f"{super().where}, which had no place yet"
        return f"{super().where}, process {self.place.pid} on {self.place.host}"


class RayPool(WorkerPool[_RayWorker]):
    """A ``WorkerPool`` of actors.

    An unroll comes back as one array of bytes, which is copied into memory of this
    process. A version of the parameters is put once into the object store, or sent if
    it is small; the workers that have something to do are told, and take over the
    newest when their next unroll begins.

    A machine that is lost counts as one restart, however many workers it had. A worker
    that no machine has room for waits until one joins; the others go on.

    Args:
        recipe: see ``WorkerPool``, as for the others.
        connect: to the cluster.
        cpus_per_worker: that an actor takes of its machine.

    Raises:
        ConfigError: if there is not enough memory, or no cluster.
    """

    def __init__(
        self,
        recipe: bytes,
        connect: Callable[[], RayCluster],
        cpus_per_worker: float,
        options: PoolOptions,
        tensors: Mapping[str, Tensor],
    ) -> None:
        super().__init__(recipe, options, tensors)
        self._cpus_per_worker = cpus_per_worker
        self._parameters = flat_parameters(self._specs.values())
        num_bytes = self._parameters.num_bytes
        self._fits_into_messages = (
            num_bytes <= _MESSAGE_BYTES
            and num_bytes * options.num_workers <= _ALL_MESSAGES_BYTES
        )
        self._values: Any = None  # of the newest version, or where they are stored
        self._arrivals: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        self._ready_at = time.monotonic()
        self._lost: dict[str, _LostNode] = {}
        self._is_closed = False
        self._num_started = 0  # actors
        raise_descriptor_limit()
        self._cluster = connect()

    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        ordered = [tensors[name] for name in self._specs]
        with torch.no_grad():
            torch._foreach_copy_(self._parameters.tensors(), ordered)
        self._values = self._parameters.bytes_of_all
        if not self._fits_into_messages:
            self._values = self._cluster.put(self._values)
        self.version += 1
        for worker in self._workers:
            if worker.num_requested:
                self._refresh(worker)

    def close(self) -> None:
        if self._is_closed:
            return
        closed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ready = [worker for worker in self._workers if worker.is_ready]
        try:
            for worker in ready:
                worker.actor.tell("stop", group=NEWS)
                worker.actor.ask("close", group=UNROLLS, then=closed.put)
            deadline = time.monotonic() + CLOSE_SECONDS
            for _ in ready:
                closed.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            pass
        except Exception as error:  # Ray itself may be gone, and its actors with it
            _logger.debug("unroll workers cannot be asked to end: %s", error)
        finally:
            self.kill()

    def kill(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for worker in self._workers:
            worker.actor.kill()
        self._cluster.close()

    # Actors

    def _start(self, index: int) -> _RayWorker:
        worker = _RayWorker(index)
        self._start_actor(worker)
        return worker

    def _replace(self, worker: _RayWorker) -> None:
        worker.actor.kill()
        self._start_actor(worker)

    def _send_request(self, worker: _RayWorker, slot: int) -> None:
        self._refresh(worker)
        self._ask(worker, "unroll", slot, self.version, group=UNROLLS)

    def _slot_of(self, worker: _RayWorker, slot: int) -> tuple[UnrollSlots, int]:
        return worker.slots[slot], 0

    def _hear(self, timeout: float, events: list[Event]) -> None:
        arrival = self._next_arrival(timeout)
        while arrival is not None:
            self._take_in(arrival, events)
            arrival = self._next_arrival(0.0)

    def _start_actor(self, worker: _RayWorker) -> None:
        worker.begin(
            self._cluster.start_actor(
                RayWorker, num_cpus=self._cpus_per_worker, groups=GROUPS
            ),
            incarnation=self._num_started,
        )
        self._num_started += 1
        self._ask(worker, "place", group=NEWS)
        self._ask(worker, "live", group=LIFE)

    def _ask(self, worker: _RayWorker, call: str, *arguments: Any, group: str) -> None:
        arrivals, who = self._arrivals, (worker.index, worker.incarnation, call)
        worker.actor.ask(
            call,
            *arguments,
            group=group,
            then=lambda future: arrivals.put(_Arrival(*who, future)),
        )

    def _refresh(self, worker: _RayWorker) -> None:
        """Tells a worker where the newest parameters are, unless it knows."""
        if worker.told_version != self.version:
            worker.told_version = self.version
            worker.actor.tell("refresh", self.version, self._values, group=NEWS)

    def _next_arrival(self, timeout: float) -> _Arrival | None:
        try:  # a signal can interrupt it
            return self._arrivals.get(timeout=timeout)
        except queue.Empty:
            return None

    def _take_in(self, arrival: _Arrival, events: list[Event]) -> None:
        worker = self._workers[arrival.worker]
        if arrival.incarnation != worker.incarnation:
            return  # of one that was replaced
        try:
            answer = answer_of(arrival.future)
        except ActorLostError as error:
            if error.is_start:
                raise ConfigError(
                    "an actor of Ray cannot be started; every machine needs alf_lite "
                    f"and what the run is made of, in the same versions: {error}"
                ) from error
            if worker.place is None and worker.num_unplaced < _MAX_UNPLACED:
                # Its machine was lost before it could begin, or before Ray knew it.
                worker.num_unplaced += 1
                self._start_actor(worker)
                return
            lost = WorkerError(f"{worker.where}: {error}")
            self._fail(worker, lost, events, is_sudden=True)
            return
        except Exception as error:
            raised = WorkerError(f"{worker.where} raised {failure_text(error)}")
            self._fail(worker, raised, events)
            return
        if arrival.call == "place":
            worker.place, worker.num_unplaced = Place(*answer), 0
            worker.alive_at = time.monotonic()
            self._build(worker)
        elif arrival.call == "look":
            worker.is_asked = False
            worker.stack = answer.stack
            if answer.heartbeat != worker.heartbeat:
                worker.heartbeat, worker.alive_at = answer.heartbeat, time.monotonic()
        else:
            self._take_in_work(worker, arrival.call, answer, events)

    def _take_in_work(
        self, worker: _RayWorker, call: str, answer: Any, events: list[Event]
    ) -> None:
        words, content, number, values = answer
        worker.alive_at = time.monotonic()
        if words:
            error = error_of(words, worker.where, WorkerError)
            assert error is not None, words
            self._fail(worker, error, events)
        elif call == "build":
            self._make_room(worker, content)
            events.append(Ready(worker.index))
        else:
            report = self._take_in_report(worker, content)
            worker.slots[report.slot].bytes_of_all[:] = values
            worker.arrived[number] = report
            # In the order in which the worker did them.
            while worker.num_finished + 1 in worker.arrived:
                worker.num_finished += 1
                report = worker.arrived.pop(worker.num_finished)
                events.append(Finished(worker.index, report))

    def _build(self, worker: _RayWorker) -> None:
        settings = self._settings(worker.index, worker.incarnation)
        dumped = bytes(reduction.ForkingPickler.dumps(settings))
        places = [os.path.abspath(place) for place in sys.path]
        self._ask(worker, "build", dumped, places, group=UNROLLS)

    def _make_room(self, worker: _RayWorker, content: bytes) -> None:
        """Makes room for the unrolls of a new worker, whose size only it knows."""
        options = self._options
        description = self._introduce(worker, content)
        num_slots = options.slots_per_worker
        for _ in range(num_slots - len(worker.slots)):
            slot = options.make_slots(description.rows, 1)
            slot.create_here(options.num_workers * num_slots)
            worker.slots.append(slot)

    # Failures

    def _watch(self, now: float, is_late: bool, events: list[Event]) -> None:
        try:
            self._cluster.head.check()
        except WorkerError:
            self._is_closed = True  # to ask actors to end would wait for the head
            raise
        if is_late or any(worker.is_ready for worker in self._workers):
            self._ready_at = now
        self._watch_places(now)
        super()._watch(now, is_late, events)

    def _lives(self, worker: _RayWorker, is_silent: bool) -> bool:
        """What it says comes by itself; it is asked if there is nothing."""
        if worker.place is None:
            return True  # it waits
        if is_silent and not worker.is_asked:
            worker.is_asked = True
            self._ask(worker, "look", group=NEWS)
        return False

    def _stack_of(self, worker: _RayWorker) -> str:
        return f"\n\nIts Python stack:\n{worker.stack}" if worker.stack else ""

    def _watch_places(self, now: float) -> None:
        """Says which workers wait for a machine; not for ever if nothing goes on."""
        waiting = [worker for worker in self._workers if worker.place is None]
        late = [w for w in waiting if now - w.began_at > _PLACE_SECONDS]
        if not late:
            return
        allowed = max(self._options.timeout_seconds, START_SECONDS)
        is_over = now - self._ready_at > allowed or (
            not self._have_delivered
            and now - min(worker.began_at for worker in late) > allowed
        )
        text = (
            f"{len(late)} of {len(self._workers)} unroll workers have no process yet. "
            f"Each takes {self._cpus_per_worker:g} CPUs of a machine; Ray has "
            f"{self._cluster.resources_text()}. If these are too few, have machines "
            "join (ray start --address=...), or lower TrainerConfig.num_unroll_workers "
            "or ray_cpus_per_worker."
        )
        if is_over:
            raise WorkerError(f"{text} None came in {allowed:g} s.")
        if any(now >= worker.say_at for worker in late):
            _logger.warning("%s", text)
            for worker in self._workers:
                worker.say_at = now + _NODE_SECONDS

    def _is_free(self, worker: _RayWorker) -> bool:
        """Whether others of its machine died just before, each of them once."""
        if worker.place is None:
            return False
        now, node = time.monotonic(), worker.place.node
        lost = self._lost.get(node)
        if lost is None or now > lost.until or worker.index in lost.workers:
            self._lost[node] = _LostNode(now + _NODE_SECONDS, {worker.index})
            return False
        lost.workers.add(worker.index)
        return True
