"""What it costs, and gains, that several processes train one run.

    python benchmarks/ranks.py [--ranks 1 2] [--mini_batch_sizes 64 256 512 1024]
        [--rounds 3] [--env_steps 40960]

PPO on HalfCheetah with the conf of the library, one thread per process. The variants
take turns, each a fresh program; a first part of every run, while memory is allocated,
is not counted. For every size of mini-batches and every number of ranks:

* wall and CPU seconds per 1000 environment steps, of all ranks together;
* of the wall time, the share of *averaging*: as many collectives of that size as there
  were updates, measured when all ranks are ready; and of *waiting*: what else a rank
  has spent in collectives, on the average;
* collectives per update.

Wall times need as many free cores as ranks: the share of the processor that the process
got is printed, too. CPU times are disturbed less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONF = "ppo_half_cheetah"
_MARK = "RANK-FIGURES "
_NUM_TRIALS = 200


def measure_rank(conf: str, parameters: list[str], env_steps: int) -> None:
    """Trains as one rank, and prints the figures of it."""
    import torch

    from alf_lite.config import TrainerConfig
    from alf_lite.config.files import parse_config
    from alf_lite.trainers.hooks import Hook
    from alf_lite.trainers.trainer import Trainer
    from alf_lite.utils.ranks import ranks

    class Meter(Hook):
        """Begins to count after a fifth of the run."""

        on_all_ranks = True

        def _now(self, training: Any) -> tuple[float, ...]:
            algorithm = training.algorithm
            return (
                time.perf_counter(),
                time.process_time(),
                ranks.seconds,
                ranks.collectives,
                algorithm.num_env_steps,
                algorithm.num_updates,
            )

        def after_iter(self, training: Any) -> None:
            if not hasattr(self, "begin"):
                if algorithm_is_warm(training):
                    self.begin = self._now(training)
                return
            self.end = self._now(training)

        def after_train(self, training: Any) -> None:
            parameters = sum(p.numel() for p in training.algorithm.parameters())
            self.seconds_per_average = seconds_of_average(parameters)

    def algorithm_is_warm(training: Any) -> bool:
        return training.algorithm.num_env_steps >= env_steps / 5

    def seconds_of_average(num_parameters: int) -> float:
        if ranks.size == 1:
            return 0.0
        flat = torch.zeros(num_parameters)
        ranks.total(0)
        begin = time.perf_counter()
        for _ in range(_NUM_TRIALS):
            ranks.sum_(flat)
        return (time.perf_counter() - begin) / _NUM_TRIALS

    meter = Meter()
    parse_config(
        conf,
        [
            f"TrainerConfig.num_env_steps = {env_steps}",
            "TrainerConfig.random_seed = 1",
            "TrainerConfig.evaluate = False",
            "TrainerConfig.num_checkpoints = 0",
            *parameters,
        ],
    )
    with tempfile.TemporaryDirectory() as directory:
        # All ranks see the same directory.
        root_dir = ranks_directory(directory)
        Trainer(TrainerConfig(), root_dir, hooks=[meter], display=False).train()
    names = ("wall", "cpu", "seconds", "collectives", "env_steps", "updates")
    spent = [e - b for b, e in zip(meter.begin, meter.end, strict=True)]
    figures = dict(zip(names, spent, strict=True))
    figures["average"] = figures["updates"] * meter.seconds_per_average
    print(_MARK + json.dumps(figures), flush=True)


def ranks_directory(directory: str) -> str:
    """The temporary directory of the first rank, on all of them."""
    from alf_lite.utils.ranks import ranks

    ranks.join()
    return ranks.broadcast_data(directory)


def measure(
    size: int, num_ranks: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """The figures of one run with mini-batches of that size and so many ranks."""
    own = [str(Path(__file__).resolve()), "--as_rank"]
    own += ["--conf", arguments.conf, "--env_steps", str(arguments.env_steps)]
    for parameter in (f"TrainerConfig.mini_batch_size = {size}", *arguments.gin_param):
        own += ["--gin_param", parameter]
    launcher = [sys.executable]
    if num_ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += [f"--nproc_per_node={num_ranks}"]
    done = subprocess.run(
        [*launcher, *own],
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    of_ranks = [
        json.loads(line.partition(_MARK)[2])
        for line in done.stdout.splitlines()
        if _MARK in line
    ]
    assert len(of_ranks) == num_ranks, done.stdout
    return summarized(of_ranks)


def summarized(of_ranks: list[dict[str, float]]) -> dict[str, float]:
    """Figures of all ranks together; times per 1000 environment steps."""
    wall = max(figures["wall"] for figures in of_ranks)
    cpu = sum(figures["cpu"] for figures in of_ranks)
    thousands = of_ranks[0]["env_steps"] / 1000
    average = statistics.mean(figures["average"] for figures in of_ranks)
    seconds = statistics.mean(figures["seconds"] for figures in of_ranks)
    return {
        "wall": wall / thousands,
        "cpu": cpu / thousands,
        "averaging %": 100 * average / wall,
        "waiting %": 100 * max(0.0, seconds - average) / wall,
        "per update": of_ranks[0]["collectives"] / of_ranks[0]["updates"],
        "processor %": 100 * cpu / (wall * len(of_ranks)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--mini_batch_sizes", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env_steps", type=int, default=40_960)
    parser.add_argument("--conf", default=CONF)
    parser.add_argument("--gin_param", action="append", default=[])
    parser.add_argument("--as_rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        measure_rank(arguments.conf, arguments.gin_param, arguments.env_steps)
        return
    found: dict[tuple[int, int], list[dict[str, float]]] = {
        (size, number): []
        for size in arguments.mini_batch_sizes
        for number in arguments.ranks
    }
    for _ in range(arguments.rounds):
        for variant, figures in found.items():
            figures.append(measure(*variant, arguments))
            print(*variant, figures[-1], flush=True)
    print(f"\n{arguments.conf}, seconds per 1000 steps, medians of {arguments.rounds}")
    report(found)


def report(found: dict[tuple[int, int], list[dict[str, float]]]) -> None:
    """Prints a table of the medians, beside those of the first number of ranks."""
    medians = {
        variant: {n: statistics.median(f[n] for f in figures) for n in figures[0]}
        for variant, figures in found.items()
    }
    names = [*next(iter(medians.values())), "wall ratio", "CPU ratio"]
    print("size  ranks  " + "  ".join(f"{name:>11}" for name in names))
    first: dict[int, dict[str, float]] = {}
    for (size, number), figures in medians.items():
        alone = first.setdefault(size, figures)
        row = [*figures.values(), alone["wall"] / figures["wall"]]
        row.append(figures["cpu"] / alone["cpu"])
        print(f"{size:4}  {number:5}  " + "  ".join(f"{x:11.3f}" for x in row))


if __name__ == "__main__":
    main()
