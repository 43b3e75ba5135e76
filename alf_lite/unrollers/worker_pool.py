"""What unroll workers are to the trainer, whatever they run on: events and requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from alf_lite.errors import AlfLiteError, ConfigError
from alf_lite.unrollers.unroll import Unroll
from alf_lite.unrollers.unroll_worker import PoolOptions, UnrollReport

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


class WorkerPool(Protocol):
    """Starts, watches, replaces and ends the workers.

    Every wait has an end, and watches whether the workers live. A worker that fails
    is replaced by one that starts new episodes, if ``PoolOptions.max_restarts`` allows
    it and it did not raise or hang before any worker had finished an unroll; otherwise
    its error is raised, and all workers are gone.
    """

    @property
    def version(self) -> int:
        """Of the parameters that were published last; 0 before the first."""
        ...

    @property
    def num_restarts(self) -> int:
        """How many workers were replaced."""
        ...

    def publish(self, tensors: Mapping[str, Tensor]) -> int:
        """Gives all workers new values of the tensors. Returns their version."""
        ...

    def start(self, seed: int) -> None:
        """Starts all workers; each of them is reported as ``Ready``.

        Args:
            seed: of everything random in them.
        """

    def request(self, worker: int, slot: int) -> None:
        """Asks a worker for an unroll in a slot, with the version of now or newer."""

    def read(self, worker: int, report: UnrollReport) -> Unroll:
        """Views of a finished unroll, until its slot is asked for again."""
        ...

    def poll(self, timeout: float) -> list[Event]:
        """What has happened, after at most ``timeout`` seconds.

        Raises:
            EnvError: if an environment failed.
            WorkerError: if a worker died, hung or raised.
            ConfigError: if a worker cannot be built.
        """
        ...

    def close(self) -> None:
        """Ends all workers; those that do not end within two seconds are killed."""


# (options, what acting depends on, by name) → the workers
CreatePool = Callable[[PoolOptions, Mapping[str, Tensor]], WorkerPool]


class RestartBudget:
    """How often workers that failed are replaced, over the run.

    Args:
        max_restarts: of all workers together.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._num_spent = 0
        self.num_restarts = 0
        self.have_delivered = False  # any of the workers

    def spend(
        self, error: AlfLiteError, *, is_sudden: bool = False, is_free: bool = False
    ) -> None:
        """Allows a worker to be replaced, or raises its error.

        Args:
            error: why it is gone.
            is_sudden: whether it died without a word.
            is_free: whether it was lost together with one that is counted.
        """
        # What fails before the first unroll of all would fail again.
        is_hopeless = isinstance(error, ConfigError) or not (
            self.have_delivered or is_sudden
        )
        is_spent = not is_free and self._num_spent >= self._max_restarts
        if is_hopeless or is_spent:
            if self.num_restarts and not is_hopeless:
                error.add_note(
                    f"Unroll workers had been replaced {self.num_restarts} times "
                    "(TrainerConfig.max_worker_restarts)."
                )
            raise error
        self.num_restarts += 1
        self._num_spent += not is_free
        _logger.warning(
            "%s\nThe worker is replaced (%d of %d times) and starts new episodes.",
            error,
            self._num_spent,
            self._max_restarts,
        )
