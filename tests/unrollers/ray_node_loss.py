"""A program: trains on a cluster of simulated machines, of which one is lost.

In a process of its own, as Ray is one per process. Prints what was seen as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.update({"RAY_AUTH_MODE": "token", "RAY_worker_niceness": "0"})

import torch
from ray.cluster_utils import Cluster

from tests.trainers.async_toys import async_algorithm, env_fn

T, NUM_ENVS = 2, 2
STORE_BYTES = 100_000_000


def main() -> None:
    node = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **node})
    lost = cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
    algorithm = async_algorithm(
        env_fn(num_parallel_environments=NUM_ENVS),
        unroll_engine="ray",
        ray_address=cluster.address,
        num_unroll_workers=3,
        unroll_length=T,
        max_worker_restarts=1,  # both workers of the machine count as one
        worker_timeout_seconds=200.0,
    )
    pool = algorithm.training_run.collector.unroller._pool
    try:
        iterate = Iterations(algorithm)
        iterate.run(10)
        hosts = [worker.place.node for worker in pool._workers]
        cluster.remove_node(lost, allow_graceful=False)
        # What the head's worker does is enough to go on.
        iterate.until(lambda: pool.num_restarts == 2)
        iterate.run(10)
        num_ready = sum(worker.is_ready for worker in pool._workers)
        cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        iterate.until(lambda: all(worker.is_ready for worker in pool._workers))
        iterate.run(10)
        result = {
            "num_machines": len(set(hosts)),
            "num_ready_without": num_ready,
            "num_restarts": pool.num_restarts,
            "iterations": iterate.number,
            "env_steps": algorithm.num_env_steps,
            "stored": algorithm.replay_buffer.total_size,
            "faults": order_faults(algorithm),
        }
    finally:
        algorithm.finish_train()
        cluster.shutdown()
    sys.stdout.write(json.dumps(result) + "\n")


class Iterations:
    """Runs and counts them."""

    def __init__(self, algorithm) -> None:
        self._algorithm = algorithm
        self.number = 0

    def run(self, number: int) -> None:
        for _ in range(number):
            self._algorithm.train_iter()
            self.number += 1

    def until(self, condition) -> None:
        deadline = time.monotonic() + 200
        while not condition():
            assert time.monotonic() < deadline
            self.run(1)


def order_faults(algorithm) -> list[tuple[int, list[float]]]:
    """Where a step neither follows the one before nor begins an episode."""
    replay = algorithm.replay_buffer
    faults = []
    for b in range(replay.num_environments):
        window = replay.get_windows(
            torch.tensor([b]), replay.begin_positions[b : b + 1], int(replay.sizes[b])
        )
        observation = window.time_step.observation[0, :, 0]
        wrong = ~((observation.diff() == 1) | (observation[1:] == 0))
        faults += [
            (b, observation[max(0, i - 3) : i + 5].tolist())
            for i in wrong.nonzero().flatten().tolist()
        ]
    return faults


if __name__ == "__main__":
    main()
