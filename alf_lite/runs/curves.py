"""Reads back what runs have logged: ``alf_lite.read_curves("runs/ppo")``."""

from __future__ import annotations

import ast
import logging
import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from alf_lite.border import RefusalError, border, read_text, reading
from alf_lite.config.files import BINDING
from alf_lite.errors import ConfigError, DataError, did_you_mean
from alf_lite.runs.directory import (
    OPERATIVE_CONFIG,
    RUN_FILE,
    USER_CONFIG,
    read_run_record,
)
from alf_lite.utils.row_log import AXES, EPISODES, KEYS, METRICS, Row, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

_logger = logging.getLogger(__name__)

_SHOWN = 400  # letters of the names of curves or runs
_FILES_OF_A_RUN = (f"{METRICS}.jsonl", RUN_FILE, USER_CONFIG)
_MAX_LOG_BYTES = 2**30


class Curve(NamedTuple):
    """One tag of a run, over everything it can be drawn over: [N] each, in order."""

    values: np.ndarray  # NaN where it was not finite
    iterations: np.ndarray
    env_steps: np.ndarray  # of all environments
    updates: np.ndarray  # of gradients
    seconds: np.ndarray  # of training

    def __repr__(self) -> str:
        """In a line, also in a notebook."""
        return (
            f"Curve of {len(self.values)} values, {self.values[-1]:.6g} after "
            f"{self.env_steps[-1]:,.0f} environment steps"
        )


