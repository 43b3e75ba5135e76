"""Searches for good settings: ``python -m alf_lite.bin.sweep --conf=ppo_cart_pole``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from alf_lite.bin import program
from alf_lite.tools.sweep import NUM_TRIALS, PER_TRIAL, sweep


def define_flags() -> flags.FlagValues:
    """The flags and their defaults."""
    values = flags.FlagValues()
    texts: dict[str, tuple[Any, str]] = {
        "conf": (None, "What to train: the path of a .gin file, or a packaged conf."),
        "root_dir": (
            None,
            "Directory of the sweep: a run for each trial in trial_NNN, sweep.json, "
            "trials.csv, pictures. The same command continues what was stopped.",
        ),
        "space": (
            None,
            "A file with what is searched, a line for each setting as in --search.",
        ),
        "method": (
            "random",
            "random, grid (all combinations), or optuna (learns from earlier trials; "
            "needs pip install 'alf_lite[tune]'). Default: random.",
        ),
        "seeds": (
            "0",
            "Seeds of every trial, such as 0-2: its score is the mean over them. "
            "Default: 0.",
        ),
        "metric": (
            None,
            "The score: the last value of a logged curve, such as Metrics/AverageReturn"
            ". Default: the mean return of the final evaluation.",
        ),
    }
    for name, (default, text) in texts.items():
        flags.DEFINE_string(name, default, text, flag_values=values)
    flags.DEFINE_multi_string(
        "search",
        [],
        "A setting and its values: 'Adam.lr = log_uniform(1e-5, 1e-2)'; choice(A, B, "
        "...), uniform, log_uniform, int_uniform, log_int_uniform(LOW, HIGH).",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "gin_param", [], "A setting of all trials.", flag_values=values
    )
    flags.DEFINE_enum(
        "engine",
        "processes",
        ["processes", "ray"],
        "Where the runs are: processes of this machine, or on the machines of a cluster"
        " of Ray, which share root_dir (needs pip install 'alf_lite[ray]').",
        flag_values=values,
    )
    flags.DEFINE_string(
        "ray_address",
        None,
        "Of the cluster, HOST:PORT. Default: RAY_ADDRESS of the environment, or else a "
        "Ray of this machine.",
        flag_values=values,
    )
    for name, amount in PER_TRIAL.items():
        flags.DEFINE_float(
            f"{name}_per_trial",
            amount,
            f"With --engine=ray: {name.upper()[:-1]}s that Ray keeps for a run. "
            f"Default: {amount:g}.",
            lower_bound=0.0,
            flag_values=values,
        )
    integers: dict[str, tuple[int | None, int, str]] = {
        "num_trials": (
            None,
            1,
            f"Trials in all. Default: {NUM_TRIALS}; of a grid, all combinations.",
        ),
        "jobs": (
            None,
            1,
            "Runs at a time. Default: as many as there are cores, or as Ray has room "
            "for.",
        ),
        "grid_points": (3, 2, "Values of a range in a grid. Default: 3."),
        "sampler_seed": (0, 0, "Seed of what is tried. Default: 0."),
    }
    for name, (number, lowest, text) in integers.items():
        flags.DEFINE_integer(name, number, text, lower_bound=lowest, flag_values=values)
    flags.DEFINE_bool("minimize", False, "Less is better.", flag_values=values)
    flags.DEFINE_bool(
        "prune",
        False,
        "Stop trials that are worse than the median of the others at the same "
        "evaluation; with --method=optuna and TrainerConfig.eval_interval.",
        flag_values=values,
    )
    return values


PROGRAM = program.Program(
    name="sweep",
    summary="Searches for settings that train well; each trial is a run.",
    examples=(
        "--conf=ppo_cart_pole --root_dir=sweeps/a --search='Adam.lr = "
        "log_uniform(1e-4, 1e-2)' --num_trials=30 --jobs=4",
        "--conf=my.gin --root_dir=sweeps/b --space=space.gin --method=optuna --prune",
        "--conf=my.gin --root_dir=sweeps/c --method=grid --seeds=0-2 "
        "--search='PPOAlgorithm.gamma = choice(0.98, 0.99)'",
    ),
    define_flags=define_flags,
    run=sweep,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return program.main(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
