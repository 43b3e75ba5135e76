"""The same conf with several seeds, side by side, and what they reached."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from alf_lite.errors import ConfigError
from alf_lite.tools.invocation import invocation
from alf_lite.tools.run_processes import OUTPUT_FILE, Run, RunEnd
from alf_lite.tools.several_runs import (
    StoppedError,
    are_refused_alike,
    num_cores,
    train_all,
)

_MAX_RUNS = 1000


def check_settings_of_runs(names: Iterable[str]) -> None:
    """Finds what each of several runs has of its own among the settings of all.

    Args:
        names: of the settings, or the settings, ``NAME = VALUE``.

    Raises:
        ConfigError: naming the setting, which would have no effect.
    """
    instead = {
        "TrainerConfig.random_seed": "--seeds says it for every run",
        "TrainerConfig.root_dir": "every run has one of its own in --root_dir",
    }
    for given in names:
        name = given.partition("=")[0].strip()
        if name in instead:
            raise ConfigError(f"{name} cannot be set here: {instead[name]}")


def parse_seeds(text: str) -> list[int]:
    """``0-4``, ``0,3,7`` or ``0-2,9`` as numbers.

    Raises:
        ConfigError: for anything else, and for a seed that is named twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?", part)
        if found is None:
            raise ConfigError(
                f"--seeds={text}: expected numbers and ranges, such as 0-4 or 0,3,7"
            )
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first >= _MAX_RUNS:
            raise ConfigError(
                f"--seeds={text}: {part.strip()} is not a range of up to {_MAX_RUNS}"
            )
        seeds += range(first, last + 1)
    twice = {seed for seed in seeds if seeds.count(seed) > 1}
    if twice:
        raise ConfigError(f"--seeds={text}: {min(twice)} is named twice")
    return seeds


def train_seeds(
    seeds: Sequence[int], root_dir: str, arguments: Sequence[str], jobs: int | None
) -> int:
    """Trains one run for each seed in ``root_dir/seed_N``; prints a table.

    Args:
        seeds: see :func:`parse_seeds`.
        root_dir: of all.
        arguments: of the program train, without seed and root_dir.
        jobs: runs at a time; None for as many as there are cores.

    Returns:
        The exit code: that of the first run that failed, if one did.

    Raises:
        ConfigError: if ``root_dir`` is that of a single run, or a run says that the
            flags or the conf are wrong.
    """
    folder = Path(root_dir)
    if (folder / "run.json").exists():
        raise ConfigError(
            f"{folder} holds a run of its own. --seeds makes one in seed_N below "
            "root_dir for each seed: give another directory."
        )
    runs = [
        Run(f"seed {seed}", folder / f"seed_{seed}", [*arguments, f"--seed={seed}"])
        for seed in seeds
    ]
    jobs = jobs or min(len(runs), num_cores())
    print(f"{len(runs)} runs in {folder}, {jobs} at a time.", file=sys.stderr)
    try:
        ends = train_all(runs, jobs)
    except StoppedError as error:
        print(f"Stopped by {error}. The same command continues.")
        return error.exit_code
    started = [end for end in ends if end.exit_code is not None]
    if are_refused_alike(started) or (len(ends) == 1 and ends[0].is_refused):
        raise ConfigError(started[0].message)
    print("\n".join(table(ends)))
    typed = shlex.quote(str(folder))
    print(f"TensorBoard:  tensorboard --logdir={typed}")
    print(f"Curves:       {invocation('plot')} {typed}")
    failed = [end.exit_code for end in ends if not end.is_finished]
    return next((code for code in failed if code is not None), 0)


def table(ends: Sequence[RunEnd]) -> list[str]:
    """A line for each run, and the mean over those that finished."""
    from alf_lite.trainers.progress_measures import format_seconds
    from alf_lite.utils.statistics import bootstrap_ci95

    width = max(len(end.run.name) for end in ends)
    lines = [f"{'':<{width}}  {'RETURN':>10}  {'STEPS':>10}  {'TIME':>9}  END"]
    for end in ends:
        record = end.record
        score = "-" if end.score is None else f"{end.score:.2f}"
        seconds = format_seconds(record["seconds"]) if "seconds" in record else "-"
        how = record.get("stop_reason", "") if end.is_finished else end.message
        if not end.is_finished and end.exit_code is not None:
            how = f"exit code {end.exit_code}: {how} ({end.run.root_dir / OUTPUT_FILE})"
        lines.append(
            f"{end.run.name:<{width}}  {score:>10}  {record.get('env_steps', '-'):>10}"
            f"  {seconds:>9}  {how}"
        )
    scores = [e.score for e in ends if e.is_finished and e.score is not None]
    if scores:
        interval = bootstrap_ci95(scores)
        shown = (
            ""
            if interval is None
            else f", 95 % interval over seeds [{interval[0]:.2f}, {interval[1]:.2f}]"
        )
        of = "1 run" if len(scores) == 1 else f"{len(scores)} runs"
        lines.append(f"Mean return of {of}: {sum(scores) / len(scores):.2f}{shown}")
    return lines
