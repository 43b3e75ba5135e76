"""Sorts runs into groups that differ in nothing but their seed, and aligns them."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from alf_lite.errors import ConfigError, DataError, did_you_mean
from alf_lite.runs.curves import Curve, Curves, find_runs, nothing_logged

# What is preferred as the return of a run, and its name in a picture.
RETURNS = {
    "eval/AverageReturn": "return, in evaluations",
    "charts/episodic_return": "return, in training",
    "Metrics/AverageReturn": "return, in training",
}
RETURN_TAGS = tuple(RETURNS)
# Those of them that run.json has, too, and what it says of the end, as a Curve has it.
_RETURNS_IN_TRAINING = RETURN_TAGS[1:]
_END = ("average_return", "iterations", "env_steps", "num_updates", "seconds")

# Axis -> its name in a picture.
AXES = {
    "env_steps": "environment steps",
    "updates": "gradient updates",
    "iterations": "iterations",
    "seconds": "seconds of training",
}

_MAX_POINTS = 200
_NUM_REACHED = 3  # points of a run whose mean comes to a threshold
_GROUPINGS = ("auto", "conf", "environment", "algorithm", "folder", "run")
# Settings that do not change what is learned, or only how long.
_NOT_COMPARED = {
    *("random_seed", "root_dir", "device", "num_threads", "hook_ctors", "check_finite"),
    *("num_checkpoints", "keep_checkpoints", "checkpoint_replay_buffer"),
    *("summary_interval", "summarize_first_interval", "summaries_flush_secs"),
    *("summary_axis", "debug_summaries", "summarize_grads_and_vars"),
    *("summarize_action_distributions", "evaluate", "async_eval", "eval_interval"),
    *("num_eval_episodes", "num_eval_environments", "early_stop_return"),
    *("early_stop_patience", "metric_ctors", "num_env_steps", "num_iterations"),
    *("metric_min_buffer_size", "render_mode"),
}


class LoggedRun(NamedTuple):
    """A run, and what it is told apart by."""

    curves: Curves
    label: str  # given beside its path, or ""

    @property
    def environment(self) -> str:
        settings = self.curves.settings
        for name in ("env_name", "env_ctor"):
            value = settings.get(f"create_environment.{name}")
            if value:
                return str(value).strip("@()")
        return "environment"

    @property
    def algorithm(self) -> str:
        ctor = self.curves.settings.get("TrainerConfig.algorithm_ctor")
        return str(ctor or "algorithm").strip("@()")

    @property
    def conf(self) -> str:
        return self.curves.record.get("conf") or self.algorithm

    @property
    def compared_settings(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.curves.settings.items()
            if name.rpartition(".")[2] not in _NOT_COMPARED
        }


class Group(NamedTuple):
    """Runs that differ in their seed."""

    label: str
    environment: str
    runs: list[LoggedRun]


def read_runs(operands: Iterable[str]) -> tuple[list[LoggedRun], list[str]]:
    """The runs that are named, and a line for each that is left out.

    Args:
        operands: a run, a folder of runs or a pattern such as ``runs/*``, each also as
            ``LABEL=PATH``.

    Raises:
        ConfigError: if there is nothing.
        DataError: if none of the runs has logged anything.
    """
    found: dict[tuple[str, str], Path] = {}  # however it is spelled, a run is one
    for operand in operands:
        label, path = _split(operand)
        for folder in _folders(path):
            for run in find_runs(folder):
                found.setdefault((os.path.realpath(run), label), run)
    if not found:
        raise ConfigError("no RUN is given: name runs, folders of runs, or patterns")
    runs, notes = [], []
    for (_, label), root_dir in found.items():
        try:
            curves = Curves(root_dir)
        except DataError as error:
            notes.append(f"{error}. Left out.")
            continue
        if curves:
            runs.append(LoggedRun(curves, label))
        else:
            notes.append(f"{nothing_logged(root_dir)} Left out.")
    if not runs:
        raise DataError("\n".join(notes))
    return runs, notes


def _split(operand: str) -> tuple[str, str]:
    """``LABEL=PATH`` -> both; a path may have a "=", too."""
    label, equals, path = operand.partition("=")
    is_label = bool(equals) and "/" not in label and not Path(operand).exists()
    return (label, path) if is_label else ("", operand)


def _folders(path: str) -> list[Path]:
    expanded = str(Path(path).expanduser())
    if Path(expanded).exists() or not glob.has_magic(expanded):
        return [Path(expanded)]
    found = [Path(name) for name in sorted(glob.glob(expanded, recursive=True))]
    found = [path for path in found if path.is_dir()]
    if not found:
        raise ConfigError(f"nothing matches {path!r}")
    return found


def choose_tag(runs: Sequence[LoggedRun], tag: str | None) -> str:
    """The tag that is given, or that of the return which most is known of.

    Raises:
        DataError: if no run has it, with the names that there are.
    """
    tags = {name for run in runs for name in run.curves}
    if tag is None:
        in_all = [t for t in RETURN_TAGS if all(t in run.curves for run in runs)]
        # A single evaluation at the end is no curve.
        curves = [t for t in in_all if all(_is_curve(run.curves[t]) for run in runs)]
        tag = next(iter([*curves, *in_all]), RETURN_TAGS[0])
    if tag not in tags:
        hint = did_you_mean(tag, tags) or f" There are: {', '.join(sorted(tags))}"
        raise DataError(f"none of the runs has logged {tag!r}.{hint}")
    return tag


def _is_curve(curve: Curve) -> bool:
    return len(np.unique(curve.iterations)) > 2


def group_runs(runs: Sequence[LoggedRun], by: str) -> list[Group]:
    """The runs by their environment and by what is asked for.

    Args:
        runs: at least one.
        by: "auto", by all settings that matter, or one of conf, environment, algorithm,
            folder and run, or the name of a setting. A label that was given beside a
            path decides alone.

    Raises:
        ConfigError: if no run has such a setting.
    """
    labels = _labels(runs, by)
    groups: dict[tuple[str, str], list[LoggedRun]] = {}
    for run, label in zip(runs, labels, strict=True):
        groups.setdefault((run.environment, run.label or label), []).append(run)
    return [
        Group(label, environment, members)
        for (environment, label), members in sorted(groups.items(), key=_place)
    ]


def _place(item: tuple[tuple[str, str], Any]) -> str:
    return item[0][0]  # by environment; else in the order they were given in


def _labels(runs: Sequence[LoggedRun], by: str) -> list[str]:
    if by == "auto":
        return _labels_by_difference(runs)
    if by == "folder":
        return [run.curves.path.absolute().parent.name for run in runs]
    if by == "run":
        return [_short_path(run, runs) for run in runs]
    if by in _GROUPINGS:
        return [getattr(run, by) for run in runs]
    return _labels_by_setting(runs, by)


def _labels_by_setting(runs: Sequence[LoggedRun], by: str) -> list[str]:
    """The value of the one setting that is called so, in full or by its last part."""
    known = {name for run in runs for name in run.curves.settings}
    names = [n for n in known if n == by] or [n for n in known if n.endswith(f".{by}")]
    if len(names) != 1:
        hint = did_you_mean(by, known | set(_GROUPINGS))
        which = f"fits several: {', '.join(sorted(names))}" if names else "is unknown."
        raise ConfigError(
            f"--group_by={by} {which}{hint} Expected one of {', '.join(_GROUPINGS)}, "
            "or a setting of the runs such as PPOAlgorithm.gamma"
        )
    return [_setting_text(run, names[0], known) for run in runs]


def _labels_by_difference(runs: Sequence[LoggedRun]) -> list[str]:
    """The conf of each, if they differ, and in which settings those of a conf do."""
    several_confs = len({(run.conf, run.environment) for run in runs}) > len(
        {run.environment for run in runs}
    )
    labels = []
    for run in runs:
        peers = [
            r for r in runs if (r.conf, r.environment) == (run.conf, run.environment)
        ]
        known = {name for peer in peers for name in peer.compared_settings}
        texts = [
            _setting_text(run, name, known)
            for name in sorted(known)
            if len({repr(peer.compared_settings.get(name)) for peer in peers}) > 1
        ]
        parts = [run.conf] if several_confs or not texts else []
        labels.append(", ".join([*parts, *texts]))
    return labels


def _setting_text(run: LoggedRun, name: str, known: Iterable[str]) -> str:
    """``gamma = 0.9``, with the class if others have a setting of this name."""
    last = name.rpartition(".")[2]
    is_clear = sum(other.rpartition(".")[2] == last for other in known) == 1
    value = run.curves.settings.get(name, "-")
    return f"{last if is_clear else name} = {value}"


def _short_path(run: LoggedRun, runs: Sequence[LoggedRun]) -> str:
    name = run.curves.path.absolute().name
    is_clear = sum(r.curves.path.absolute().name == name for r in runs) == 1
    return name if is_clear else str(run.curves.path)


# Curves at common places


class Aligned(NamedTuple):
    """The curves of a group at the same places."""

    x: np.ndarray  # [P]
    values: np.ndarray  # [P, S], of S runs
    note: str  # how far, in words

    @property
    def is_flat(self) -> bool:
        """Whether the axis stands still, as that of steps in offline training."""
        return len(self.x) == 1


def align(curves: Sequence[Curve], axis: str, smooth: int = 1) -> Aligned:
    """Curves of different lengths and steps at common places.

    These are all places where one of them has a point, from where the last one begins
    to where the first one ends, 200 at most; between its points a curve is a straight
    line. Where they have no common place, only their ends count.

    Args:
        curves: at least one, with at least one finite point each.
        axis: of ``AXES``.
        smooth: each value is the mean of so many, of itself and of those before it.
    """
    lines = [_increasing(curve, axis, smooth) for curve in curves]
    starts, ends = zip(*((x[0], x[-1]) for x, _ in lines), strict=True)
    begin, end = max(starts), min(ends)
    of = f"{len(lines)} run{'s' if len(lines) > 1 else ''}"
    if begin >= end:
        values = np.array([[y[-1] for _, y in lines]])
        note = f"{of} without a common stretch: the last value of each"
        if max(ends) == 0:
            note = f"{of} that took no step: the last value of each"
        return Aligned(np.array([np.median(ends)]), values, note)
    places = np.unique(np.concatenate([x for x, _ in lines]))
    places = places[(places >= begin) & (places <= end)]
    if len(places) > _MAX_POINTS:
        places = np.linspace(begin, end, _MAX_POINTS)
    values = np.stack([np.interp(places, x, y) for x, y in lines], axis=1)
    note = f"{of}, drawn from {begin:,.0f} to {end:,.0f}"
    if max(ends) > 1.02 * end:
        note += f", where the first one ends (the last one at {max(ends):,.0f})"
    return Aligned(places, values, note)


def _increasing(curve: Curve, axis: str, smooth: int) -> tuple[np.ndarray, np.ndarray]:
    """Places and values; of several values at a place the last one."""
    is_finite = np.isfinite(curve.values)
    x, y = getattr(curve, axis)[is_finite], curve.values[is_finite]
    if smooth > 1:
        total = np.cumsum(np.insert(y, 0, 0.0))
        last = np.arange(1, len(y) + 1)
        first = np.maximum(last - smooth, 0)
        y = (total[last] - total[first]) / (last - first)
    # Of equal ones np.unique finds the first, hence from behind.
    places, index = np.unique(x[::-1], return_index=True)
    return places.astype(float), y[::-1][index]


def first_place(aligned: Aligned) -> Aligned:
    """Only what there was at the first place, as before the first step."""
    note = f"{aligned.note.partition(',')[0]}, at {aligned.x[0]:,.0f}"
    return Aligned(aligned.x[:1], aligned.values[:1], note)


def reached_at(
    curves: Sequence[Curve],
    axis: str,
    middle_of: Callable[[np.ndarray], np.ndarray],
    threshold: float,
) -> float | None:
    """The first place where a group comes to ``threshold``, if there is one.

    Each run counts with the mean of three of its points, of one and the two before it,
    so that a lucky one does not decide.
    """
    aligned = align(curves, axis, _NUM_REACHED)
    places = [_increasing(curve, axis, 1)[0][:_NUM_REACHED] for curve in curves]
    begin = min(max(x[-1] for x in places), aligned.x[-1])
    is_there = (middle_of(aligned.values) >= threshold) & (aligned.x >= begin)
    return float(aligned.x[is_there.argmax()]) if is_there.any() else None


def finite_curves(group: Group, tag: str, notes: list[str]) -> list[Curve]:
    """The curves of the runs that have one, each up to the end of its run.

    A line is added to ``notes`` if some have none.
    """
    found = [_to_the_end(run.curves, tag) for run in group.runs if tag in run.curves]
    finite = [curve for curve in found if np.isfinite(curve.values).any()]
    if missing := len(group.runs) - len(finite):
        of = f"{missing} of {len(group.runs)} runs of {group.label}"
        notes.append(f"{of} have no {tag}.")
    return finite


def _to_the_end(curves: Curves, tag: str) -> Curve:
    """With the return at the end of the run, which may be after the last summary."""
    curve = curves[tag]
    end = [curves.record.get(name) for name in _END]
    is_known = all(isinstance(value, int | float) for value in end)
    if tag not in _RETURNS_IN_TRAINING or not is_known:
        return curve
    point = Curve(*map(np.array, end))
    if point.iterations <= curve.iterations[-1]:
        return curve
    return Curve(*(np.append(*both) for both in zip(curve, point, strict=True)))
