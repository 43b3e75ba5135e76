"""Compares two libraries, or two versions of this one, on a machine that others use.

    python benchmarks/duel.py dqn_cartpole alf_lite bare
    python benchmarks/duel.py dqn_cartpole alf_lite alf_lite@../before

The two processes share one core and take turns: each trains for a moment, then waits
until the other has done the same work. What else the machine does, and how fast it is
just then, hits both alike, so that the ratio of their CPU times is known to one percent
where ``run.py`` needs an idle machine. What comes after ``@`` is another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import run


def duel(
    benchmark: str, libraries: list[str], peers: run.Peers, num_env_steps: int
) -> list[list[float]]:
    """The CPU seconds of every turn of each of the two libraries."""
    (read_a, write_b), (read_b, write_a) = os.pipe(), os.pipe()
    core = str(max(os.sched_getaffinity(0)))
    children = []
    for name, read, write in (
        (libraries[0], read_a, write_a),
        (libraries[1], read_b, write_b),
    ):
        library, _, checkout = name.partition("@")
        command = [
            *("taskset", "-c", core),
            *peers.command(benchmark, library),
            f"--num_env_steps={num_env_steps}",
        ]
        child = subprocess.Popen(
            command,
            env=dict(
                os.environ,
                PYTHONPATH=str(
                    Path(checkout).resolve() if checkout else run.HERE.parent
                ),
                CUDA_VISIBLE_DEVICES="",
                TURNS=f"{read},{write}",
            ),
            pass_fds=(read, write),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        children.append(child)
    os.write(write_b, b"x")  # the first turn is a's
    for descriptor in (read_a, write_a, read_b, write_b):
        os.close(descriptor)
    outputs = [child.communicate()[0] for child in children]
    for child, name in zip(children, libraries, strict=True):
        if child.returncode != 0:
            raise SystemExit(f"{name} failed: run its script to see why")
    records: list[dict[str, Any]] = [json.loads(o.splitlines()[-1]) for o in outputs]
    return [record["turn_seconds"] for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=run.BENCHMARKS)
    parser.add_argument("names", nargs=2, metavar="LIBRARY")
    parser.add_argument("--num_env_steps", type=int, default=12_000)
    run.add_peer_arguments(parser)
    options = parser.parse_args()
    turns = duel(
        options.benchmark, options.names, run.find_peers(options), options.num_env_steps
    )
    pairs = list(zip(*turns, strict=False))
    pairs = pairs[len(pairs) // 4 :]  # without warm-up
    if len(pairs) < 4:
        sys.exit(f"only {len(pairs)} turns: give more --num_env_steps")
    ratios = sorted(second / first for first, second in pairs)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{options.benchmark}: {options.names[0]} is {middle:.3f} times as fast as "
        f"{options.names[1]} (quartiles {low:.3f} and {high:.3f} of {len(pairs)} turns)"
    )


if __name__ == "__main__":
    main()
