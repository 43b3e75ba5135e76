"""Compares unrolls in other processes with unrolls in this one, and with the peers.

    python benchmarks/async_training.py cores --mode=short \
        --sf_python=SAMPLE_FACTORY/bin/python    # two minutes, one table; or long
    python benchmarks/async_training.py sac collect cartpole sleeping computing \
        --peer_python=PEERS/bin/python --sf_python=SAMPLE_FACTORY/bin/python

Every measurement is a fresh program. The variants take turns, and a ratio compares the
wall times of one round: several processes work together here, and the time of one of
them says little. So nothing else should run; how many of the processor's cores others
use is looked at before every measurement, and the largest figure is printed. A second
table has the CPU time of all processes together, which others disturb less: it says
what a step costs, not how well the processes work at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
_LOOK_SECONDS = 1.0


CORES = ("ppo_slow", "sac_slow")
MODES = {"short": (1, 0.2), "long": (9, 1.0)}  # rounds, and the scale of the steps


class Work(NamedTuple):
    """What is compared."""

    purpose: str
    variants: tuple[str, ...]  # the first one is what the others are compared with
    num_env_steps: int
    delay: float = 0.0  # seconds per step of the environment


SF = ("sf_serial", "sf_sync", "sf_async")
WORKS = {
    "ppo_slow": Work(
        "PPO on 8 CartPoles that sleep 1 ms per step",
        ("sync", "async_1", "async_2", "async_4", "sf_async"),
        40_000,
        0.001,
    ),
    "sac_slow": Work(
        "SAC on 8 Pendulums that sleep 1 ms per step, an update of 256 after 8 steps",
        ("sync", "async_1", "async_2", "async_4"),
        20_000,
        0.001,
    ),
    "sac": Work(
        "SAC, whose environment takes as much time per step as an update",
        ("sync", "async_1"),
        3_000,
    ),
    "collect": Work(
        "collecting alone, from workers of one environment that sleeps 1 ms per step",
        ("async_1", "async_2", "async_4", "async_8"),
        8_192,  # of each worker
        0.001,
    ),
    "cartpole": Work(
        "PPO on 8 CartPoles",
        ("sync", "async_1", "async_2", "impala_2", *SF),
        80_000,
    ),
    "sleeping": Work(
        "PPO on 8 CartPoles that sleep 1 ms per step",
        ("sb3_subproc", "processes", "async_2", "async_4", "async_8", *SF[1:]),
        40_000,
        0.001,
    ),
    "computing": Work(
        "PPO on 8 CartPoles that compute for 1 ms per step",
        (
            *("sf_async", "sync", "processes", "async_1", "async_2", "async_4"),
            "sb3_subproc",
        ),
        20_000,
        0.001,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="+", choices=("cores", *WORKS))
    parser.add_argument("--mode", choices=MODES, default="short", help="of cores")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", help="instead of all that there are")
    parser.add_argument("--scale", type=float, default=1.0, help="of num_env_steps")
    parser.add_argument("--peer_python", help="has Stable-Baselines3")
    parser.add_argument("--sf_python", help="has Sample Factory")
    options = parser.parse_args()
    for name in options.works:
        _compare_cores(options) if name == "cores" else _compare(name, options)


def _compare_cores(options: argparse.Namespace) -> None:
    """Both works with slow environments in one table, and the scheduler alone."""
    options.rounds, options.scale = MODES[options.mode]
    print("| work | variant | steps/s | x sync, quartiles | turns | load |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in CORES:
        variants = [v for v in WORKS[name].variants if _python(v, options)]
        rates: dict[str, list[float]] = {variant: [] for variant in variants}
        loads = []
        for _ in range(options.rounds):
            for variant in variants:
                loads.append(os.getloadavg()[0])
                command = _command(name, variant, options)
                steps = WORKS[name].num_env_steps * options.scale
                command += [f"--num_env_steps={steps:.0f}"]
                record = _run([*command, f"--delay={WORKS[name].delay}"])
                rates[variant].append(record["steps_per_second"])
        for line in core_rows(name, rates, statistics.median(loads)):
            print(line, flush=True)
    print("\nThe scheduler with 1,000 simulated workers:\n")
    script = [sys.executable, str(HERE / "scale_out.py"), "simulated"]
    subprocess.run([*script, "--workers", "1000"], env=_environment(), check=True)


def core_rows(name: str, rates: dict[str, list[float]], load: float) -> list[str]:
    """Of the table; the first variant is what the others are compared with."""
    lines = []
    for variant, values in rates.items():
        ratios = [
            x / y for x, y in zip(values, next(iter(rates.values())), strict=True)
        ]
        spread = ratios * 3
        if len(ratios) > 1:
            spread = statistics.quantiles(ratios, n=4, method="inclusive")
        low, middle, high = spread
        lines.append(
            f"| {name} | {variant} | {statistics.median(values):,.0f} | {middle:.2f} "
            f"({low:.2f} to {high:.2f}) | {len(values)} | {load:.1f} |"
        )
    return lines


def _compare(name: str, options: argparse.Namespace) -> None:
    """Measures the variants of a work in turn, and prints the table."""
    work = WORKS[name]
    if name == "sac":
        update = _run(_command("update", "alf_lite", options))
        work = work._replace(delay=update["seconds"])
    variants = [
        variant
        for variant in options.variants or work.variants
        if _python(variant, options) is not None
    ]
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    cpu_rates: dict[str, list[float]] = {variant: [] for variant in variants}
    updates: dict[str, float] = {}
    busiest = 0.0
    for _ in range(options.rounds):
        for variant in variants:
            _, _, workers = variant.partition("_")
            steps = work.num_env_steps * options.scale
            steps *= int(workers) if name == "collect" else 1
            busiest = max(busiest, _busy_cores())
            command = _command(name, variant, options)
            command += [f"--num_env_steps={steps:.0f}", f"--delay={work.delay}"]
            record = _run(command)
            rates[variant].append(record["steps_per_second"])
            cpu_rates[variant].append(record["steps_per_cpu_second"])
            updates[variant] = record["updates_per_step"]
            print(f"{variant} {rates[variant][-1]:,.1f}", file=sys.stderr, flush=True)
    print(f"\n{name}: {work.purpose}; delay {1e3 * work.delay:.2f} ms.")
    print(f"{options.rounds} rounds; others used up to {busiest:.2f} cores.\n")
    print("By the wall clock:\n")
    print(_table(rates, updates))
    print("\nBy the CPU time of all processes:\n")
    print(_table(cpu_rates, updates), flush=True)


def _table(rates: dict[str, list[float]], updates: dict[str, float]) -> str:
    baseline = next(iter(rates))
    lines = [
        f"| variant | steps/s: min / median / max | x {baseline} | updates per step |",
        "|---|---|---|---|",
    ]
    for variant, values in rates.items():
        spread = (min(values), statistics.median(values), max(values))
        pairs = zip(values, rates[baseline], strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        spread_text = " / ".join(f"{value:,.0f}" for value in spread)
        lines.append(
            f"| {variant} | {spread_text} | {ratio:.2f} | {updates[variant]:.4f} |"
        )
    return "\n".join(lines)


def _python(variant: str, options: argparse.Namespace) -> str | None:
    """The interpreter that measures ``variant``; None if it is not there."""
    if variant.startswith("sb3"):
        return options.peer_python
    if variant.startswith("sf"):
        return options.sf_python
    return sys.executable


def _command(name: str, variant: str, options: argparse.Namespace) -> list[str]:
    python = _python(variant, options)
    assert python is not None, variant
    is_peer = variant.startswith(("sb3", "sf"))
    script = "async_peers.py" if is_peer else "async_alf_lite.py"
    return [python, str(HERE / script), f"--work={name}", f"--variant={variant}"]


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    return dict(os.environ, PYTHONPATH=path, CUDA_VISIBLE_DEVICES="")


def _busy_cores() -> float:
    """How many cores are in use while this process waits; 0 where unknown."""
    begin, begin_time = _busy_ticks(), time.perf_counter()
    time.sleep(_LOOK_SECONDS)
    seconds = time.perf_counter() - begin_time
    return (_busy_ticks() - begin) / os.sysconf("SC_CLK_TCK") / seconds


def _busy_ticks() -> int:
    try:
        line = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return 0
    user, nice, system, *_ = map(int, line.split()[1:])
    return user + nice + system


if __name__ == "__main__":
    main()
