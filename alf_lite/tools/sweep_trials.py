"""The trials of a sweep: what is tried, how far it is, how it ended.

A trial is a run of ``train`` for each of its seeds, in a directory of its own. What is
known of all is in ``sweep.json``, after every change, so that the same command goes on
where a sweep was stopped.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from alf_lite.border import CONFIG, border, check_types, read_record, read_text
from alf_lite.checkpoints.files import new_output
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.runs.curves import rows_of
from alf_lite.runs.directory import INOPERATIVE_CONFIG, RUN_FILE, read_run_record
from alf_lite.tools.curve_pictures import write_csv
from alf_lite.tools.run_processes import Run, RunEnd
from alf_lite.tools.sweep_methods import Method
from alf_lite.utils.row_log import METRICS

_logger = logging.getLogger(__name__)

SWEEP_FILE = "sweep.json"
TABLE_FILE = "trials.csv"
EVALUATION = "eval/AverageReturn"
# What a run ends with that was stopped and can go on: SIGHUP, SIGINT, SIGTERM.
_STOPPED = (129, 130, 143)
_WAITS = (10.0, 300.0)  # seconds until a busy run is tried again, from and to

OPEN, FINISHED, PRUNED, FAILED = "open", "finished", "pruned", "failed"


class Setup(NamedTuple):
    """What a sweep is of. It stays the same as long as it goes on."""

    conf: str
    gin_params: list[str]
    space: list[str]
    method: str
    seeds: list[int]
    metric: str  # a logged tag; "" for the mean return at the end
    minimize: bool
    prune: bool
    sampler_seed: int
    grid_points: int


@dataclasses.dataclass
class Trial:
    """One choice of settings."""

    number: int
    settings: dict[str, str]
    state: str = OPEN
    score: float | None = None  # mean over the seeds
    scores: dict[str, float] = dataclasses.field(default_factory=dict)  # by seed
    message: str = ""  # why it failed


_TYPES = {
    "setup": dict,
    "trials": [
        {
            "number": int,
            "settings": dict,
            "state": str,
            "score": int | float | None,
            "scores": dict,
            "message": str,
        }
    ],
}


class Trials:
    """All trials of a sweep, as the file in its directory says.

    Args:
        root_dir: of the sweep.
        setup: of the sweep.

    Raises:
        ConfigError: if there is a sweep of another setup, or one that is not known.
    """

    def __init__(self, root_dir: Path, setup: Setup) -> None:
        self.root_dir = root_dir
        self._setup = setup
        self._file = root_dir / SWEEP_FILE
        if (root_dir / RUN_FILE).exists():
            raise ConfigError(
                f"{root_dir} holds a run of its own. A sweep makes one below root_dir "
                "for each trial: give another directory."
            )
        self.all = self._read()

    def _read(self) -> list[Trial]:
        if not self._file.exists():
            if any(self.root_dir.glob(f"trial_*/**/{RUN_FILE}")):
                raise ConfigError(
                    f"{self.root_dir} holds trials of another sweep, but no "
                    f"{SWEEP_FILE} that says what they tried. Give another --root_dir."
                )
            return []
        saved = read_record(self._file, _TYPES, CONFIG)
        with border(self._file, CONFIG):
            before = Setup(**saved["setup"])
            trials = [Trial(**trial) for trial in saved["trials"]]
            for trial in trials:
                check_types([*trial.settings.values()], [str], "settings")
                check_types([*trial.scores.values()], [int | float], "scores")
        for name, value in self._setup._asdict().items():
            earlier = getattr(before, name)
            if earlier != value:
                raise ConfigError(
                    f"{self.root_dir} holds a sweep with another {name}: {earlier!r}, "
                    f"now {value!r}. Give what it was begun with, to go on, or another "
                    "--root_dir."
                )
        return trials

    def save(self) -> None:
        """Writes the file; whole, or not at all."""
        saved = {
            "setup": self._setup._asdict(),
            "trials": [dataclasses.asdict(trial) for trial in self.all],
        }
        with new_output(self._file, replace_file=True) as temporary:
            temporary.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")

    def write_table(self) -> Path:
        """All trials as CSV, the best first."""
        path = self.root_dir / TABLE_FILE
        names = [name for trial in self.all[:1] for name in trial.settings]
        rows = [
            (t.number, t.state, t.score, *(t.settings[n] for n in names), t.message)
            for t in self.ranked()
        ]
        write_csv(path, ("trial", "state", "score", *names, "message"), rows)
        return path

    def ranked(self) -> list[Trial]:
        """The best first; those without a score last."""
        sign = 1.0 if self._setup.minimize else -1.0

        def key(trial: Trial) -> tuple[bool, float, int]:
            score = trial.score
            return score is None, sign * (score or 0.0), trial.number

        return sorted(self.all, key=key)

    def directory(self, trial: Trial) -> Path:
        return self.root_dir / f"trial_{trial.number:03d}"


class Sweeping:
    """Gives out the runs of trials, and takes in how they end.

    Args:
        trials: those there are so far.
        setup: of the sweep.
        method: chooses the next ones.
        num_trials: in all.
        arguments: of train, for every run.
    """

    def __init__(
        self,
        trials: Trials,
        setup: Setup,
        method: Method,
        num_trials: int | None,
        arguments: Sequence[str],
    ) -> None:
        self._trials = trials
        self._setup = setup
        self._method = method
        self._num_trials = math.inf if num_trials is None else num_trials
        self._arguments = list(arguments)
        self._by_run: dict[str, tuple[Trial, int]] = {}
        self._num_running: dict[int, int] = {}  # of trials
        self._given_out: set[int] = set()  # trials whose runs were all started
        self._num_reported: dict[int, int] = {}  # evaluations of trials
        self._busy: dict[float, Run] = {}  # by when they are tried again
        self._waits: dict[str, float] = {}  # of runs that were busy, in seconds

    def runs(self) -> Iterator[Run | None]:
        """Those of trials that were stopped, of new ones, then those that were busy.

        None: those that go on, here or in other processes, have to be waited for.
        """
        yield from self._first_tries()
        while any(self._num_running.values()):
            due = min(self._busy, default=math.inf)
            if due > time.monotonic():
                yield None
                continue
            run = self._busy.pop(due)
            trial, _ = self._by_run[run.name]
            if trial.state == OPEN:
                yield from self._unless_finished(run)
            else:  # another seed has failed
                self._num_running[trial.number] -= 1
                self._complete(trial)

    def _first_tries(self) -> Iterator[Run]:
        for trial in list(self._trials.all):
            if trial.state == OPEN:
                yield from self._runs_of(trial)
        while len(self._trials.all) < self._num_trials:
            number = len(self._trials.all)
            settings = self._method.propose(number)
            if settings is None:
                return
            trial = Trial(number, settings)
            self._trials.all.append(trial)
            self._trials.save()
            yield from self._runs_of(trial)

    def _runs_of(self, trial: Trial) -> Iterator[Run]:
        folder = self._trials.directory(trial)
        self._num_running[trial.number] = 0
        for seed in self._setup.seeds:
            if trial.state != OPEN:  # another seed has failed
                break
            name, root_dir = f"trial {trial.number}", folder
            if len(self._setup.seeds) > 1:
                name, root_dir = f"{name} seed {seed}", folder / f"seed_{seed}"
            run = Run(
                name,
                root_dir,
                [
                    *self._arguments,
                    *(f"--gin_param={k} = {v}" for k, v in trial.settings.items()),
                    f"--seed={seed}",
                ],
            )
            self._by_run[name] = trial, seed
            self._num_running[trial.number] += 1
            yield from self._unless_finished(run)
        self._given_out.add(trial.number)
        self._complete(trial)

    def _unless_finished(self, run: Run) -> Iterator[Run]:
        """The run, if it did not finish before, in another process."""
        record = read_run_record(run.root_dir)
        if record.get("exit_code") == 0:
            self.on_end(RunEnd(run, 0, record, ""))
        else:
            yield run

    def on_end(self, end: RunEnd) -> None:
        """Takes in how a run ended."""
        if end.is_busy:
            self._try_later(end)
            return
        trial, seed = self._by_run[end.run.name]
        self._check_used(trial, end.run.root_dir)
        self._num_running[trial.number] -= 1
        if end.exit_code == 0:
            score = self._score(end)
            if score is None:
                self._fail(trial, f"seed {seed}: {self._no_score(end.run.root_dir)}")
            else:
                trial.scores[str(seed)] = score
        elif end.exit_code not in _STOPPED:
            self._fail(trial, f"seed {seed}: {end.message}")
        self._complete(trial)

    def _try_later(self, end: RunEnd) -> None:
        first, longest = _WAITS
        name = end.run.name
        wait = self._waits[name] = min(2 * self._waits.get(name, first / 2), longest)
        self._busy[time.monotonic() + wait] = end.run
        _logger.info("%s is tried again in %g s: %s", name, wait, end.message)

    def _fail(self, trial: Trial, message: str) -> None:
        if trial.state == OPEN:
            trial.state, trial.message = FAILED, message

    def _complete(self, trial: Trial) -> None:
        """Notes the trial, if nothing of it is missing."""
        if self._num_running[trial.number] > 0:
            return
        if trial.state == OPEN:
            scores = list(trial.scores.values())
            if trial.number not in self._given_out:
                return
            if len(scores) < len(self._setup.seeds):
                return  # stopped: the same command goes on
            trial.score = sum(scores) / len(scores)
            trial.state = FINISHED
        self._method.tell(trial.number, trial.state, trial.score)
        self._trials.save()

    def _score(self, end: RunEnd) -> float | None:
        score = end.score
        if self._setup.metric:
            values = list(_values(end.run.root_dir, self._setup.metric))
            score = values[-1] if values else None
        return score if score is not None and math.isfinite(score) else None

    def _no_score(self, root_dir: Path) -> str:
        """Why a run that finished has no score.

        Raises:
            ConfigError: if nothing has logged the metric so far.
        """
        metric = self._setup.metric
        if not metric:
            return "it has no return: no episode ended, and nothing was evaluated"
        tags = {tag for row in rows_of(root_dir, METRICS, needed=()) for tag in row}
        if metric in tags:
            return f"its last {metric} is no finite number"
        problem = f"{root_dir} has logged no {metric}.{did_you_mean(metric, tags)}"
        if not any(trial.scores for trial in self._trials.all):
            raise ConfigError(f"{problem} Give another --root_dir, too.")
        return problem

    def result_of(self, end: RunEnd) -> str:
        """The score of a run and what it is, "" if there is none."""
        if not self._setup.metric:
            return end.result
        score = self._score(end)
        return "" if score is None else f"{self._setup.metric} {score:.4g}"

    def may_go_on(self, run: Run) -> bool:
        """False for a run of a trial that failed or is not worth going on.

        Raises:
            ConfigError: if nothing uses a setting that is searched.
        """
        trial, seed = self._by_run[run.name]
        self._check_used(trial, run.root_dir)
        if self._setup.prune and trial.state == OPEN and seed == self._setup.seeds[0]:
            values = _values(run.root_dir, self._setup.metric or EVALUATION)
            curve = [value for value in values if math.isfinite(value)]
            known = self._num_reported.get(trial.number, 0)
            for step, value in enumerate(curve[known:], start=known + 1):
                self._num_reported[trial.number] = step
                if self._method.should_prune(trial.number, step, value):
                    trial.state = PRUNED
                    trial.message = f"after {step} evaluations"
                    break
        return trial.state == OPEN

    def _check_used(self, trial: Trial, root_dir: Path) -> None:
        if not (root_dir / INOPERATIVE_CONFIG).exists():
            return  # not written yet
        text = read_text(root_dir / INOPERATIVE_CONFIG)
        bound = {line.partition("=")[0].strip() for line in text.splitlines()}
        unused = [name for name in trial.settings if name in bound]
        if unused:
            raise ConfigError(
                f"nothing in {self._setup.conf} uses {', '.join(unused)}: searching "
                f"for it changes nothing. {root_dir / INOPERATIVE_CONFIG} says why. "
                "Take it out of the search, and give another --root_dir."
            )


def _values(root_dir: Path, tag: str) -> Iterator[float]:
    """What was logged of a tag; NaN where it was no finite number."""
    for row in rows_of(root_dir, METRICS, needed=()):
        if tag in row:
            value = row[tag]
            yield float(value) if isinstance(value, int | float) else math.nan
