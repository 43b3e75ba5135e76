"""What a GPU gives: tests, then training as it is, captured and compiled, beside peers.

    python benchmarks/gpu.py --leanrl=peers/LeanRL --peer_python=peers/bin/python \
        --rsl_python=rsl_rl/bin/python
    python benchmarks/gpu.py --device=cpu --quick      # a rehearsal without a GPU

It writes one page, ``gpu_report.md``: the device and versions, what the tests said, for
every work a table, and at the end what failed and why. Each part is a process of its
own with a time limit, and one that fails stops none of the others; the page is written
anew after each, so that breaking off loses nothing. ``--quick`` takes minutes: one
round of few steps, whose figures say little.

Speeds are environment steps per second of wall time between a fifth and four fifths of
the steps: before, code is compiled and graphs are captured; after, torch is asked to
say who waits for the GPU. Nothing else should run on the machine.

In a rehearsal ``graphs`` trains on ``alf_lite.testing.stand_in_device``, whose graphs
are repeated operation by operation, and everything else on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
_GRAPHS, _COMPILED = "TrainerConfig.cuda_graphs = True", "TrainerConfig.compile = True"
SETTINGS = {
    "cpu": (),
    "plain": (),
    "graphs": (_GRAPHS,),
    "compiled": (_COMPILED,),
    "compiled graphs": (_COMPILED, _GRAPHS),
}


class Work(NamedTuple):
    """What is trained."""

    purpose: str
    conf: str  # beside this file, or one that alf_lite ships
    bindings: tuple[str, ...]
    num_env_steps: tuple[int, int, int]  # with --quick; in a rehearsal with it
    peer: str = ""


_CHEETAH = ("create_environment.env_name = 'HalfCheetah-v5'",)
_IN_TORCH = (
    "ActorDistributionNetwork.fc_layer_params = (64, 64)",
    "ValueNetwork.fc_layer_params = (64, 64)",
)
WORKS = {
    "ppo_half_cheetah": Work(
        "PPO, one HalfCheetah, 320 updates of 64 steps after 2,048 steps",
        "ppo_half_cheetah.gin",
        _CHEETAH,
        (40_960, 10_240, 6_144),
        "leanrl",
    ),
    "sac_half_cheetah": Work(
        "SAC, one HalfCheetah, an update of 256 steps after each step",
        "sac_half_cheetah.gin",
        _CHEETAH,
        (8_000, 3_000, 650),
        "leanrl",
    ),
    "dqn_frames": Work(
        "DQN, four frames of 84x84, an update of 32 transitions after four steps",
        "dqn_frames.gin",
        (),
        (20_000, 8_000, 1_500),
        "sb3",
    ),
    "ppo_frames": Work(
        "PPO, 8 environments of such frames, 8 updates of 64 after 32 steps of each",
        "ppo_frames.gin",
        (),
        (40_960, 16_384, 1_280),
        "sb3",
    ),
    "torch_cart_pole": Work(
        "PPO, CartPoles in torch, 16 updates of a quarter of 16 steps of each",
        "torch_ppo_cart_pole",
        _IN_TORCH,
        (6_553_600, 655_360, 262_144),
    ),
    "torch_pendulum": Work(
        "PPO, Pendulums in torch, likewise",
        "torch_ppo_pendulum",
        _IN_TORCH,
        (6_553_600, 655_360, 262_144),
        "rsl_rl",
    ),
}
_STEPS_THERE = ("StorageOptions.device = 'cuda'",)
_STEPS_BEFORE = {"sac": 500, "dqn": 1_000}


class Result(NamedTuple):
    """Of one process."""

    record: dict[str, Any]
    error: str = ""  # why there is no record


# A process that trains


def train(
    work: Work, setting: str, device: str, num_env_steps: int, num_envs: int
) -> dict[str, Any]:
    """Trains in this process; ``num_envs`` are those of a work in torch."""
    import measuring
    import torch

    from alf_lite.testing.stand_in_device import StandInDevice
    from alf_lite.trainers.hooks import Hook
    from alf_lite.trainers.trainer import train as train_conf

    on_gpu = device == "cuda" and setting != "cpu"

    class Clock(Hook):
        """Marks a fifth and four fifths, and counts who waits after that."""

        begin = end = (0.0, 0)
        num_watched = 0

        def after_iter(self, trainer: Any) -> None:
            steps = trainer.run.env_steps
            if on_gpu and not self.num_watched:
                torch.cuda.synchronize()
            now = time.perf_counter(), steps
            has_trained = trainer.algorithm.num_updates > 0
            if not self.begin[1] and has_trained and steps >= num_env_steps // 5:
                self.begin = now
            elif self.begin[1] and (steps < num_env_steps * 4 // 5 or not self.end[1]):
                self.end = now
            else:
                self.num_watched += self.begin[1] > 0
                if on_gpu and self.num_watched == 1:
                    torch.cuda.set_sync_debug_mode("warn")

    clock, own = Clock(), HERE / work.conf
    with contextlib.ExitStack() as stack:
        name = device if setting != "cpu" else "cpu"
        if device == "cpu" and "graphs" in setting:
            name = stack.enter_context(StandInDevice()).name
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        measuring.register_counted_environments()
        train_conf(
            str(own) if own.exists() else work.conf,
            gin_params=[
                *work.bindings,
                *SETTINGS[setting],
                f"TrainerConfig.device = '{name}'",
                f"TrainerConfig.num_env_steps = {num_env_steps}",
                "TrainerConfig.summary_interval = 1_000_000",
                "TrainerConfig.evaluate = False",
                *_sizes(work, num_envs),
                *(_STEPS_THERE if on_gpu and "dqn" in work.conf else ()),
            ],
            hooks=[clock],
        )
    if clock.end[1] <= clock.begin[1]:
        raise SystemExit(f"too few iterations in {num_env_steps} steps")
    waits = sum("synchroniz" in str(w.message) for w in caught)
    return {
        "steps_per_second": (clock.end[1] - clock.begin[1])
        / (clock.end[0] - clock.begin[0]),
        "waits": waits / max(clock.num_watched - 1, 1) if on_gpu else None,
    }


def _sizes(work: Work, num_envs: int) -> list[str]:
    if work.bindings == _IN_TORCH:
        return [
            f"create_environment.num_parallel_environments = {num_envs}",
            f"TrainerConfig.mini_batch_size = {4 * num_envs}",
        ]
    number = _STEPS_BEFORE.get(work.conf.partition("_")[0])
    return [f"TrainerConfig.initial_collect_steps = {number}"] if number else []


# The process that starts the others


def run(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    """Runs a part; its return code is 124 if that took too long."""
    before = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join([str(HERE), str(HERE.parent), *before])
    with subprocess.Popen(
        command,
        cwd=HERE.parent,
        env=dict(os.environ, PYTHONPATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # and what it has started
            out, err = process.communicate()
            code, err = 124, f"{err}\nstopped after {limit:.0f} s"
    return subprocess.CompletedProcess(command, code, out, err)


def measure(command: Sequence[str], limit: float) -> Result:
    """Runs a part that prints a record in its last line."""
    done = run(command, limit)
    if done.returncode == 0:
        with contextlib.suppress(IndexError, json.JSONDecodeError):
            record = json.loads(done.stdout.splitlines()[-1])
            if isinstance(record, dict):
                return Result(record)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return Result({}, "\n".join(lines[-6:]) or f"exit code {done.returncode}")


def run_tests(options: argparse.Namespace) -> tuple[str, str]:
    """What pytest says in its last line, and what failed."""
    tests = ["-m", "gpu", "tests"]
    if options.device == "cpu":
        tests = [
            *("-o", "addopts=--import-mode=importlib", "tests/gpu"),
            "tests/algorithms/learning/test_captured_updates.py",
        ]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider"]
    done = run([*command, *tests], options.limit)
    lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1):
        failed += done.stderr.strip().splitlines()[-6:]
    return lines[-1].strip("= "), "\n".join(failed)


def commands(options: argparse.Namespace, name: str) -> dict[str, list[str]]:
    """What measures a work: of each setting, and of the peer if it is there."""
    work = WORKS[name]
    is_rehearsal = options.device == "cpu"
    sizes = work.num_env_steps[options.quick + (options.quick and is_rehearsal)]
    steps = [f"--num_env_steps={options.num_env_steps or sizes}"]
    device = [f"--device={options.device}"]
    this = [sys.executable, str(HERE / "gpu.py"), f"--works={name}", *steps]
    if work.bindings == _IN_TORCH:
        device.append(f"--num_envs={options.num_envs}")
    rehearsed = ["plain", "compiled"]
    if work.bindings != _IN_TORCH:  # these need generators on the device
        rehearsed.append("graphs")
    found = {
        setting: [*this, *device, f"--only={setting}"]
        for setting in options.settings
        if not is_rehearsal or setting in rehearsed
    }
    python = {
        "leanrl": options.peer_python,
        "rsl_rl": options.rsl_python,
        "sb3": options.peer_python,
    }
    is_there = python.get(work.peer) and (work.peer != "leanrl" or options.leanrl)
    if is_there:
        script = [str(HERE / "gpu_peers.py"), work.peer, f"--work={name}"]
        if work.peer == "sb3":
            script = [str(HERE / f"{name}.py"), "--library=sb3"]
            device = device[:1]
        folder = [f"--leanrl={options.leanrl}"] if work.peer == "leanrl" else []
        found[work.peer] = [python[work.peer], *script, *folder, *steps, *device]
    return found


class Page:
    """The report, written anew after each part."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self._path, self._options = path, options
        self._tests = ("not run", "")
        self._results: dict[str, dict[str, list[Result]]] = {}
        self._heading = [f"# alf_lite on {_device(options.device)}", "", _versions()]

    def add_tests(self, last_line: str, failed: str) -> None:
        self._tests = last_line, failed
        self._write()

    def add(self, work: str, variant: str, result: Result) -> None:
        self._results.setdefault(work, {}).setdefault(variant, []).append(result)
        self._write()

    def text(self) -> str:
        lines, failures = [*self._heading, "", f"Tests: {self._tests[0]}.", ""], []
        if self._options.device == "cpu":
            lines += ["A rehearsal: none of it ran on a GPU.", ""]
        if self._tests[1]:
            failures += ["tests:", "", "```", self._tests[1], "```", ""]
        for name, results in self._results.items():
            lines += [f"## {name}: {WORKS[name].purpose}", "", *_table(results), ""]
            for variant, each in results.items():
                for error in dict.fromkeys(r.error for r in each if r.error):
                    failures += [f"{name}, {variant}:", "", "```", error, "```", ""]
        return "\n".join(
            [*lines, "## What failed", "", *(failures or ["Nothing.", ""])]
        )

    def _write(self) -> None:
        self._path.write_text(self.text(), encoding="utf-8")


