"""One run of ``scores.py``, in a process of its own: trains, and prints one JSON line.

    python benchmarks/score_run.py core dqn_cart_pole alf_lite --seed=100

Ten times the training pauses for an evaluation, which is the same for all libraries and
whose time is not counted. Needs alf_lite for its own methods only.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

# isort: off
import measuring  # first: it sets the number of threads
# isort: on

import score_environments as environments
import score_tasks

NUM_EVALUATIONS = 10
FORMAT = 1  # of a line; another one is not read


class Curve:
    """The evaluations of a run, and its CPU and wall seconds without them."""

    def __init__(self, job: score_tasks.Job) -> None:
        self._job = job
        self._pauses = [0.0, 0.0]
        self._begin = self._now()
        self._next = 1
        self.points: list[tuple[int, float, float]] = []  # steps, CPU seconds, mean
        self.returns: list[float] = []  # of the latest episodes
        self.seconds = [0.0, 0.0]  # CPU and wall

    @staticmethod
    def _now() -> list[float]:
        return [time.process_time(), time.perf_counter()]

    def is_due(self, steps: int) -> bool:
        """Whether the run has come to its next tenth."""
        return steps * NUM_EVALUATIONS >= self._next * self._job.num_steps

    def at(self, steps: int, policy: environments.Policy) -> None:
        """Evaluates, if that is due."""
        if not self.is_due(steps):
            return
        self._next = steps * NUM_EVALUATIONS // self._job.num_steps + 1
        begin = self._now()
        self.seconds = [
            now - first - pause
            for now, first, pause in zip(begin, self._begin, self._pauses, strict=True)
        ]
        self.returns = environments.evaluate(policy, self._job.env_id)
        mean = sum(self.returns) / len(self.returns)
        self.points.append((steps, round(self.seconds[0], 2), round(mean, 3)))
        for i, now in enumerate(self._now()):
            self._pauses[i] += now - begin[i]


def train_alf_lite(job: score_tasks.Job, seed: int, data: str, curve: Curve) -> str:
    """Trains as the command line does; returns the hash of the operative settings."""
    import alf_lite_training

    from alf_lite.config import files
    from alf_lite.trainers.hooks import Hook

    class Evaluations(Hook):
        def after_iter(self, training: Any) -> None:
            steps = training.run.iterations if job.data else training.run.env_steps
            if curve.is_due(steps):
                policy = training.algorithm.policy()  # without a memory of before
                curve.at(steps, lambda observations, _: policy.predict(observations))

    conf, bindings = score_tasks.conf_of(job)
    bindings += [
        f"TrainerConfig.random_seed = {seed}",
        "TrainerConfig.evaluate = False",
    ]
    if job.data:
        bindings.append(f'DATA = "{data}"')
    alf_lite_training.train(conf, bindings, [Evaluations()])
    lines = [line for line in files.operative_config_text().splitlines() if "=" in line]
    kept = [x for x in lines if not x.startswith(("DATA", "TrainerConfig.random_seed"))]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:12]


def train_sb3(job: score_tasks.Job, seed: int, curve: Curve) -> None:
    import reference_scores
    from stable_baselines3.common.callbacks import BaseCallback

    assert job.sb3 is not None
    model, policy = reference_scores.make_sb3(job.sb3, seed)

    class Evaluations(BaseCallback):
        def _on_rollout_start(self) -> None:  # what was collected has been trained on
            curve.at(min(self.num_timesteps, job.num_steps - 1), policy)

        def _on_step(self) -> bool:
            return True

    model.learn(job.num_steps, Evaluations())
    curve.at(model.num_timesteps, policy)


def commit() -> str:
    """Of the latest change to what trains, with a + if there are others by now."""

    def git(*words: str) -> str:
        paths = "../confs", "../alf_lite", ":(exclude)../alf_lite/tools"
        command = ["git", "-C", str(measuring.HERE), *words, *paths]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--")
    return git("log", "-1", "--format=%h", "--") + ("+" if changed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=score_tasks.SUITES)
    parser.add_argument("task")
    parser.add_argument("method")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--core", type=int, help="that the process is held to")
    parser.add_argument("--data", default="", help="folder of the recorded steps")
    parser.add_argument("--settings", default="", help="their hash, known already")
    parser.add_argument("--num_steps", type=int, help="to try it; the line is no score")
    options = parser.parse_args()
    job = score_tasks.find(options.suite, options.task, options.method)
    if job is None:
        raise SystemExit(f"{options.suite} has no {options.task} {options.method}")
    if options.num_steps:
        job = job._replace(num_steps=options.num_steps)
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    load, trained_by = os.getloadavg(), commit()
    curve, operative = Curve(job), ""
    if job.is_ours:
        operative = train_alf_lite(job, options.seed, options.data, curve)
    else:
        train_sb3(job, options.seed, curve)
    line = {
        "format": FORMAT,
        "suite": job.suite,
        "task": job.task,
        "method": job.method,
        "seed": options.seed,
        "env_id": job.env_id,
        "num_steps": job.num_steps,
        "conf": job.conf,
        "settings": options.settings or score_tasks.settings_hash(job),
        "operative": operative,
        "steps": [point[0] for point in curve.points],
        "cpu": [point[1] for point in curve.points],
        "scores": [point[2] for point in curve.points],
        "returns": [round(x, 2) for x in curve.returns],
        "cpu_seconds": round(curve.seconds[0], 1),
        "wall_seconds": round(curve.seconds[1], 1),
        "peak_mib": round(measuring.peak_memory_mib()),
        "cores": [options.core] if options.core is not None else os.cpu_count(),
        "processor": measuring.processor(),
        "load": [round(load[0], 2), round(os.getloadavg()[0], 2)],
        "versions": {
            "python": platform.python_version(),
            **measuring.versions(*measuring.PACKAGES),
        },
        "commit": trained_by,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
    }
    print("\n" + json.dumps(line), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
