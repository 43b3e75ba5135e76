"""Trains: ``python -m alf_lite.bin.train --conf=ppo_cart_pole --root_dir=runs/ppo``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl.flags import FlagValues

from alf_lite.bin import check_interrupted
from alf_lite.bin.program import Flag, Program, is_rank
from alf_lite.errors import ConfigError

# What is imported inside the functions takes a second or two, which --help, a misspelt
# flag and a missing conf need not wait for.


FLAGS = (
    Flag(
        "conf",
        "What to train: the path of a .gin file, or the name of a conf that comes "
        "with the library. May be left out to continue the run in root_dir.",
        alias="gin_file",
    ),
    Flag(
        "gin_param",
        "A setting that overrides the conf: 'TrainerConfig.num_iterations = 10'.",
        default=[],
    ),
    Flag(
        "root_dir",
        "Directory of the run: checkpoints, TensorBoard logs, configuration. A run "
        "that is there already is continued from its last checkpoint.",
    ),
    Flag(
        "device",
        "Where the networks are: cpu, cuda, cuda:1, mps. Default: what the conf "
        "says, else cpu.",
    ),
    Flag(
        "seed",
        "Seed of everything random. Default: a new one for every run, shown in "
        "run.json.",
        kind=int,
    ),
    Flag(
        "seeds",
        "Several runs, one for each seed, in root_dir/seed_N: 0-4 or 0,3,7. What "
        "is finished there stays, what is not is continued. Prints the mean over "
        "the seeds at the end.",
        excludes="seed",
    ),
    Flag(
        "jobs",
        "How many of them are trained at a time, each in a process of its own with "
        "one thread. Default: as many as there are cores.",
        kind=int,
        low=1,
        needs="seeds",
    ),
    Flag(
        "force_torch_deterministic",
        "Use torch's deterministic algorithms only, which may be slower on a GPU.",
        default=False,
    ),
    Flag(
        "strict_config",
        "Refuse to start if a setting of the conf is not used by anything.",
        default=False,
    ),
)


def train(values: FlagValues) -> int:
    """Trains as the flags say; returns the exit code."""
    if values.seeds is not None:
        return _train_seeds(values)
    conf, root_dir = values.conf, values.root_dir
    parameters = list(values.gin_param)
    if root_dir:
        _check_holds_no_runs(Path(root_dir).expanduser())
    if conf is None and root_dir:
        conf = _saved_config(root_dir, parameters)
    if values.device is not None:
        parameters.append(f"TrainerConfig.device = {values.device!r}")
    if values.seed is not None:
        parameters.append(f"TrainerConfig.random_seed = {values.seed}")
    if conf is None and not values.gin_param:
        raise ConfigError(_no_conf())

    from alf_lite.config import TrainerConfig
    from alf_lite.config import files as config_files

    config_files.parse_config(conf, parameters, strict=values.strict_config)
    with config_files.gin_errors():
        config = TrainerConfig()
    if not (root_dir or config.root_dir):
        raise ConfigError("--root_dir is missing: where should the run be stored?")

    from alf_lite.trainers.trainer import Trainer
    from alf_lite.utils import random_state

    if values.force_torch_deterministic:
        random_state.force_deterministic()
    trainer = Trainer(config, root_dir, display=True, on_signal="return")
    check_interrupted()
    result = trainer.train()
    _report(result)
    return 0 if result.stop_signal is None else result.exit_code


def _check_holds_no_runs(folder: Path) -> None:
    """Several runs below a run would be hidden by it, from ``plot`` and ``compare``."""
    if (folder / "run.json").exists():
        return
    for kind, pattern in (
        ("runs of several seeds", "seed_*/run.json"),
        ("a sweep", "trial_*/**/run.json"),
    ):
        for file in folder.glob(pattern):
            raise ConfigError(
                f"{folder} holds {kind}. Go on by the command that began them, or with "
                f"one of them: --root_dir={file.parent}. Or give another directory."
            )


def _report(result: Any) -> None:
    """Prints how the run ended."""
    from alf_lite.tools import report
    from alf_lite.utils.ranks import ranks

    if ranks.is_first:
        print("\n".join(report.training_lines(result)))


def _train_seeds(values: FlagValues) -> int:
    """Starts a run for each seed with the other flags."""
    from alf_lite.tools.seeds import check_settings_of_runs, parse_seeds, train_seeds

    if is_rank():
        raise ConfigError(
            "--seeds trains several runs, and torchrun one run on several ranks: give "
            "--seed, or leave torchrun out"
        )
    seeds = parse_seeds(values.seeds)
    if not values.root_dir:
        raise ConfigError("--root_dir is missing: where should the runs be stored?")
    check_settings_of_runs(values.gin_param)
    given = {name: values[name].value for name in ("conf", "device")}
    are_set = ("force_torch_deterministic", "strict_config")
    arguments = [
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
        *(f"--gin_param={parameter}" for parameter in values.gin_param),
        *(f"--{name}" for name in are_set if values[name].value),
    ]
    return train_seeds(seeds, values.root_dir, arguments, values.jobs)


def _saved_config(root_dir: str, parameters: Sequence[str]) -> str | None:
    """The configuration of the run that is there."""
    from alf_lite.policies import run_policy
    from alf_lite.runs.directory import USER_CONFIG, RunDirectory

    directory = RunDirectory(root_dir)
    directory.restore_user_config()
    if not (directory.path / USER_CONFIG).is_file():
        return None
    return run_policy.run_conf(root_dir, parameters, run_policy.TO_TRAIN)


def _no_conf() -> str:
    from alf_lite.config.names import packaged_confs

    confs = "\n  ".join(packaged_confs())
    return (
        "--conf is missing: what should be trained? Give the path of a .gin file, or "
        f"one of the confs that come with the library:\n  {confs}"
    )


PROGRAM = Program(
    name="train",
    summary="Trains a reinforcement-learning algorithm in an environment.",
    examples=(
        "--conf=ppo_cart_pole --root_dir=runs/ppo",
        "--conf=my.gin --root_dir=runs/my --seed=1 --device=cuda",
        "--conf=ppo_cart_pole --root_dir=runs/a --gin_param='PPOAlgorithm.gamma = 0.9'",
        "--root_dir=runs/ppo      # continue",
        "--conf=ppo_cart_pole --root_dir=runs/ppo5 --seeds=0-4 --jobs=2",
    ),
    flags=FLAGS,
    run=train,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
