"""Searches for good settings: starts trials, and tells what they reached."""

from __future__ import annotations

import contextlib
import itertools
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl.flags import FlagValues

from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.tools.invocation import invocation
from alf_lite.tools.text_tables import aligned

if TYPE_CHECKING:
    from alf_lite.tools.run_processes import Run, RunInProgress
    from alf_lite.tools.search_space import Dimension
    from alf_lite.tools.sweep_trials import Setup, Trial, Trials

    StartRun = Callable[[Run], RunInProgress]

NUM_TRIALS = 20  # unless it is a grid
PER_TRIAL = {"cpus": 1.0, "gpus": 0.0}  # what Ray keeps for a run
_NUM_SHOWN = 10


def sweep(values: FlagValues) -> int:
    """Searches as the flags say; returns the exit code."""
    from alf_lite.processes.ray_cluster import check_reachable
    from alf_lite.runs.lock import RunLock
    from alf_lite.tools.search_space import read_space
    from alf_lite.tools.seeds import check_settings_of_runs, parse_seeds
    from alf_lite.tools.sweep_trials import Setup
    from alf_lite.utils.ranks import started_as_rank

    if started_as_rank():  # its runs would wait for ranks that nobody starts
        raise ConfigError(
            "a sweep trains several runs, and torchrun one run on several ranks: leave "
            "torchrun out, and RANK and WORLD_SIZE of the environment"
        )
    if values.engine == "ray":
        check_reachable(values.ray_address)  # within seconds
    space = read_space(values.space, values.search)
    check_settings_of_runs(
        [*values.gin_param, *(dimension.name for dimension in space)]
    )
    root_dir = Path(values.root_dir).expanduser()
    setup = Setup(
        conf=values.conf,
        gin_params=list(values.gin_param),
        space=list(map(str, space)),
        method=values.method,
        seeds=parse_seeds(values.seeds),
        metric=values.metric or "",
        minimize=values.minimize,
        prune=values.prune,
        sampler_seed=values.sampler_seed,
        grid_points=values.grid_points,
    )
    check(setup, space)
    _check_has_effect(values, space)
    root_dir.mkdir(parents=True, exist_ok=True)
    with RunLock(root_dir, "another sweep is searching in"):
        return _search(values, setup, space, root_dir)


def _search(
    values: FlagValues, setup: Setup, space: Sequence[Dimension], root_dir: Path
) -> int:
    """Tries what the flags say in a directory that is this sweep's alone."""
    from alf_lite.tools import several_runs
    from alf_lite.tools.sweep_trials import Sweeping, Trials

    trials = Trials(root_dir, setup)
    trials.save()
    method = _method(setup, space, root_dir)
    num_trials = values.num_trials
    if num_trials is None and setup.method != "grid":
        num_trials = NUM_TRIALS
    arguments = [f"--conf={setup.conf}"]
    arguments += [f"--gin_param={parameter}" for parameter in setup.gin_params]
    sweeping = Sweeping(trials, setup, method, num_trials, arguments)
    try:
        with _engine(values) as (num_at_once, start):
            jobs = values.jobs or num_at_once
            print(f"Trials in {root_dir}, {jobs} runs at a time.", file=sys.stderr)
            several_runs.train_all(
                sweeping.runs(),
                jobs,
                on_end=sweeping.on_end,
                may_go_on=sweeping.may_go_on,
                result_of=sweeping.result_of,
                are_alike=False,
                start=start,
            )
    except several_runs.StoppedError as error:
        print("\n".join(table(trials)))
        print(f"Stopped by {error}. The same command continues.")
        return error.exit_code
    print("\n".join(table(trials)))
    print(f"All trials:   {trials.write_table()}")
    _report(trials, setup, space)
    return 0 if any(trial.score is not None for trial in trials.all) else 1