def _table(results: dict[str, list[Result]]) -> list[str]:
    lines = ["| | steps/s, quartiles | x plain | waits per iteration | runs |"]
    lines += ["|---|---|---|---|---|"]
    plain = _speeds(results.get("plain", []))
    for variant, each in results.items():
        speeds = _speeds(each)
        count = f"{len(speeds)} of {len(each)}"
        if not speeds:
            lines.append(f"| {variant} | failed | | | {count} |")
            continue
        low, middle, high = speeds[0], statistics.median(speeds), speeds[-1]
        if len(speeds) > 1:
            low, _, high = statistics.quantiles(speeds, n=4, method="inclusive")
        ratio = f"{middle / statistics.median(plain):.2f}" if plain else ""
        known = [r.record["waits"] for r in each if r.record.get("waits") is not None]
        waits = f"{statistics.median(known):.1f}" if known else ""
        lines.append(
            f"| {variant} | {middle:,.0f} ({low:,.0f} to {high:,.0f}) | {ratio} "
            f"| {waits} | {count} |"
        )
    return lines


def _speeds(results: Sequence[Result]) -> list[float]:
    return sorted(r.record["steps_per_second"] for r in results if r.record)


def _device(device: str) -> str:
    import torch

    if device == "cpu":
        return "no GPU"
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _versions() -> str:
    import measuring

    found = {
        "python": platform.python_version(),
        **measuring.versions(*measuring.PACKAGES),
    }
    return ", ".join(f"{name} {version}" for name, version in found.items()) + "."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS)
    )
    parser.add_argument("--rounds", type=int, help="5; with --quick 1")
    parser.add_argument("--num_env_steps", type=int, help="instead of each work's own")
    parser.add_argument("--num_envs", type=int, default=4096, help="of works in torch")
    parser.add_argument("--limit", type=float, default=900, help="seconds of a part")
    parser.add_argument("--no_tests", action="store_true")
    parser.add_argument("--leanrl", help="folder of a clone of LeanRL")
    parser.add_argument("--peer_python", help="has what LeanRL needs, and SB3")
    parser.add_argument("--rsl_python", help="has rsl-rl-lib")
    parser.add_argument("--report", type=Path, default=Path("gpu_report.md"))
    parser.add_argument("--only", choices=SETTINGS, help="train in this process")
    options = parser.parse_args()
    if options.only:
        work = WORKS[options.works[0]]
        sizes = options.num_env_steps or work.num_env_steps[1], options.num_envs
        print(json.dumps(train(work, options.only, options.device, *sizes)))
        return
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            parser.error("torch sees no GPU here; --device=cpu rehearses without one")
    page = Page(options.report, options)
    if not options.no_tests:
        page.add_tests(*run_tests(options))
    for number in range(options.rounds or (1 if options.quick else 5)):
        for name in options.works:
            for variant, command in commands(options, name).items():
                result = measure(command, options.limit)
                page.add(name, variant, result)
                outcome = result.record or f"failed: {result.error.splitlines()[-1]}"
                print(f"round {number + 1}, {name}, {variant}: {outcome}", flush=True)
    print(page.text())


if __name__ == "__main__":
    main()
