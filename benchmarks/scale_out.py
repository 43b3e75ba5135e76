"""What unroll workers cost the trainer, for 1 to 1000 of them.

    python benchmarks/scale_out.py processes --workers 1 4 16 64
    python benchmarks/scale_out.py ray --workers 1 4 16
    python benchmarks/scale_out.py simulated --workers 16 64 250 1000
    python benchmarks/scale_out.py speed --rounds 5

* ``processes``: worker processes of one CartPole each; the trainer collects unrolls of
  128 steps of all workers and does not train. Counted is the trainer's own CPU time, by
  what it is spent on, the bytes per unroll and per version of the parameters, and its
  open files.
* ``ray``: the same with actors that answer with an unroll made before, so that there
  may be more of them than cores.
* ``simulated``: the trainer's scheduler alone, with workers that are done at once.
* ``speed``: steps/s of workers on Ray beside worker processes, in turns.

The times of the trainer are CPU seconds, so that what else runs matters little; those
of ``speed`` are wall times, of which the ratios within a round are compared.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from multiprocessing import reduction
from typing import Any

# isort: off
import measuring
# isort: on

import numpy as np
import torch

from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments.creation import create_environment
from alf_lite.processes.ray_cluster import RayCluster
from alf_lite.unrollers.actor_copy import create_remote_environment
from alf_lite.unrollers.async_unroller import AsyncUnroller
from alf_lite.unrollers.unroll_worker import (
    PoolOptions,
    UnrollReport,
    WorkerDescription,
)
from alf_lite.unrollers.worker_memory import UnrollSlots
from alf_lite.unrollers.worker_pool import Event, Finished, Ready

LENGTH = 128  # steps of an unroll


class Meter:
    """CPU seconds of this process that calls of some methods take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, method: str) -> None:
        inner = getattr(owner, method)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            try:
                return inner(*args, **kwargs)
            finally:
                spent = time.process_time() - begin
                self.seconds[method] = self.seconds.get(method, 0.0) + spent

        setattr(owner, method, timed)


def build(num_workers: int, bindings: list[str], num_environments: int = 1) -> Any:
    """PPO whose workers have been started and that has collected once."""
    config_files.reset()
    config_files.parse_config(
        str(measuring.HERE / "ppo_cartpole.gin"),
        [
            "create_environment.env_name = 'CartPole-v1'",
            f"create_environment.num_parallel_environments = {num_environments}",
            "TrainerConfig.async_unroll = True",
            f"TrainerConfig.num_unroll_workers = {num_workers}",
            f"TrainerConfig.unroll_length = {LENGTH}",
            "TrainerConfig.num_env_steps = 1_000_000_000",
            "TrainerConfig.worker_timeout_seconds = 3000.0",
            "PPOAlgorithm.off_policy_correction = 'vtrace'",
            *bindings,
        ],
    )
    config = TrainerConfig()
    env = create_remote_environment(config, create_environment, seed=0)
    algorithm = create_algorithm(config, env)
    env.release()
    algorithm.setup_training()
    return algorithm


