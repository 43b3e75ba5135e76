"""What unroll workers are to the trainer, whatever they run on: events and requests."""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from alf_lite.config import shipping as config_shipping
from alf_lite.errors import AlfLiteError, ConfigError, WorkerError
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers.unroll import Unroll
from alf_lite.unrollers.unroll_worker import (
    PoolOptions,
    UnrollReport,
    WorkerDescription,
    WorkerSettings,
)
from alf_lite.unrollers.worker_memory import UnrollSlots
from alf_lite.utils.random_state import derive_seed

_logger = logging.getLogger(__name__)

START_SECONDS = 60.0  # at least, until a worker has built its environment
WATCH_SECONDS = 1.0  # between two looks at who does not answer


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


class PoolWorker:
    """What a pool knows of one worker, whatever that runs in.

    Args:
        index: of the worker among those of the pool.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.env_ids: Tensor | None = None  # [B], once it is ready
        self.restart()

    def restart(self) -> None:
        """Another one does the work from now on."""
        self.is_ready = False
        self.num_requested = 0  # unrolls that it has not reported
        self.heartbeat = 0
        self.alive_at = time.monotonic()

    @property
    def where(self) -> str:
        """For messages."""
        return f"unroll worker {self.index}"


_Worker = TypeVar("_Worker", bound=PoolWorker)


class WorkerPool(abc.ABC, Generic[_Worker]):
    """Starts, watches, replaces and ends the workers.

    Every wait has an end, and watches whether the workers live. A worker that fails
    is replaced by one that starts new episodes, if ``PoolOptions.max_restarts`` allows
    it and it did not raise or hang before any worker had finished an unroll; otherwise
    its error is raised, and all workers are gone.

    Subclasses are the way to the workers: they start them, send and hear.

    Args:
        recipe: an ``unroll_worker.Recipe``, by ``config_shipping``.
        options: see there.
        tensors: what acting depends on, by name.

    Attributes:
        version: of the parameters that were published last.
        num_restarts: how many workers were replaced.
    """

    version = num_restarts = 0

    def __init__(
        self, recipe: bytes, options: PoolOptions, tensors: Mapping[str, Tensor]
    ) -> None:
        self._recipe = recipe
        self._options = options
        self._specs = {
            name: TensorSpec.from_tensor(tensor) for name, tensor in tensors.items()
        }
        self._workers: list[_Worker] = []
        self._num_counted_restarts = 0  # towards the most that are allowed
        self._have_delivered = False  # any of the workers
        self._watched_at = time.monotonic()

    @abc.abstractmethod
    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        """Gives all workers new values of the tensors, as the next version."""

    def start(self, seed: int) -> None:
        """Starts all workers; each of them is reported as ``Ready``.

        Args:
            seed: of everything random in them.
        """
        self._seed = seed
        for index in range(self._options.num_workers):
            self._workers.append(self._start(index))

    def request(self, worker: int, slot: int) -> None:
        """Asks a worker for an unroll in a slot, with the version of now or newer."""
        state = self._workers[worker]
        if state.num_requested == 0:
            state.alive_at = time.monotonic()
        state.num_requested += 1
        self._send_request(state, slot)

    def read(self, worker: int, report: UnrollReport) -> Unroll:
        """Views of a finished unroll, until its slot is asked for again."""
        state = self._workers[worker]
        slots, slot = self._slot_of(state, report.slot)
        experience, time_steps = slots.read(slot)
        return Unroll(
            experience,
            time_steps,
            report.env_step_seconds,
            report.is_first,
            state.env_ids if self._options.num_workers > 1 else None,
            kept_rows=slots.rows(slot).read_time_steps,
            may_have_restarts=report.may_have_restarts,
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
            self._hear(min(timeout, WATCH_SECONDS), events)
            now = time.monotonic()
            pause = now - self._watched_at
            if pause >= WATCH_SECONDS:
                self._watched_at = now
                # After a pause of this process the workers get their time anew: perhaps
                # they were stopped, too.
                timeout = self._options.timeout_seconds
                self._watch(now, pause - WATCH_SECONDS > timeout, events)
        except BaseException:
            self.kill()
            raise
        return events

    @abc.abstractmethod
    def close(self) -> None:
        """Ends all workers; those that do not end within two seconds are killed."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Ends all workers now."""

    # The way to the workers

    @abc.abstractmethod
    def _start(self, index: int) -> _Worker:
        """Starts a worker."""

    @abc.abstractmethod
    def _replace(self, worker: _Worker) -> None:
        """Starts a worker in place of one that is gone, or does not answer."""

    @abc.abstractmethod
    def _send_request(self, worker: _Worker, slot: int) -> None:
        """Asks for an unroll."""

    @abc.abstractmethod
    def _slot_of(self, worker: _Worker, slot: int) -> tuple[UnrollSlots, int]:
        """Where what a worker has written into a slot can be read."""

    @abc.abstractmethod
    def _hear(self, timeout: float, events: list[Event]) -> None:
        """Takes in what workers say, after at most ``timeout`` seconds."""

    @abc.abstractmethod
    def _lives(self, worker: _Worker, is_silent: bool) -> bool:
        """Whether a worker has done a step since the last time, as far as is known.

        Args:
            worker: of the pool.
            is_silent: whether it has work and was not known to live for a while.
        """

    @abc.abstractmethod
    def _stack_of(self, worker: _Worker) -> str:
        """Where a worker is that does not answer, for the end of a message."""

    def _is_free(self, worker: _Worker) -> bool:
        """Whether a worker that died was lost together with one that is counted."""
        return False

    def _settings(self, index: int, incarnation: int) -> WorkerSettings:
        return WorkerSettings(
            worker_index=index,
            recipe=self._recipe,
            seed=derive_seed(self._seed, "unroll worker", index, incarnation),
            options=self._options,
            tensor_specs=self._specs,
        )

    def _introduce(self, worker: _Worker, content: bytes) -> WorkerDescription:
        """Takes in what a worker that is ready says of itself."""
        description: WorkerDescription = reduction.ForkingPickler.loads(content)
        config_shipping.import_config_use(description.config_use)
        first = worker.index * description.batch_size
        worker.env_ids = torch.arange(first, first + description.batch_size)
        worker.is_ready = True
        worker.alive_at = time.monotonic()
        return description

    def _take_in_report(self, worker: _Worker, content: bytes) -> UnrollReport:
        worker.num_requested -= 1
        self._have_delivered = True
        return UnrollReport.unpack(content)

    def _watch(self, now: float, is_late: bool, events: list[Event]) -> None:
        """Finds workers that have something to do and do not do it."""
        timeout = self._options.timeout_seconds
        for worker in self._workers:
            allowed = timeout if worker.is_ready else max(timeout, START_SECONDS)
            may_rest = is_late or (worker.is_ready and not worker.num_requested)
            silence = now - worker.alive_at
            is_silent = not may_rest and silence > allowed / 4
            if self._lives(worker, is_silent) or may_rest:
                worker.alive_at = now
            elif silence > allowed:
                hang = WorkerError(
                    f"{worker.where}: no step of its environments for {allowed:g} s, "
                    "so it was killed. If they need longer, raise TrainerConfig."
                    f"worker_timeout_seconds.{self._stack_of(worker)}"
                )
                self._fail(worker, hang, events)

    def _fail(
        self,
        worker: _Worker,
        error: AlfLiteError,
        events: list[Event],
        *,
        is_sudden: bool = False,
    ) -> None:
        """Replaces a worker, or raises its error.

        Args:
            worker: that is gone.
            error: why.
            events: a ``Lost`` is added.
            is_sudden: whether it died without a word.
        """
        most = self._options.max_restarts
        is_free = is_sudden and self._is_free(worker)
        is_spent = not is_free and self._num_counted_restarts >= most
        # What fails before the first unroll of all would fail again.
        is_hopeless = isinstance(error, ConfigError) or not (
            self._have_delivered or is_sudden
        )
        if is_hopeless or is_spent:
            if self.num_restarts and not is_hopeless:
                error.add_note(
                    f"Unroll workers had been replaced {self.num_restarts} times "
                    "(TrainerConfig.max_worker_restarts)."
                )
            raise error
        self.num_restarts += 1
        self._num_counted_restarts += not is_free
        _logger.warning(
            "%s\nThe worker is replaced (%d of %d times) and starts new episodes.",
            error,
            self._num_counted_restarts,
            most,
        )
        self._replace(worker)
        events.append(Lost(worker.index))


# (options, what acting depends on, by name) → the workers
CreatePool = Callable[[PoolOptions, Mapping[str, Tensor]], WorkerPool[Any]]
