"""Training on a GPU: as it is, by CUDA graphs, and compiled, beside LeanRL and rsl_rl.

    python benchmarks/gpu.py sac_half_cheetah ppo_half_cheetah \
        --leanrl=../LeanRL --peer_python=python

Every setting is a process of its own, in turns. It prints environment steps per second
after the first fifth of the run, in which code is compiled and graphs are captured,
and with ``--waits`` how often an iteration waits for the GPU. LeanRL's scripts print
steps per second of their own. rsl_rl needs environments of its own on the GPU: give the
command that trains there, and compare steps per second with those of a conf with torch
environments by eye.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

SETTINGS = {
    "cpu": ("TrainerConfig.device = 'cpu'",),
    "plain": ("TrainerConfig.device = 'cuda'",),
    "graphs": ("TrainerConfig.device = 'cuda'", "TrainerConfig.cuda_graphs = True"),
    "compiled": ("TrainerConfig.device = 'cuda'", "TrainerConfig.compile = True"),
    "compiled graphs": (
        "TrainerConfig.device = 'cuda'",
        "TrainerConfig.compile = True",
        "TrainerConfig.cuda_graphs = True",
    ),
}
LEANRL = {
    "ppo_half_cheetah": "ppo_continuous_action_torchcompile.py",
    "sac_half_cheetah": "sac_continuous_action_torchcompile.py",
    "td3_half_cheetah": "td3_continuous_action_torchcompile.py",
}


def train(conf: str, setting: str, num_env_steps: int) -> dict[str, float]:
    """Trains in this process."""
    import torch

    from alf_lite.trainers.hooks import Hook
    from alf_lite.trainers.trainer import train as train_conf

    class Clock(Hook):
        begin: tuple[float, int] | None = None

        def after_iter(self, trainer: Any) -> None:
            steps = trainer.run.env_steps
            if self.begin is None and steps >= num_env_steps // 5:
                self.begin = time.perf_counter(), steps
            self.end = time.perf_counter(), steps

    clock = Clock()
    with warnings.catch_warnings(record=True) as caught:
        if torch.cuda.is_available():
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        train_conf(
            conf,
            gin_params=[
                *SETTINGS[setting],
                f"TrainerConfig.num_env_steps = {num_env_steps}",
                "TrainerConfig.evaluate = False",
            ],
            hooks=[clock],
        )
    assert clock.begin is not None
    seconds = clock.end[0] - clock.begin[0]
    steps = clock.end[1] - clock.begin[1]
    waits = sum("synchroniz" in str(w.message) for w in caught)
    return {"steps_per_second": steps / seconds, "waits_per_step": waits / clock.end[1]}


def in_a_process(conf: str, setting: str, num_env_steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, conf, "--only", setting]
    command += ["--num_env_steps", str(num_env_steps)]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    if output.returncode:
        print(output.stderr[-2000:], file=sys.stderr)
        return {"steps_per_second": float("nan"), "waits_per_step": float("nan")}
    return json.loads(output.stdout.splitlines()[-1])


def leanrl(python: str, folder: str, conf: str, num_env_steps: int) -> float:
    """Steps per second as LeanRL's script prints them, the median of the run."""
    command = [python, f"{folder}/leanrl/{LEANRL[conf]}", "--compile", "--cudagraphs"]
    command += ["--env-id=HalfCheetah-v4", f"--total-timesteps={num_env_steps}"]
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    speeds = re.findall(r"speed: *([\d.]+)", output.stdout + output.stderr)
    return statistics.median(map(float, speeds)) if speeds else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("confs", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num_env_steps", type=int, default=50_000)
    parser.add_argument(
        "--only", help="train with one of the settings, in this process"
    )
    parser.add_argument("--leanrl", help="folder of a clone of LeanRL")
    parser.add_argument("--rsl_rl", help="command that trains with rsl_rl")
    parser.add_argument("--peer_python", default=sys.executable)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(train(args.confs[0], args.only, args.num_env_steps)))
        return
    for conf in args.confs:
        results: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            for setting in SETTINGS:
                result = in_a_process(conf, setting, args.num_env_steps)
                results.setdefault(setting, []).append(result["steps_per_second"])
                print(conf, setting, result, flush=True)
            if args.leanrl and conf in LEANRL:
                speed = leanrl(args.peer_python, args.leanrl, conf, args.num_env_steps)
                results.setdefault("LeanRL", []).append(speed)
        for name, speeds in results.items():
            print(f"| {conf} | {name} | {statistics.median(speeds):,.0f} |")
    if args.rsl_rl:
        subprocess.run(args.rsl_rl, shell=True, check=False)


if __name__ == "__main__":
    main()
