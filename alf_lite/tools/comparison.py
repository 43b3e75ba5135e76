"""Compares groups of runs: scores with their uncertainty, and who is better."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl.flags import FlagValues

from alf_lite.errors import ConfigError, DataError
from alf_lite.tools import pictures
from alf_lite.tools.curve_pictures import write_csv
from alf_lite.tools.text_tables import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from alf_lite.tools.run_groups import Group

_PANEL_SIZE = 4.6, 3.8  # inches
_MAX_PAIRS = 15  # in the picture
_MAX_LETTERS = 28  # of a group, there
_NUM_THRESHOLDS = 101  # of a performance profile


class Scores(NamedTuple):
    """Of a group of runs in every environment: the score of each run."""

    label: str
    raw: dict[str, np.ndarray]  # environment -> [S]
    scaled: dict[str, np.ndarray]  # the same on the common scale


class IntervalEstimate(NamedTuple):
    """A number, and its 95 % interval if it is known."""

    value: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.value:.4g}"
        low, high = self.interval
        return f"{self.value:.4g} [{low:.4g}, {high:.4g}]"


def compare(values: FlagValues) -> int:
    """Compares what the flags say; returns the exit code."""
    ranges = dict(_parse_range(text) for text in values.range)
    tables, drawn = pictures.tables_and_pictures(values.output)

    # Imported here: it takes a second or two, which a misspelt flag need not wait for.
    from alf_lite.tools import run_groups

    runs, notes = run_groups.read_runs(values.run)
    groups = run_groups.group_runs(runs, values.group_by)
    tag = run_groups.choose_tag(runs, values.tag)
    scores = scale(_scores(groups, tag, values.last, notes), ranges, notes)
    of = "the last point" if values.last == 1 else f"the last {values.last} points"
    pairs = improvements(scores)
    lines = [f"Score: {tag}, {of} of each run"]
    lines += [*_score_lines(scores), *_pair_lines(pairs)]
    print("\n".join([*lines, *(f"note: {note}" for note in notes)]))
    for file in tables:
        rows = [
            (s.label, environment, score, scaled)
            for s in scores
            for environment in s.raw
            for score, scaled in zip(
                s.raw[environment], s.scaled[environment], strict=True
            )
        ]
        write_csv(file, ("group", "environment", "score", "scaled"), rows)
    for file in drawn:
        draw(file, scores, pairs, tag)
    if values.output:
        print(f"Written:  {', '.join(values.output)}")
    return 0


def _parse_range(text: str) -> tuple[str, tuple[float, float]]:
    environment, _, ends = text.rpartition("=")
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        low = high = 0.0
    if not environment or not low < high:
        raise ConfigError(f"--range: expected NAME=LOW:HIGH, got {text!r}")
    return environment, (low, high)


# Scores


def _scores(
    groups: Sequence[Group], tag: str, last: int, notes: list[str]
) -> list[Scores]:
    """Of each label in all its environments; not on a common scale yet."""
    from alf_lite.tools import run_groups

    found: dict[str, dict[str, np.ndarray]] = {}
    steps_in: dict[str, list[int]] = {}  # environment -> at the ends of all runs
    for group in groups:
        curves = run_groups.finite_curves(group, tag, notes)
        if curves:
            ends = [c.values[np.isfinite(c.values)][-last:].mean() for c in curves]
            found.setdefault(group.label, {})[group.environment] = np.array(ends)
            unknown = sum(not np.isfinite(c.values[-last:]).all() for c in curves)
            if unknown:
                notes.append(
                    f"{unknown} of {len(curves)} runs of {group.label} end with NaN: "
                    "earlier points count in its place."
                )
            steps_in.setdefault(group.environment, []).extend(
                int(c.env_steps[-1]) for c in curves
            )
    if not found:
        raise DataError(f"no run has a finite number for {tag!r}")
    for environment, steps in steps_in.items():
        if max(steps) > 1.1 * min(steps):
            notes.append(
                f"The runs in {environment} end between {min(steps):,} and "
                f"{max(steps):,} environment steps."
            )
    return [Scores(label, raw, dict(raw)) for label, raw in found.items()]


def scale(
    scores: Sequence[Scores],
    ranges: dict[str, tuple[float, float]],
    notes: list[str],
) -> list[Scores]:
    """Puts the scores of all environments on one scale, if there are several.

    Args:
        scores: as they were logged.
        ranges: environment -> scores that become 0 and 1; the lowest and the highest
            there by default.
        notes: what was done is added.

    Raises:
        ConfigError: for a range of an environment that there is not.
    """
    environments = list(dict.fromkeys(name for s in scores for name in s.raw))
    unknown = set(ranges) - set(environments)
    if unknown:
        raise ConfigError(
            f"--range={unknown.pop()}: the runs are in {', '.join(environments)}"
        )
    if len(environments) == 1 and not ranges:
        return list(scores)
    for name in environments:
        if name not in ranges:
            everything = np.concatenate([s.raw[name] for s in scores if name in s.raw])
            ranges[name] = float(everything.min()), float(everything.max())
        low, high = ranges[name]
        notes.append(f"{name}: {low:.4g} counts as 0 and {high:.4g} as 1.")
    missing = [s.label for s in scores if len(s.raw) < len(environments)]
    if missing:
        notes.append(f"Not in all environments: {', '.join(missing)}.")
    return [s._replace(scaled=_scaled(s.raw, ranges)) for s in scores]


def _scaled(
    raw: dict[str, np.ndarray], ranges: dict[str, tuple[float, float]]
) -> dict[str, np.ndarray]:
    scaled = {}
    for name, values in raw.items():
        low, high = ranges[name]
        scaled[name] = (values - low) / max(high - low, np.finfo(float).tiny)
    return scaled


def estimate(statistic: Any, *samples: np.ndarray) -> IntervalEstimate:
    """The number, with an interval if there are several values of each sample."""
    from alf_lite.utils.statistics import bootstrap_interval

    interval = None
    if all(len(values) > 1 for values in samples):
        low, high = bootstrap_interval(statistic, *samples)
        interval = float(low), float(high)
    return IntervalEstimate(float(statistic(*samples)), interval)


def pooled(statistic: Any) -> Any:
    """``statistic`` of all samples together, which are drawn from one by one."""
    return lambda *samples: statistic(np.concatenate(samples, axis=-1))


def optimality_gap(values: np.ndarray) -> np.ndarray:
    """Mean over the last dimension of what is missing to 1; more is not counted.

    Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice", arXiv:2108.13264.
    """
    return np.maximum(1.0 - values, 0.0).mean(axis=-1)


def _score_lines(scores: Sequence[Scores]) -> list[str]:
    """A table of means and interquartile means, per environment and of all."""
    from alf_lite.utils.statistics import interquartile_mean, mean

    def row(environment: str, label: str, *samples: np.ndarray) -> list[str]:
        values = np.concatenate(samples)
        of_both = (estimate(pooled(f), *samples) for f in (mean, interquartile_mean))
        ends = f"{values.min():.4g}", f"{values.max():.4g}"
        return [environment, label, str(len(values)), *map(str, of_both), *ends]

    environments = dict.fromkeys(name for s in scores for name in s.raw)
    cells = [["environment", "group", "runs", "mean", "IQM", "min", "max"]]
    for name in environments:
        cells += [row(name, s.label, s.raw[name]) for s in scores if name in s.raw]
    if len(environments) > 1:
        cells += [row("scaled", s.label, *s.scaled.values()) for s in scores]
    return aligned(cells)


class Improvement(NamedTuple):
    """How likely a run of one group is better than one of another."""

    better: str
    worse: str
    probability: IntervalEstimate  # the mean over the environments of both


def improvements(scores: Sequence[Scores]) -> list[Improvement]:
    """Of every pair of groups; the one with the higher mean comes first."""
    from alf_lite.utils.statistics import probability_of_improvement

    def middle(s: Scores) -> float:
        return float(np.mean([values.mean() for values in s.scaled.values()]))

    found = []
    for one, other in itertools.combinations(sorted(scores, key=middle)[::-1], 2):
        common = [name for name in one.scaled if name in other.scaled]
        if not common:
            continue
        samples = [s.scaled[name] for name in common for s in (one, other)]

        def over_environments(*drawn: np.ndarray) -> np.ndarray:
            pairs = zip(drawn[::2], drawn[1::2], strict=True)
            each = [probability_of_improvement(a, b) for a, b in pairs]
            return np.mean(each, axis=0)

        number = estimate(over_environments, *samples)
        found.append(Improvement(one.label, other.label, number))
    return found


def _pair_lines(pairs: Sequence[Improvement]) -> list[str]:
    if not pairs:
        return []
    cells = [
        (f"  {pair.better}", f"> {pair.worse}", str(pair.probability)) for pair in pairs
    ]
    return ["Probability that a run is better:", *aligned(cells)]


# The picture


def draw(
    file: str | Path, scores: Sequence[Scores], pairs: Sequence[Improvement], tag: str
) -> None:
    """Means and interquartile means, performance profiles, and who is better."""
    styles = {s.label: pictures.line_style(i) for i, s in enumerate(scores)}
    is_scaled = len({name for s in scores for name in s.raw}) > 1
    what = "scaled score" if is_scaled else tag
    num_panels = 3 if pairs else 2
    with pictures.picture(file, 1, num_panels, _PANEL_SIZE) as (figure, all_axes):
        _draw_scores(all_axes[0], scores, styles, what)
        _draw_profiles(all_axes[1], scores, styles, what)
        if pairs:
            _draw_pairs(all_axes[2], pairs[:_MAX_PAIRS], styles)
        pictures.legend(figure, styles)


def _draw_scores(
    axes: Axes, scores: Sequence[Scores], styles: dict[str, Any], what: str
) -> None:
    """Mean and interquartile mean of each group, and its runs."""
    from alf_lite.utils.statistics import interquartile_mean, mean

    for place, s in enumerate(scores):
        samples, colour = list(s.scaled.values()), styles[s.label]["color"]
        all_runs = np.concatenate(samples)
        axes.plot(all_runs, np.full(len(all_runs), place), "|", color=colour, alpha=0.6)
        for statistic, marker, above in (
            (mean, "o", 0.15),
            (interquartile_mean, "D", -0.15),
        ):
            number = estimate(pooled(statistic), *samples)
            low, high = number.interval or (number.value, number.value)
            axes.plot([low, high], [place - above] * 2, color=colour)
            axes.plot(number.value, place - above, marker, color=colour)
    axes.set_title("Mean (●) and IQM (◆), 95 %")
    axes.set_xlabel(what)
    axes.set_yticks([])
    axes.set_ylim(len(scores) - 0.5, -0.5)


def _draw_profiles(
    axes: Axes, scores: Sequence[Scores], styles: dict[str, Any], what: str
) -> None:
    """The share of the runs that are above a score."""
    from alf_lite.utils.statistics import bootstrap_interval

    everything = np.concatenate([v for s in scores for v in s.scaled.values()])
    margin = 0.02 * (np.ptp(everything) or 1.0)
    ends = everything.min() - margin, everything.max() + margin
    thresholds = np.linspace(*ends, _NUM_THRESHOLDS)

    def share_above(*samples: np.ndarray) -> np.ndarray:
        values = np.concatenate(samples, axis=-1)
        return (values[..., None, :] > thresholds[:, None]).mean(axis=-1)

    for s in scores:
        samples, style = list(s.scaled.values()), styles[s.label]
        axes.step(thresholds, share_above(*samples), where="post", **style)
        if all(len(values) > 1 for values in samples):
            low, high = bootstrap_interval(lambda *d: share_above(*d).T, *samples)
            axes.fill_between(
                thresholds,
                low,
                high,
                color=style["color"],
                step="post",
                alpha=pictures.BAND_ALPHA,
                lw=0,
            )
    axes.set_title("Performance profiles")
    axes.set_xlabel(f"{what} τ")
    axes.set_ylabel("share of runs above τ")
    axes.set_ylim(-0.02, 1.02)


def _draw_pairs(
    axes: Axes, pairs: Sequence[Improvement], styles: dict[str, Any]
) -> None:
    """The probabilities of improvement, each below the names of its two groups."""
    for place, (better, worse, number) in enumerate(pairs):
        low, high = number.interval or (number.value, number.value)
        colour = styles[better]["color"]
        axes.plot([low, high], [place + 0.15] * 2, color=colour)
        axes.plot(number.value, place + 0.15, "o", color=colour)
        names = f"{_shortened(better)} > {_shortened(worse)}"
        axes.text(0.0, place - 0.15, names, fontsize="small", color="#444444")
    axes.axvline(0.5, color="#888888", linewidth=0.8, linestyle="--")
    axes.set_title("Probability of improvement")
    axes.set_xlabel("P(a run of the first is better)")
    axes.set_xlim(-0.02, 1.02)
    axes.set_yticks([])
    axes.set_ylim(len(pairs) - 0.5, -0.5)


def _shortened(label: str) -> str:
    """Its end: there is what differs."""
    return label if len(label) <= _MAX_LETTERS else f"…{label[1 - _MAX_LETTERS :]}"
