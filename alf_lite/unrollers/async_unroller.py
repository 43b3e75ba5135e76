"""Collects experience in worker processes while this one trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from alf_lite.config import TrainerConfig
from alf_lite.environments.described_environment import DescribedEnvironment
from alf_lite.unrollers.permits import Permit, Permits
from alf_lite.unrollers.unroll import Unroll
from alf_lite.unrollers.worker_messages import UnrollReport
from alf_lite.unrollers.worker_pool import Finished, Lost, PoolOptions, WorkerPool
from alf_lite.utils import summary
from alf_lite.utils.random_state import new_seed

# () → everything that acting depends on, by name, as it is now.
Capture = Callable[[], dict[str, Tensor]]


class _Queued(NamedTuple):
    """A finished unroll that waits for training."""

    permit: Permit
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
        env: DescribedEnvironment,
        capture: Capture,
        *,
        on_policy: bool,
    ) -> None:
        length = config.unroll_length
        # What is taken step by step is unrolled step by step.
        self._worker_length = max(int(length), 1) if length == int(length) else 1
        self._num_workers = config.num_unroll_workers
        self._update_period = config.unroll_parameter_update_period
        self._capture = capture
        # One is being filled or trained on while others wait.
        slots_per_worker = config.unroll_queue_size + 2
        max_lag = config.max_policy_lag
        if max_lag is None and on_policy:
            max_lag = 1
        self._permits = Permits(
            self._num_workers, slots_per_worker, max_lag, self._num_workers
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
        self._pool = WorkerPool(
            env.recipe, options, capture(), preload=[env.recipe_module]
        )
        self.is_started = False
        self._num_calls = 0
        self._queue: list[_Queued] = []  # in the order in which they were finished
        self._in_use: list[Permit] = []  # of the unrolls that were returned last

    def reset(self, seed: int | None = None) -> None:
        """Starts the workers, if they do not run yet.

        What runs is not reset: it is ahead of the trainer, and which step it is at
        depends on the machine, so that no seed could make it do the same again.

        Args:
            seed: of everything random in the workers; None chooses one.
        """
        if self.is_started:
            return
        self.is_started = True
        self._pool.publish(self._capture())
        self._pool.start(new_seed() if seed is None else seed)

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
            at_least: wait for so many.
            at_most: take no more; the others stay in the queue.

        Raises:
            EnvError: if an environment failed.
            WorkerError: if a worker died, hung or raised, and is not replaced.
            ConfigError: if a worker cannot be built.
        """
        begin = time.perf_counter()
        self.reset()
        for permit in self._in_use:
            self._permits.release(permit)
        if self._num_calls and self._num_calls % self._update_period == 0:
            self._pool.publish(self._capture())
        self._num_calls += 1
        self._grant(has_taken=False)
        taken = self._gather(at_least, at_most)
        self._in_use = [queued.permit for queued in taken]
        self._grant(has_taken=True)
        if summary.should_record():
            self._summarize(taken, time.perf_counter() - begin)
        return [
            self._pool.read(queued.permit.worker, queued.report) for queued in taken
        ]

    def close(self) -> None:
        """Ends the workers; may be called more than once."""
        self._pool.close()

    # Gathering

    def _gather(self, at_least: int, at_most: int) -> list[_Queued]:
        self._listen(0.0)
        taken = self._take(at_most, [])
        while len(taken) < at_least:
            self._listen(1.0)
            taken = self._take(at_most, taken)
        return taken

    def _take(self, at_most: int, taken: list[_Queued]) -> list[_Queued]:
        """Moves finished unrolls from the queue to ``taken``, the oldest first.

        Room is kept for those that may not wait for the next version.
        """
        version = self._pool.version
        num_to_come = len(
            self._permits.overdue(version) - {queued.permit for queued in self._queue}
        )
        self._queue.sort(key=lambda q: not self._permits.is_overdue(q.permit, version))
        kept = []
        for queued in self._queue:
            is_overdue = self._permits.is_overdue(queued.permit, version)
            room = at_most - len(taken) - (0 if is_overdue else num_to_come)
            if room > 0:
                taken.append(queued)
                self._permits.take(queued.permit)
            else:
                kept.append(queued)
        self._queue = kept
        return taken

    def _listen(self, timeout: float) -> None:
        """Waits for news of the workers and acts on them."""
        for event in self._pool.poll(timeout):
            if isinstance(event, Finished):
                permit = self._permits.begun_with(event.worker, event.report.slot)
                self._queue.append(_Queued(permit, event.report))
            elif isinstance(event, Lost):
                finished = {queued.permit for queued in self._queue}
                self._permits.lose_worker(event.worker, finished)
            else:
                self._permits.add_worker(event.worker)
                self._grant(has_taken=False)

    def _grant(self, *, has_taken: bool) -> None:
        for permit in self._permits.grant(self._pool.version, has_taken=has_taken):
            self._pool.request(permit.worker, permit.slot)

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