def check(setup: Setup, space: Sequence[Dimension]) -> None:
    """Finds what is wrong before anything is trained.

    Raises:
        ConfigError: for an unknown method, setting or value.
    """
    from alf_lite.config import TrainerConfig
    from alf_lite.config import files as config_files
    from alf_lite.tools.sweep_methods import METHODS, import_optuna

    if setup.method not in METHODS:
        raise ConfigError(
            f"there is no method {setup.method!r}, only {', '.join(METHODS)}."
            f"{did_you_mean(setup.method, METHODS)}"
        )
    if setup.method == "optuna":
        import_optuna()
    first = {dimension.name: dimension.examples()[0] for dimension in space}
    logger = logging.getLogger("alf_lite")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the rest is said by the runs
    try:
        for dimension in space:
            for value in dimension.examples():
                settings = {**first, dimension.name: value}
                bindings = [f"{name} = {text}" for name, text in settings.items()]
                with config_files.own_config():
                    config_files.parse_config(
                        setup.conf, [*setup.gin_params, *bindings]
                    )
                    with config_files.gin_errors():
                        config = TrainerConfig()
    finally:
        logger.setLevel(level)
    if setup.prune and not (config.evaluate and config.eval_interval):
        raise ConfigError(
            "--prune needs evaluations while a run goes on: give --gin_param="
            "'TrainerConfig.eval_interval = 10', in iterations"
        )


def _check_has_effect(values: FlagValues, space: Sequence[Dimension]) -> None:
    """Raises ConfigError for what is given and would be ignored."""
    from alf_lite.tools.search_space import grid

    if values.method == "grid" and values.num_trials is not None:
        points = itertools.islice(grid(space, values.grid_points), values.num_trials)
        num_all = sum(1 for _ in points)
        if values.num_trials > num_all:
            raise ConfigError(
                f"--num_trials={values.num_trials}: the grid has only {num_all}"
            )
    bound = {one.partition("=")[0].strip() for one in values.gin_param}
    for dimension in space:
        if dimension.name in bound:
            raise ConfigError(
                f"{dimension.name} is searched: take it out of --gin_param, or out of "
                "the search"
            )


@contextlib.contextmanager
def _engine(values: FlagValues) -> Iterator[tuple[int, StartRun]]:
    """How many runs there is room for, and what starts one."""
    from alf_lite.tools import several_runs
    from alf_lite.tools.run_processes import RunInProcess

    if values.engine == "processes":
        yield several_runs.num_cores(), RunInProcess
        return
    from alf_lite.tools.sweep_ray import TrialCluster

    cluster = TrialCluster(
        values.ray_address, values.cpus_per_trial, values.gpus_per_trial
    )
    try:
        yield cluster.num_at_once, cluster.start
    finally:
        cluster.close()


def _method(setup: Setup, space: Sequence[Dimension], root_dir: Path) -> Any:
    from alf_lite.tools import sweep_methods

    if setup.method == "grid":
        return sweep_methods.GridMethod(space, setup.grid_points)
    if setup.method == "random":
        return sweep_methods.RandomMethod(space, setup.sampler_seed)
    return sweep_methods.OptunaMethod(
        space, setup.sampler_seed, root_dir, setup.minimize
    )


def table(trials: Trials) -> list[str]:
    """A line for each of the best trials, and how many there are."""
    shown = trials.ranked()[:_NUM_SHOWN]
    names = [name for trial in shown[:1] for name in trial.settings]
    rows = [["TRIAL", "SCORE", *names, "END"]]
    for trial in shown:
        score = "-" if trial.score is None else f"{trial.score:.2f}"
        how = f"{trial.state}{': ' if trial.message else ''}{trial.message}"
        values = [_short(trial.settings[name]) for name in names]
        rows.append([str(trial.number), score, *values, how])
    lines = aligned(rows, num_right=len(rows[0]) - 1)
    states = [trial.state for trial in trials.all]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return [*lines, f"{len(states)} trials: {', '.join(counts)}"]


def _short(value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        return value
    return value if len(value) <= 7 else f"{number:.4g}"


def _report(trials: Trials, setup: Setup, space: Sequence[Dimension]) -> None:
    """What to do with the best one, and pictures of all."""
    from alf_lite.tools.sweep_pictures import draw_pictures

    best: Trial | None = next((t for t in trials.ranked() if t.score is not None), None)
    if best is None:
        return
    folder = trials.directory(best)
    if len(setup.seeds) > 1:
        folder = folder / f"seed_{setup.seeds[0]}"
    print(f"Best:         trial {best.number}, {folder}")
    print(f"Play it:      {invocation('play')} --root_dir={shlex.quote(str(folder))}")
    metric = setup.metric or "return"
    try:
        files = draw_pictures(
            trials.root_dir, space, trials.all, setup.minimize, metric
        )
    except ConfigError as error:
        print(f"No pictures:  {error}")
    else:
        for file in files:
            print(f"Picture:      {file}")
