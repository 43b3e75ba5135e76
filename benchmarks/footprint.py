"""Time of the import, and peak memory of a training run beside Stable-Baselines3's.

    python benchmarks/footprint.py --peer_python=PEERS/bin/python

Without ``--peer_python`` only the imports are timed. Every measurement is a fresh
process, and the variants take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

import run

IMPORTS = {
    "torch, gymnasium": "import torch, gymnasium",
    "alf_lite": "import torch, gymnasium, alf_lite",
    "all that training PPO needs": (
        "import alf_lite.algorithms.ppo_algorithm, alf_lite.trainers.trainer"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run.add_peer_arguments(parser)
    options = parser.parse_args()
    _compare_imports(options.rounds)
    if options.peer_python is not None:
        records = run.compare(
            "ppo_cartpole",
            ["alf_lite", "sb3"],
            options.rounds,
            run.find_peers(options),
            {},
        )
        ratio = run.median_ratio(records["alf_lite"], records["sb3"], "peak_memory_mib")
        print(f"\nPeak memory of PPO on CartPole: {ratio:.2f} x that of sb3\n")
        print(run.table(records, "sb3"))


def _compare_imports(rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(rounds):
        for name, statement in IMPORTS.items():
            seconds[name].append(_time_of(statement))
    baseline = seconds["torch, gymnasium"]
    print("| import | seconds: min / median / max | ratio |\n|---|---|---|")
    for name, values in seconds.items():
        pairs = zip(values, baseline, strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"| {name} | {low:.2f} / {middle:.2f} / {high:.2f} | {ratio:.2f} |")


def _time_of(statement: str) -> float:
    environment = dict(os.environ, PYTHONPATH=str(run.HERE.parent), OMP_NUM_THREADS="1")
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], env=environment, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
