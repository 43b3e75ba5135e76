"""Collects experience in workers while this process trains."""

from __future__ import annotations

import bisect
import functools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from alf_lite.config import TrainerConfig
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.processes.ray_cluster import RayCluster
from alf_lite.unrollers.in_flight import InFlight, InFlightUnrolls
from alf_lite.unrollers.process_pool import ProcessPool
from alf_lite.unrollers.ray_pool import RayPool
from alf_lite.unrollers.unroll import Unroll
from alf_lite.unrollers.unroll_worker import PoolOptions, UnrollReport
from alf_lite.unrollers.worker_pool import CreatePool, Finished, Lost, Ready
from alf_lite.utils import summary
from alf_lite.utils.random_state import new_seed
from alf_lite.utils.ranks import ranks

# () → everything that acting depends on, by name, as it is now.
Capture = Callable[[], dict[str, Tensor]]


class _Queued(NamedTuple):
    """A finished unroll that waits for training."""

    unroll: InFlight
    report: UnrollReport


class AsyncUnroller:
    """Lets N workers unroll, and hands over what they have finished.

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
        create_pool: the workers; those that the config says by default.

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
        create_pool: CreatePool | None = None,
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
            first_worker=ranks.index * self._num_workers,
        )
        self._pool = (create_pool or pool_of(config, env))(options, capture())
        self.is_started = False
        self._num_calls = 0
        self._num_to_take = 0  # how many more unrolls this call waits for
        # By deadline, and then in the order in which they were finished.
        self._queue: list[_Queued] = []
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
        taken: list[_Queued] = []
        for queued in self._queue:
            # Where one has to wait, those with more time have to, too.
            if not in_flight.can_take(queued.unroll, version, at_most - len(taken)):
                break
            taken.append(queued)
            in_flight.take(queued.unroll)
        del self._queue[: len(taken)]
        self._num_to_take = max(0, self._num_to_take - len(taken))
        return taken

    def _listen(self, timeout: float) -> None:
        """Waits for news of the workers and acts on them."""
        events = self._pool.poll(timeout)
        for event in events:
            if isinstance(event, Finished):
                unroll = self._in_flight.in_slot(event.worker, event.report.slot)
                queued = _Queued(unroll, event.report)
                bisect.insort(self._queue, queued, key=self._deadline)
            elif isinstance(event, Lost):
                finished = {queued.unroll for queued in self._queue}
                self._in_flight.lose_worker(event.worker, finished)
            else:
                self._in_flight.add_worker(event.worker)
        if any(isinstance(event, Ready) for event in events):
            # After all events: some who could be asked before may be lost.
            self._request()

    def _deadline(self, queued: _Queued) -> int:
        return self._in_flight.deadline(queued.unroll)

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


def pool_of(config: TrainerConfig, env: RemoteEnvironment) -> CreatePool:
    """Creates the workers that the config asks for."""
    if config.unroll_engine == "processes":
        return functools.partial(ProcessPool, env.recipe, env.recipe_module)
    cpus = config.ray_cpus_per_worker
    connect = functools.partial(
        RayCluster, config.ray_address, num_cpus=cpus * config.num_unroll_workers
    )
    return functools.partial(RayPool, env.recipe, connect, cpus)
