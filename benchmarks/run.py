"""Compares the speed of libraries on the same work, in turn, in one run.

    python benchmarks/run.py ppo_cartpole --peer_python=PEERS/bin/python

Every measurement is a fresh process with one thread. The libraries take turns (A B C, A
B C, ...), so that what else the machine does hits all of them, and each ratio is taken
inside of one round. Options that are not known here, such as ``--num_env_steps``, are
passed on to the benchmark. The ratios are those of steps per second of the process's
own CPU time: all libraries here use one process and one thread, and that figure does
not depend on who else holds the core. benchmarks/README.md says how to install the
peers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BENCHMARKS = (
    "ppo_cartpole",
    "ppo_half_cheetah",
    "ppo_frames",
    "a2c_cartpole",
    "sac_half_cheetah",
    "td3_half_cheetah",
    "dqn_cartpole",
    "dqn_frames",
)
SCRIPTS = {
    ("cleanrl", "ppo_cartpole"): "cleanrl/ppo.py",
    ("cleanrl", "ppo_half_cheetah"): "cleanrl/ppo_continuous_action.py",
    ("cleanrl", "sac_half_cheetah"): "cleanrl/sac_continuous_action.py",
    ("cleanrl", "td3_half_cheetah"): "cleanrl/td3_continuous_action.py",
    ("cleanrl", "dqn_cartpole"): "cleanrl/dqn.py",
    ("cleanrl", "dqn_frames"): "cleanrl/dqn_atari.py",
    ("leanrl", "ppo_cartpole"): "leanrl/ppo_continuous_action_torchcompile.py",
    ("leanrl", "ppo_half_cheetah"): "leanrl/ppo_continuous_action_torchcompile.py",
}


@dataclass
class Peers:
    """Where the peers are on this machine."""

    python: str | None  # interpreter of the environment they are installed in
    checkouts: dict[str, str | None]  # "cleanrl" and "leanrl": their repositories

    def command(self, benchmark: str, library: str) -> list[str]:
        """The command line that measures ``library``, without sizes."""
        project = library.split("_")[0]
        ours = project in ("alf", "bare")
        if not ours and self.python is None:
            raise SystemExit(f"--library {library} needs --peer_python=PATH")
        command = [
            sys.executable if ours else str(self.python),
            str(HERE / f"{benchmark}.py"),
            f"--library={library}",
        ]
        if project in self.checkouts:
            folder = self.checkouts[project]
            script = SCRIPTS.get((project, benchmark))
            if folder is None or script is None:
                raise SystemExit(f"{library} on {benchmark} needs --{project}=CHECKOUT")
            command.append(f"--script={Path(folder) / script}")
        return command


def compare(
    benchmark: str,
    libraries: list[str],
    rounds: int,
    peers: Peers,
    sizes: list[str],
) -> dict[str, list[dict[str, Any]]]:
    """One record per round for every library; ``sizes`` are options of the script."""
    commands = {library: peers.command(benchmark, library) for library in libraries}
    records: dict[str, list[dict[str, Any]]] = {library: [] for library in libraries}
    for i in range(rounds):
        for library, command in commands.items():
            record = _measure([*command, *sizes])
            records[library].append(record)
            rate = record["steps_per_cpu_second"]
            print(f"round {i + 1}: {library} {_rate(rate)} steps/s", file=sys.stderr)
    return records


def _measure(command: list[str]) -> dict[str, Any]:
    environment = dict(os.environ, PYTHONPATH=str(HERE.parent), CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def median_ratio(
    records: list[dict[str, Any]], baseline: list[dict[str, Any]], key: str
) -> float:
    """The median of the ratios of each round."""
    pairs = zip(records, baseline, strict=True)
    return statistics.median(ours[key] / theirs[key] for ours, theirs in pairs)


def table(records: dict[str, list[dict[str, Any]]], baseline: str) -> str:
    """The comparison in markdown."""
    lines = [
        "| library | steps/s | updates/s | steps per CPU second: min / median / max "
        f"| x {baseline} | peak memory, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for library, rows in records.items():
        rates = [row["steps_per_cpu_second"] for row in rows]
        spread = (min(rates), statistics.median(rates), max(rates))
        steps = statistics.median(row["steps_per_second"] for row in rows)
        updates = statistics.median(row["updates_per_second"] for row in rows)
        memory = max(row["peak_memory_mib"] for row in rows)
        ratio = median_ratio(rows, records[baseline], "steps_per_cpu_second")
        lines.append(
            f"| {library} | {_rate(steps)} | {_rate(updates)} "
            f"| {' / '.join(map(_rate, spread))} | {ratio:.2f} | {memory:.0f} |"
        )
    return "\n".join(lines)


def _rate(per_second: float) -> str:
    """With three digits, or all before the point."""
    return f"{per_second:,.{0 if per_second >= 100 else 1}f}"


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that ``find_peers`` reads."""
    parser.add_argument(
        "--peer_python",
        "--sb3_python",
        help="interpreter of the environment that the peers are installed in",
    )
    parser.add_argument("--cleanrl", help="a checkout of vwxyzjn/cleanrl")
    parser.add_argument("--leanrl", help="a checkout of meta-pytorch/LeanRL")


def find_peers(options: argparse.Namespace) -> Peers:
    """Where the command line says that the peers are."""
    checkouts = {"cleanrl": options.cleanrl, "leanrl": options.leanrl}
    return Peers(options.peer_python, checkouts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--libraries", nargs="+", default=["alf_lite", "sb3"])
    parser.add_argument("--rounds", type=int, default=5)
    add_peer_arguments(parser)
    parser.add_argument("--baseline", help="ratios to this library; default: the last")
    options, sizes = parser.parse_known_args()
    baseline = options.baseline or options.libraries[-1]
    if baseline not in options.libraries:
        parser.error(f"--baseline={baseline} is not among --libraries")
    records = compare(
        options.benchmark, options.libraries, options.rounds, find_peers(options), sizes
    )
    print(f"\n{options.benchmark}, {options.rounds} rounds\n")
    print(table(records, baseline))
    versions = {
        name: version
        for rows in records.values()
        for name, version in rows[0]["versions"].items()
    }
    print("\n" + ", ".join(f"{name} {version}" for name, version in versions.items()))


if __name__ == "__main__":
    main()