class Curves(dict[str, Curve]):
    """What one run has logged: tag -> curve.

    Attributes:
        path: of the run.
        settings: name -> value of every setting, such as ``PPOAlgorithm.gamma``.

    Raises:
        DataError: if a file of the run is damaged, or has no number where one belongs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with border(path / f"{METRICS}.jsonl"):
            super().__init__(_curves_of(rows_of(path, METRICS)))
        self.settings = settings_of(path)

    def __repr__(self) -> str:
        """The names of the curves, not their numbers."""
        return f"{len(self)} curves of {self.path}: {_listed(self)}"

    def __missing__(self, tag: str) -> Curve:
        hint = did_you_mean(tag, self) or f" There are: {', '.join(sorted(self))}"
        raise KeyError(f"{self.path} has no curve {tag!r}.{hint}")

    @cached_property
    def record(self) -> dict[str, Any]:
        """What ``run.json`` says; {} if there is none."""
        return read_run_record(self.path)

    @cached_property
    def episodes(self) -> dict[str, np.ndarray]:
        """Of all evaluations: ``return``, ``length``, ``iteration``, …, [N] each."""
        rows = list(rows_of(self.path, EPISODES))
        names = dict.fromkeys(name for row in rows for name in row)
        with border(self.path / f"{EPISODES}.jsonl"):
            return {
                name: _array(name, [row.get(name) for row in rows]) for name in names
            }

    def to_dataframe(self) -> DataFrame:
        """A row per iteration, a column per tag, beside iteration, env_steps, ….

        Raises:
            ConfigError: if pandas is not installed.
        """
        pandas = _import_pandas()
        merged: dict[tuple[Any, ...], Row] = {}
        for row in rows_of(self.path, METRICS):
            key = tuple(row.get(name) for name in KEYS[METRICS])
            merged[key] = merged.get(key, {}) | row
        columns = [*AXES, *sorted(self)]
        rows = sorted(merged.values(), key=lambda row: row["iteration"])
        return pandas.DataFrame(rows, columns=columns)


class CurvesOfRuns(dict[str, Curves]):
    """What the runs in a folder have logged: name of the run -> curves."""

    def __repr__(self) -> str:
        """The names of the runs."""
        return f"Curves of {len(self)} runs: {_listed(self)}"

    def to_dataframe(self) -> DataFrame:
        """All rows of all runs, with the name in the column ``run``.

        Raises:
            ConfigError: if pandas is not installed.
        """
        pandas = _import_pandas()
        frames = {name: curves.to_dataframe() for name, curves in self.items()}
        frame = pandas.concat(frames, names=["run"])
        return frame.reset_index("run").reset_index(drop=True)


def read_curves(path: str | os.PathLike[str]) -> Any:
    """What a run has logged, or all runs in a folder: Curves or CurvesOfRuns.

    Which of them, no type checker can tell.

    Args:
        path: the ``root_dir`` of a run: gives its :class:`Curves`. Any other folder:
            gives those of every run in it, by its path from there.

    Raises:
        ConfigError: if there is no run.
        DataError: if nothing was logged.
    """
    root = Path(path).expanduser()
    found = find_runs(root)
    if found == [root]:
        curves = Curves(root)
        if not curves:
            raise DataError(nothing_logged(root))
        return curves
    runs = CurvesOfRuns()
    for run in found:
        try:
            curves = Curves(run)
        except DataError as error:
            _logger.warning("%s. It is left out.", error)
            continue
        if curves:
            runs[str(run.relative_to(root))] = curves
        else:
            _logger.warning("%s It is left out.", nothing_logged(run))
    if not runs:
        raise DataError(f"{root}: none of its {len(found)} runs has logged anything")
    return runs


def nothing_logged(run: Path) -> str:
    """A sentence about a run without numbers."""
    return f"{run} has logged nothing: {METRICS}.jsonl is missing or empty."


def find_runs(root: Path) -> list[Path]:
    """``root`` if it is a run, else all runs below it, by name; each of them once.

    Raises:
        ConfigError: if there is none.
    """
    if not root.is_dir():
        raise ConfigError(f"there is no directory {root}")
    found: dict[str, Path] = {}
    seen = set()  # links may lead in circles
    for directory, folders, files in os.walk(root, followlinks=True):
        place = os.path.realpath(directory)
        if place in seen:
            folders.clear()
            continue
        if any(name in files for name in _FILES_OF_A_RUN):
            found.setdefault(place, Path(directory))
            folders.clear()
        else:
            seen.add(place)
        # What a run is called comes before the links to it.
        folders[:] = sorted(
            (name for name in folders if not name.startswith(".")),
            key=lambda name: (os.path.islink(os.path.join(directory, name)), name),
        )
    if not found:
        raise ConfigError(
            f"{root} holds no run. A run is a directory with {METRICS}.jsonl, which "
            "train and Trainer(..., root_dir) write."
        )
    return sorted(found.values())


def _curves_of(rows: Iterable[Row]) -> dict[str, Curve]:
    found: dict[str, dict[float, tuple[Any, ...]]] = {}
    for row in rows:
        iteration, *others = (row.get(name, 0) for name in AXES)
        for tag, value in row.items():
            if tag not in AXES:
                # A later row of the same iteration completes the earlier one.
                found.setdefault(tag, {})[iteration] = (value, iteration, *others)
    return {
        tag: Curve(
            *(_array(tag, column) for column in zip(*_in_order(points), strict=True))
        )
        for tag, points in found.items()
    }


def _in_order(points: Mapping[float, tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    # An evaluation in another process comes later than its iteration.
    return [points[iteration] for iteration in sorted(points)]


def _array(name: str, values: Iterable[Any]) -> np.ndarray:
    # null is a number that was not finite.
    array = np.array([np.nan if value is None else value for value in values])
    if array.dtype.kind not in "biuf" or array.ndim > 1:
        raise RefusalError(f"{name} is no number everywhere")
    return array


def rows_of(run: Path, name: str, needed: Iterable[str] = AXES) -> Iterator[Row]:
    """The rows of a log that have what is needed; none if there is no file.

    Raises:
        DataError: if it cannot be read.
    """
    path = run / f"{name}.jsonl"
    if not path.exists():
        return
    with reading(path, max_bytes=_MAX_LOG_BYTES) as file:
        num_left_out, names = 0, tuple(needed)
        for row in read_rows(file):
            if all(_is_place(row.get(name)) for name in names):
                yield row
            else:
                num_left_out += 1
        if num_left_out:
            _logger.warning("%s: %d rows tell no place: left out", path, num_left_out)


def _is_place(value: Any) -> bool:
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    return value is not None and not is_infinite


def _listed(names: Iterable[str]) -> str:
    return textwrap.shorten(", ".join(sorted(names)), _SHOWN, placeholder=" …")


def _import_pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ConfigError("to_dataframe needs pandas: pip install pandas") from error
    return pandas


# The settings of a run


def settings_of(run: Path) -> dict[str, Any]:
    """What :func:`settings_in` finds in the files of a run, if there are any.

    Raises:
        DataError: if one of them cannot be read.
    """
    files = [run / name for name in (OPERATIVE_CONFIG, USER_CONFIG)]
    texts = [read_text(f, errors="replace") if f.exists() else "" for f in files]
    with border(run):
        return settings_in(*texts)


def settings_in(operative_text: str, user_text: str = "") -> dict[str, Any]:
    """Name -> value of every setting of a run, defaults included.

    What is no literal stays as it is written, such as ``@Adam()``; a value that is a
    macro is that of the macro.

    Args:
        operative_text: as ``operative.gin`` holds it.
        user_text: as ``user.gin`` does; it knows what was given in Python.
    """
    found = {name: _value(text) for name, text in BINDING.findall(operative_text)}
    for name, text in BINDING.findall(user_text):
        value = _value(text)
        if found.get(name) is None or not isinstance(value, _Source):
            found[name] = value
    return {name: _plain(value, found) for name, value in found.items() if "." in name}


class _Source(str):
    """A value that is no literal, as it is written."""


def _value(text: str) -> Any:
    text = text.replace("\\\n", "\n").strip()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _Source(text.partition("  #")[0])


def _plain(value: Any, found: dict[str, Any]) -> Any:
    if isinstance(value, _Source):
        value = found.get(value[1:], value) if value.startswith("%") else value
    return str(value) if isinstance(value, _Source) else value
