"""How a sweep chooses what to try next: all of a grid, at random, or with Optuna."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alf_lite.border import CONFIG, border, check_regular
from alf_lite.errors import needs_extra
from alf_lite.tools.search_space import CHOICE, Dimension, draw, grid

METHODS = ("random", "grid", "optuna")
STUDY = "study.db"

Settings = dict[str, str]


class Method:
    """Chooses the settings of trials; by itself, whatever became of earlier ones."""

    def propose(self, number: int) -> Settings | None:
        """Those of the trial of this number; None if all there are were tried."""
        raise NotImplementedError

    def should_prune(self, number: int, step: int, score: float) -> bool:
        """Whether a trial is not worth going on, by its score at an evaluation."""
        return False

    def tell(self, number: int, state: str, score: float | None) -> None:
        """How a trial ended: "finished", "pruned" or "failed"."""


class RandomMethod(Method):
    """Draws every setting on its own."""

    def __init__(self, space: Sequence[Dimension], seed: int) -> None:
        self._space = space
        self._seed = seed

    def propose(self, number: int) -> Settings | None:
        return draw(self._space, [self._seed, number])


class GridMethod(Method):
    """Tries all combinations.

    Args:
        space: what is searched.
        num_points: of a range, from end to end.
    """

    def __init__(self, space: Sequence[Dimension], num_points: int) -> None:
        self._space = space
        self._num_points = num_points

    def propose(self, number: int) -> Settings | None:
        combinations = grid(self._space, self._num_points)
        return next(itertools.islice(combinations, number, None), None)


class OptunaMethod(Method):
    """Tree-structured Parzen estimators; the median of the others prunes.

    Its study is kept in SQLite, for Optuna's own tools, too.

    Args:
        space: what is searched.
        seed: of what is drawn.
        root_dir: where the study is.
        minimize: whether less is better.
    """

    def __init__(
        self, space: Sequence[Dimension], seed: int, root_dir: Path, minimize: bool
    ) -> None:
        optuna = self._optuna = import_optuna()
        self._space = space
        place = root_dir / STUDY
        # As a URI, in which a path may have a "?", a "%" or a "{".
        storage = f"sqlite:///{place.absolute().as_uri()}?uri=true"
        if place.exists():
            check_regular(place, CONFIG)
        with _quiet(), border(place, CONFIG):
            self._study = optuna.create_study(
                study_name="sweep",
                storage=storage,
                direction="minimize" if minimize else "maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
            )
            # With a seed of its own for every call that goes on: else it would draw
            # what it has drawn before.
            self._study.sampler = optuna.samplers.TPESampler(
                seed=seed + len(self._study.trials),
                n_startup_trials=10,
                constant_liar=True,  # trials at a time should differ
            )

    def propose(self, number: int) -> Settings | None:
        with _quiet():
            while len(self._study.trials) <= number:
                self._study.ask()
            trial = self._trial(number)
            return {d.name: _suggested(trial, d) for d in self._space}

    def should_prune(self, number: int, step: int, score: float) -> bool:
        with _quiet():
            trial = self._trial(number)
            trial.report(score, step)
            return trial.should_prune()

    def tell(self, number: int, state: str, score: float | None) -> None:
        kind = _states(self._optuna)[state]
        with _quiet():
            self._study.tell(number, score, kind, skip_if_finished=True)

    def _trial(self, number: int) -> Any:
        frozen = self._study.trials[number]
        return self._optuna.trial.Trial(self._study, frozen._trial_id)


def _suggested(trial: Any, dimension: Dimension) -> str:
    name = dimension.name
    if dimension.kind == CHOICE:
        return trial.suggest_categorical(name, dimension.choices)
    if dimension.is_integer:
        low, high = int(dimension.low), int(dimension.high)
        return str(trial.suggest_int(name, low, high, log=dimension.is_log))
    value = trial.suggest_float(
        name, dimension.low, dimension.high, log=dimension.is_log
    )
    return dimension.text_of(value)


def import_optuna() -> Any:
    """The package, which says nothing of its own.

    Raises:
        ConfigError: if it is missing.
    """
    with needs_extra("--method=optuna, unlike random and grid,", "tune"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class _quiet(warnings.catch_warnings):  # noqa: N801 - used like a function
    """Optuna warns of what it calls experimental."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")


def study_of(
    space: Sequence[Dimension],
    trials: Sequence[tuple[Mapping[str, str], str, float | None]],
    minimize: bool,
) -> Any:
    """A study of trials that have ended, for the pictures of Optuna.

    Args:
        space: that was searched.
        trials: settings, state and score, in their order.
        minimize: whether less is better.
    """
    optuna = import_optuna()
    states = _states(optuna)
    with _quiet():
        study = optuna.create_study(direction="minimize" if minimize else "maximize")
        kinds = {d.name: _distribution(optuna, d) for d in space}
        for settings, state, score in trials:
            params = {d.name: _parameter(d, settings[d.name]) for d in space}
            study.add_trial(
                optuna.trial.create_trial(
                    params=params,
                    distributions=kinds,
                    value=score,
                    state=states[state],
                )
            )
    return study


def _states(optuna: Any) -> dict[str, Any]:
    kinds = optuna.trial.TrialState
    return {
        "finished": kinds.COMPLETE,
        "pruned": kinds.PRUNED,
        "failed": kinds.FAIL,
    }


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    kinds = optuna.distributions
    if dimension.kind == CHOICE:
        return kinds.CategoricalDistribution(dimension.choices)
    if dimension.is_integer:
        low, high = int(dimension.low), int(dimension.high)
        return kinds.IntDistribution(low, high, log=dimension.is_log)
    return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def _parameter(dimension: Dimension, text: str) -> Any:
    if dimension.kind == CHOICE:
        return text
    return int(text) if dimension.is_integer else float(text)
