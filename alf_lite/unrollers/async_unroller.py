"""Collects experience in worker processes while this one trains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from alf_lite.config import TrainerConfig
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.unrollers.unroll import Unroll
from alf_lite.unrollers.unroll_worker import PoolOptions, UnrollReport
from alf_lite.unrollers.worker_pool import Finished, Lost, Ready, WorkerPool
from alf_lite.utils import summary
from alf_lite.utils.random_state import new_seed

# () → everything that acting depends on, by name, as it is now.
Capture = Callable[[], dict[str, Tensor]]


class InFlight(NamedTuple):
    """An unroll that a worker was asked for."""

    worker: int
    slot: int
    version: int  # of the newest parameters when it was asked; it may act with newer


class InFlightUnrolls:
    """The slots of all workers, and the unrolls that are begun and not yet taken.

    Every unroll has a policy lag: how many versions newer the parameters are when it is
    taken for training than those that acted. With ``max_lag`` k and at least n unrolls
    taken per version, k·n unrolls may be in flight, beside those still to be taken for
    the present version. Each has a deadline, k versions after it was asked for.
    If none is taken whose place others need to meet theirs (:meth:`can_take`), the lag
    never exceeds k.

    Args:
        num_workers: how many.
        slots_per_worker: unrolls of one worker that are under way, finished or in use.
        max_lag: k; None for no limit but the slots.
        per_version: n.
    """

    def __init__(
        self,
        num_workers: int,
        slots_per_worker: int,
        max_lag: int | None,
        per_version: int,
    ) -> None:
        self._free = [set(range(slots_per_worker)) for _ in range(num_workers)]
        self._begun: dict[tuple[int, int], InFlight] = {}
        self._max_lag = max_lag
        self._per_version = per_version
        self._ready: set[int] = set()  # workers that can be asked

    def add_worker(self, worker: int) -> None:
        """From now on ``worker`` may be asked for unrolls."""
        self._ready.add(worker)

    @property
    def has_all_workers(self) -> bool:
        """Whether every worker can be asked."""
        return len(self._ready) == len(self._free)

    def begin(self, version: int, num_to_take: int) -> list[InFlight]:
        """As many new unrolls as are allowed, of the workers with the fewest first.

        Args:
            version: of the newest parameters.
            num_to_take: how many more unrolls will be taken for this version.
        """
        begun: list[InFlight] = []
        room = self._room(num_to_take)
        while room is None or len(begun) < room:
            candidates = [worker for worker in self._ready if self._free[worker]]
            if not candidates:
                break
            worker = max(candidates, key=lambda w: (len(self._free[w]), -w))
            slot = min(self._free[worker])
            self._free[worker].remove(slot)
            unroll = InFlight(worker, slot, version)
            self._begun[worker, slot] = unroll
            begun.append(unroll)
        return begun

    def _room(self, num_to_take: int) -> int | None:
        if self._max_lag is None:
            return None
        limit = self._max_lag * self._per_version + num_to_take
        return limit - len(self._begun)

    def in_slot(self, worker: int, slot: int) -> InFlight:
        """The unroll in a slot that is being filled, or is filled and not taken."""
        return self._begun[worker, slot]

    def can_take(self, unroll: InFlight, version: int, num_to_take: int) -> bool:
        """Whether all others still meet their deadlines if this unroll is taken now.

        Args:
            unroll: that would be taken.
            version: for which it would be taken.
            num_to_take: how many may be taken for it, with this one.
        """
        if self._max_lag is None:
            return num_to_take > 0
        places = num_to_take - 1
        for due in range(version, self.deadline(unroll)):
            if sum(self.deadline(u) <= due for u in self._begun.values()) > places:
                return False
            places += self._per_version
        return num_to_take > 0

    def deadline(self, unroll: InFlight) -> int:
        """The last version for which the unroll may be taken; 0 if there is none."""
        return 0 if self._max_lag is None else unroll.version + self._max_lag

    def take(self, unroll: InFlight) -> None:
        """The unroll is used for training from now on."""
        del self._begun[unroll.worker, unroll.slot]

    def release(self, unroll: InFlight) -> None:
        """The slot of an unroll that was taken may be overwritten."""
        self._free[unroll.worker].add(unroll.slot)

    def lose_worker(self, worker: int, finished: set[InFlight]) -> None:
        """``worker`` is gone: what it has not finished is not to come.

        Args:
            worker: which.
            finished: unrolls that are complete, of this worker and others.
        """
        self._ready.discard(worker)
        for unroll in [u for u in self._begun.values() if u.worker == worker]:
            if unroll not in finished:
                self.take(unroll)
                self.release(unroll)


class _Queued(NamedTuple):
    """A finished unroll that waits for training."""

    unroll: InFlight
    report: UnrollReport


class AsyncUnroller:
    """Lets N worker processes unroll, and hands over what they have finished.

    Every worker acts in B/N environments of its own with the parameters that were
    published last; parameters never change within an unroll. A worker goes on unrolling
    while the trainer trains, as far as the queue and the allowed policy lag let it.
    Nothing that was finished is dropped before the end of the run.

    An unroll of L steps consists of as many environment steps as L steps of all B
    environments, of whichever workers are first.

    Args:
        config: of the run.
        env: of all workers together, with the recipe for that of one.
        capture: what the workers must know of the algorithm that is trained.
        on_policy: unrolls have a bootstrap row, and the policy lag is bounded.

    Raises:
        ConfigError: if there is not enough memory.
    """

    def __init__(
        self,
        config: TrainerConfig,
        env: RemoteEnvironment,
        capture: Capture,
        *,
        on_policy: bool,
    ) -> None:
        length = config.unroll_length
        # What is taken step by step is unrolled step by step.
        is_whole = length > 0 and length == int(length)
        self._worker_length = int(length) if is_whole else 1
        most_per_worker = 1 if is_whole else math.ceil(length)  # in one call
        least_per_worker = 1 if is_whole else max(1, int(length))
        self._num_workers = config.num_unroll_workers
        self._update_period = config.unroll_parameter_update_period
        self._capture = capture
        # One is being filled or trained on while others wait.
        slots_per_worker = max(config.unroll_queue_size, most_per_worker) + 2
        self._num_slots = self._num_workers * slots_per_worker
        max_lag = config.max_policy_lag
        if max_lag is None and on_policy:
            max_lag = 1
        self._in_flight = InFlightUnrolls(
            self._num_workers,
            slots_per_worker,
            max_lag,
            per_version=self._num_workers * least_per_worker,
        )
        options = PoolOptions(
            num_workers=self._num_workers,
            unroll_length=self._worker_length,
            bootstrap=on_policy,
            slots_per_worker=slots_per_worker,
            step_interval=config.unroll_step_interval,
            timeout_seconds=config.worker_timeout_seconds,
            max_restarts=config.max_worker_restarts,
        )
        self._pool = WorkerPool(env.recipe, env.recipe_module, options, capture())
        self.is_started = False
        self._num_calls = 0
        self._num_to_take = 0  # how many more unrolls this call waits for
        self._queue: list[_Queued] = []  # in the order in which they were finished
        self._in_use: list[InFlight] = []  # of the unrolls that were returned last

    def reset(self, seed: int | None = None) -> None:
        """Starts the workers, if they do not run yet, and waits until all of them do.

        What runs is not reset: it is ahead of the trainer, and which step it is at
        depends on the machine, so that no seed could make it do the same again.

        Args:
            seed: of everything random in the workers; None chooses one.

        Raises:
            EnvError: if an environment cannot be built or reset.
            ConfigError: if anything else cannot be built.
        """
        if self.is_started:
            return
        self.is_started = True
        self._pool.publish(self._capture())
        self._pool.start(new_seed() if seed is None else seed)
        while not self._in_flight.has_all_workers:
            self._listen(1.0)

    def unroll(self, length: int) -> list[Unroll]:
        """Waits for exactly ``length`` steps of all environments.

        Returns:
            Unrolls of single workers, valid until the next call.
        """
        num_unrolls = self._num_workers * length // self._worker_length
        return self.collect(num_unrolls, num_unrolls)

    def collect(self, at_least: int, at_most: int) -> list[Unroll]:
        """Takes what is finished, but waits for ``at_least`` unrolls of a worker.

        Args:
            at_least: wait for so many, or as many as there are slots for.
            at_most: take no more; the others stay in the queue.

        Raises:
            EnvError: if an environment failed.
            WorkerError: if a worker died, hung or raised, and is not replaced.
            ConfigError: if a worker cannot be built.
        """
        begin = time.perf_counter()
        self.reset()
        for unroll in self._in_use:
            self._in_flight.release(unroll)
        if self._num_calls and self._num_calls % self._update_period == 0:
            self._pool.publish(self._capture())
        self._num_calls += 1
        self._num_to_take = min(at_least, self._num_slots)
        self._request()
        taken = self._gather(at_most)
        self._in_use = [queued.unroll for queued in taken]
        self._request()
        if summary.should_record():
            self._summarize(taken, time.perf_counter() - begin)
        return [
            self._pool.read(queued.unroll.worker, queued.report) for queued in taken
        ]

    def close(self) -> None:
        """Ends the workers; may be called more than once."""
        self._pool.close()

    # Gathering

    def _gather(self, at_most: int) -> list[_Queued]:
        self._listen(0.0)
        taken = self._take(at_most)
        while self._num_to_take > 0:
            self._listen(1.0)
            taken += self._take(at_most - len(taken))
        return taken

    def _take(self, at_most: int) -> list[_Queued]:
        """Takes finished unrolls out of the queue, those with the least time first."""
        in_flight, version = self._in_flight, self._pool.version
        self._queue.sort(key=lambda queued: in_flight.deadline(queued.unroll))
        taken: list[_Queued] = []
        kept: list[_Queued] = []
        for queued in self._queue:
            if in_flight.can_take(queued.unroll, version, at_most - len(taken)):
                taken.append(queued)
                in_flight.take(queued.unroll)
            else:
                kept.append(queued)
        self._queue = kept
        self._num_to_take = max(0, self._num_to_take - len(taken))
        return taken

    def _listen(self, timeout: float) -> None:
        """Waits for news of the workers and acts on them."""
        events = self._pool.poll(timeout)
        for event in events:
            if isinstance(event, Finished):
                unroll = self._in_flight.in_slot(event.worker, event.report.slot)
                self._queue.append(_Queued(unroll, event.report))
            elif isinstance(event, Lost):
                finished = {queued.unroll for queued in self._queue}
                self._in_flight.lose_worker(event.worker, finished)
            else:
                self._in_flight.add_worker(event.worker)
        if any(isinstance(event, Ready) for event in events):
            # After all events: some who could be asked before may be lost.
            self._request()

    def _request(self) -> None:
        for unroll in self._in_flight.begin(self._pool.version, self._num_to_take):
            self._pool.request(unroll.worker, unroll.slot)

    # Summaries

    def _summarize(self, taken: list[_Queued], seconds: float) -> None:
        summary.scalar("async/queued_unrolls", float(len(self._queue)))
        summary.scalar("async/worker_restarts", float(self._pool.num_restarts))
        summary.scalar("async/wait_seconds", seconds)
        if not taken:
            return
        version = self._pool.version
        lags = [version - queued.report.version for queued in taken]
        summary.scalar("async/policy_lag/mean", float(np.mean(lags)))
        summary.scalar("async/policy_lag/max", float(max(lags)))
        speeds = [self._worker_length / queued.report.seconds for queued in taken]
        summary.scalar("async/worker_steps_per_second", float(np.mean(speeds)))
