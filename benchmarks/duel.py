"""Compares two libraries, or two versions of this one, on a machine that others use.

    python benchmarks/duel.py dqn_cartpole alf_lite bare
    python benchmarks/duel.py dqn_cartpole alf_lite alf_lite@../before

The two processes share one core and take turns: each trains for a moment, then waits
until the other has done the same work. What else the machine does, and how fast it is
just then, hits both alike, so that one duel tells the ratio of their CPU times to one
percent where ``run.py`` needs an idle machine; in another hour it was up to 15 % away.
What comes after ``@`` is another checkout; it trains by the confs of this one. Options
that are not known here, such as ``--num_env_steps``, are passed on to the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import run


def duel(
    benchmark: str, libraries: list[str], peers: run.Peers, sizes: list[str]
) -> list[dict[str, Any]]:
    """What each of the two libraries reports; ``turn_seconds`` are those of its turns.

    ``sizes`` are options of the benchmark.
    """
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
            *sizes,
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
            raise SystemExit(f"{name} failed: {shlex.join(map(str, child.args))}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("benchmark", choices=run.BENCHMARKS)
    parser.add_argument("names", nargs=2, metavar="LIBRARY")
    run.add_peer_arguments(parser)
    options, sizes = parser.parse_known_args()
    records = duel(options.benchmark, options.names, run.find_peers(options), sizes)
    turns = (record["turn_seconds"] for record in records)
    pairs = list(zip(*turns, strict=False))
    pairs = pairs[len(pairs) // 4 :]  # without warm-up
    if len(pairs) < 4:
        sys.exit(f"only {len(pairs)} turns: give more --num_env_steps")
    ratios = sorted(second / first for first, second in pairs)
    low, middle, high = statistics.quantiles(ratios, n=4)
    updates = " and ".join(f"{1000 * r['updates_per_step']:.1f}" for r in records)
    print(
        f"{' '.join([options.benchmark, *sizes])}: {options.names[0]} is {middle:.3f} "
        f"times as fast as {options.names[1]} (quartiles {low:.3f} and {high:.3f} of "
        f"{len(pairs)} turns; updates per 1,000 steps: {updates})"
    )


if __name__ == "__main__":
    main()