def measure(algorithm: RLAlgorithm, num_workers: int, num_unrolls: int) -> None:
    """Prints a row of the table."""
    algorithm.reset_environment(0)
    unroller: Any = algorithm.training_run.collector.unroller
    pool = unroller._pool
    for _ in range(3):
        algorithm.unroll(LENGTH)
    meter = Meter()
    meter.watch(unroller, "collect")
    meter.watch(pool, "publish")
    num_iterations = max(3, num_unrolls // num_workers)
    begin = time.process_time()
    for _ in range(num_iterations):
        algorithm.unroll(LENGTH)
    total = time.process_time() - begin
    per_unroll = 1e6 / (num_iterations * num_workers)
    seconds = meter.seconds
    collect = seconds["collect"] - seconds["publish"]
    others = total - seconds["collect"]
    tensors = algorithm.acting_state().tensors.values()
    version_kb = sum(t.numel() * t.element_size() for t in tensors) / 1e3
    slots = pool._workers[0].slots
    slot = slots[0] if isinstance(slots, list) else slots
    count = 1 if isinstance(slots, list) else pool._options.slots_per_worker
    files = len(os.listdir("/proc/self/fd"))
    print(
        f"| {num_workers} | {collect * per_unroll:.0f} | {others * per_unroll:.0f} "
        f"| {seconds['publish'] / num_iterations * 1e6:.0f} "
        f"| {slot.num_bytes / count / 1e3:.1f} | {version_kb:.1f} | {files} |",
        flush=True,
    )


def header() -> None:
    print(
        "| workers | messages and scheduling, µs per unroll | metrics and joining, µs "
        "per unroll | a version of the parameters, µs | kB per unroll | kB per version "
        "| open files |\n|---|---|---|---|---|---|---|",
        flush=True,
    )


def measure_processes(options: argparse.Namespace) -> None:
    header()
    for num_workers in options.workers:
        algorithm = build(num_workers, [])
        try:
            measure(algorithm, num_workers, options.unrolls)
        finally:
            algorithm.finish_train()


# Actors that only answer


class CannedCluster(RayCluster):
    """Starts actors without torch that answer with one unroll again and again.

    Args:
        algorithm: acts once, for the unroll.
        options: of the pool.
    """

    description: bytes = b""
    unroll: np.ndarray

    def start_actor(self, cls: type, **options: Any) -> Any:
        description, unroll = self.description, self.unroll

        class Canned:
            """As a ``RayWorker``."""

            def __init__(self) -> None:
                self._number = 0

            def place(self) -> Any:
                return os.uname().nodename, os.getpid(), "node"

            def live(self) -> None:
                time.sleep(1e6)

            def build(self, dumped: bytes, places: list[str]) -> Any:
                return b"", description, 0, None

            def refresh(self, version: int, values: np.ndarray) -> None: ...

            def unroll(self, slot: int, version: int) -> Any:
                import struct

                report = struct.pack("=iqidd", slot, version, 0, 0.001, 0.01)
                self._number += 1
                return b"", report, self._number, unroll

            def stop(self) -> None: ...

            def close(self) -> None: ...

        return super().start_actor(Canned, **{**options, "num_cpus": 0.01})


def canned(num_workers: int) -> type[CannedCluster]:
    """Answers of a worker of the algorithm that is measured."""
    algorithm = build(1, [])
    algorithm.reset_environment(0)
    algorithm.unroll(LENGTH)
    pool: Any = algorithm.training_run.collector.unroller._pool
    specs = pool._workers[0].slots._specs
    algorithm.finish_train()
    from alf_lite.unrollers.worker_memory import RowSpecs

    rows = RowSpecs(*specs)
    slot = UnrollSlots(rows, 1, LENGTH, bootstrap=True)
    slot.create_here()
    description = WorkerDescription(rows, 1, None)
    return type(
        "Canned",
        (CannedCluster,),
        {
            "description": bytes(reduction.ForkingPickler.dumps(description)),
            "unroll": slot.bytes_of_all.copy(),
        },
    )


def measure_ray(options: argparse.Namespace) -> None:
    from alf_lite.unrollers import async_unroller

    async_unroller.RayCluster = canned(1)
    header()
    for num_workers in options.workers:
        algorithm = build(num_workers, ["TrainerConfig.unroll_engine = 'ray'"])
        try:
            measure(algorithm, num_workers, options.unrolls)
        finally:
            algorithm.finish_train()


# The scheduler alone


class InstantPool:
    """A ``WorkerPool`` whose workers are done as soon as they are asked.

    Args:
        options: see there.
        per_poll: unrolls that are reported at a time.
    """

    def __init__(self, options: PoolOptions, per_poll: int) -> None:
        self.options = options
        self.version = 0
        self.num_restarts = 0
        self._per_poll = per_poll
        self._events: list[Event] = []

    def publish(self, tensors: Any) -> int:
        self.version += 1
        return self.version

    def start(self, seed: int) -> None:
        self._events = [Ready(i) for i in range(self.options.num_workers)]

    def request(self, worker: int, slot: int) -> None:
        report = UnrollReport(slot, self.version, False, 0.0, 1.0)
        self._events.append(Finished(worker, report))

    def read(self, worker: int, report: UnrollReport) -> Any:
        return worker

    def poll(self, timeout: float) -> list[Event]:
        events = self._events[: self._per_poll]
        del self._events[: self._per_poll]
        return events

    def close(self) -> None: ...


def measure_simulated(options: argparse.Namespace) -> None:
    print("| workers | policy lag | unrolls per message | µs per unroll |")
    print("|---|---|---|---|")
    for num_workers in options.workers:
        for max_lag in (0, 1, 4, None):
            for per_poll in (1, 100):
                config = TrainerConfig(
                    async_unroll=True,
                    num_iterations=1,
                    num_unroll_workers=num_workers,
                    max_policy_lag=max_lag,
                    unroll_length=LENGTH,
                )
                env: Any = None
                unroller = AsyncUnroller(
                    config,
                    env,
                    dict,
                    on_policy=False,
                    create_pool=lambda o, _, n=per_poll: InstantPool(o, n),
                )
                unroller.unroll(LENGTH)
                number = max(2, options.unrolls // num_workers)
                begin = time.process_time()
                for _ in range(number):
                    assert len(unroller.unroll(LENGTH)) == num_workers
                seconds = time.process_time() - begin
                print(
                    f"| {num_workers} | {max_lag} | {per_poll} "
                    f"| {seconds / (number * num_workers) * 1e6:.1f} |",
                    flush=True,
                )


# Ray beside processes


def measure_speed(options: argparse.Namespace) -> None:
    """Both have their workers all the time; only one of them works at a time."""
    num_workers = options.workers[0]
    # With a lag of 0 nothing goes on between the turns; with 1, what is in flight then.
    lag = [f"TrainerConfig.max_policy_lag = {options.lag}"]
    engines = {}
    for engine in ("processes", "ray"):
        bindings = [f"TrainerConfig.unroll_engine = '{engine}'", *lag]
        engines[engine] = build(num_workers, bindings, options.environments)
        engines[engine].reset_environment(0)
        engines[engine].unroll(LENGTH)
    ratios = []
    print("| round | processes, steps/s | Ray, steps/s | ratio |\n|---|---|---|---|")
    for number in range(options.rounds):
        speeds = {}
        order = list(engines) if number % 2 else list(engines)[::-1]
        for engine in order:
            begin = time.perf_counter()
            for _ in range(options.iterations):
                engines[engine].unroll(LENGTH)
            steps = options.iterations * LENGTH * num_workers * options.environments
            speeds[engine] = steps / (time.perf_counter() - begin)
        ratios.append(speeds["ray"] / speeds["processes"])
        print(
            f"| {number} | {speeds['processes']:.0f} | {speeds['ray']:.0f} "
            f"| {ratios[-1]:.2f} |",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.2f}")
    for algorithm in engines.values():
        algorithm.finish_train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["processes", "ray", "simulated", "speed"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--unrolls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--environments", type=int, default=8)
    parser.add_argument("--lag", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    {
        "processes": measure_processes,
        "ray": measure_ray,
        "simulated": measure_simulated,
        "speed": measure_speed,
    }[options.what](options)


if __name__ == "__main__":
    main()
