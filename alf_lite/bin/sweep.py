"""Searches for good settings: ``python -m alf_lite.bin.sweep --conf=ppo_cart_pole``."""

from __future__ import annotations

from alf_lite.bin.program import Flag, Program
from alf_lite.tools.sweep import NUM_TRIALS, PER_TRIAL, sweep

FLAGS = (
    Flag(
        "conf",
        "What to train: the path of a .gin file, or a packaged conf.",
        required="what should be trained?",
    ),
    Flag(
        "root_dir",
        "Directory of the sweep: a run for each trial in trial_NNN, sweep.json, "
        "trials.csv, pictures. The same command continues what was stopped.",
        required="where should the runs be stored?",
    ),
    Flag(
        "space", "A file with what is searched, a line for each setting as in --search."
    ),
    Flag(
        "search",
        "A setting and its values: 'Adam.lr = log_uniform(1e-5, 1e-2)'; choice(A, B, "
        "...), uniform, log_uniform, int_uniform, log_int_uniform(LOW, HIGH).",
        default=[],
    ),
    Flag(
        "method",
        "random, grid (all combinations), or optuna (learns from earlier trials; needs "
        "pip install 'alf_lite[tune]').",
        default="random",
    ),
    Flag(
        "seeds",
        "Seeds of every trial, such as 0-2: its score is the mean over them.",
        default="0",
    ),
    Flag(
        "metric",
        "The score: the last value of a logged curve, such as Metrics/AverageReturn. "
        "Default: the mean return of the final evaluation.",
    ),
    Flag("minimize", "Less is better.", default=False),
    Flag("gin_param", "A setting of all trials.", default=[]),
    Flag(
        "num_trials",
        f"Trials in all. Default: {NUM_TRIALS}; of a grid, all combinations.",
        kind=int,
        low=1,
    ),
    Flag(
        "grid_points",
        "Values of a range in a grid.",
        default=3,
        low=2,
        needs="method=grid",
    ),
    Flag(
        "sampler_seed",
        "Seed of what is tried.",
        default=0,
        low=0,
        excludes="method=grid",
    ),
    Flag(
        "prune",
        "Stop trials that are worse than the median of the others at the same "
        "evaluation; with --method=optuna and TrainerConfig.eval_interval.",
        default=False,
        needs="method=optuna",
    ),
    Flag(
        "jobs",
        "Runs at a time. Default: as many as there are cores, or as Ray has room for.",
        kind=int,
        low=1,
    ),
    Flag(
        "engine",
        "Where the runs are: processes of this machine, or on the machines of a "
        "cluster of Ray, which share root_dir (needs pip install 'alf_lite[ray]').",
        default="processes",
        choices=["processes", "ray"],
    ),
    Flag(
        "ray_address",
        "Of the cluster, HOST:PORT. Default: RAY_ADDRESS of the environment, or else a "
        "Ray of this machine.",
        needs="engine=ray",
    ),
    *(
        Flag(
            f"{name}_per_trial",
            f"With --engine=ray: {name.upper()[:-1]}s that Ray keeps for a run.",
            default=amount,
            low=0.0,
            needs="engine=ray",
        )
        for name, amount in PER_TRIAL.items()
    ),
)

PROGRAM = Program(
    name="sweep",
    summary="Searches for settings that train well; each trial is a run.",
    examples=(
        "--conf=ppo_cart_pole --root_dir=sweeps/a --search='Adam.lr = "
        "log_uniform(1e-4, 1e-2)' --num_trials=30 --jobs=4",
        "--conf=my.gin --root_dir=sweeps/b --space=space.gin --method=optuna --prune",
        "--conf=my.gin --root_dir=sweeps/c --method=grid --seeds=0-2 "
        "--search='PPOAlgorithm.gamma = choice(0.98, 0.99)'",
    ),
    flags=FLAGS,
    run=sweep,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
