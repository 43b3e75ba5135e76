"""Curves of groups of runs: a table of where they end, and pictures."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl.flags import FlagValues

from alf_lite.checkpoints.files import new_output
from alf_lite.errors import ConfigError, DataError
from alf_lite.tools import pictures

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

    from alf_lite.tools.run_groups import Aligned, Group

_PANEL_SIZE = 6.4, 3.8  # inches
_PANELS_PER_ROW = 2
_ROOM = 1.05  # on the right of a point


class Line(NamedTuple):
    """A group in a panel."""

    group: Group
    aligned: Aligned
    middle: np.ndarray  # [P]
    low: np.ndarray  # [P], of the band
    high: np.ndarray  # [P]
    reached: float | None  # where it comes to the threshold


class Panel(NamedTuple):
    """The groups of an environment."""

    environment: str
    tag: str
    lines: list[Line]


def plot(values: FlagValues) -> int:
    """Draws what the flags say; returns the exit code."""
    tables, drawn = pictures.tables_and_pictures(values.output)

    # Imported here: it takes a second or two, which a misspelt flag need not wait for.
    from alf_lite.tools import run_groups

    runs, notes = run_groups.read_runs(values.run)
    groups = run_groups.group_runs(runs, values.group_by)
    for label in values.flat:
        if label not in {group.label for group in groups}:
            raise ConfigError(
                f"--flat={label}: no group is called so, give it as LABEL=PATH"
            )
    axis = {"steps": "env_steps", "time": "seconds"}.get(values.x, values.x)
    panels = []
    for tag in values.tag or [None]:
        chosen = run_groups.choose_tag(runs, tag)
        panels += _panels(groups, chosen, axis, values, notes)
    for panel in panels:
        print("\n".join(_panel_lines(panel, run_groups.AXES[axis], values)))
    for note in notes:
        print(f"note: {note}")
    for file in tables:
        _write_table(file, panels, axis)
    for file in drawn:
        _draw(file, panels, run_groups.AXES[axis], values)
    print(f"Written:  {', '.join(values.output)}")
    return 0


def _panels(
    groups: Sequence[Group], tag: str, axis: str, values: Any, notes: list[str]
) -> list[Panel]:
    from alf_lite.tools import run_groups
    from alf_lite.utils import statistics

    middle_of = {
        "mean": statistics.mean,
        "iqm": statistics.interquartile_mean,
    }[values.statistic]
    panels: dict[str, Panel] = {}
    for group in groups:
        curves = run_groups.finite_curves(group, tag, notes)
        if not curves:
            continue
        aligned = run_groups.align(curves, axis, values.smooth)
        reached = None
        if group.label in values.flat:
            aligned = run_groups.first_place(aligned)
        elif values.threshold is not None:
            reached = run_groups.reached_at(curves, axis, middle_of, values.threshold)
        middle = low = high = middle_of(aligned.values)
        if len(curves) > 1:
            low, high = statistics.bootstrap_interval(middle_of, aligned.values)
        panel = panels.setdefault(group.environment, Panel(group.environment, tag, []))
        panel.lines.append(Line(group, aligned, middle, low, high, reached))
    if not panels:
        raise DataError(f"no run has a finite number for {tag!r}")
    return list(panels.values())


# The table


def _panel_lines(panel: Panel, axis_name: str, values: Any) -> list[str]:
    """A line per group: how good it is at its end, and what was drawn."""
    statistic = {"mean": "mean", "iqm": "IQM"}[values.statistic]
    width = max(len(line.group.label) for line in panel.lines)
    lines = [f"{panel.environment}: {panel.tag} over {axis_name}"]
    for line in panel.lines:
        text = f"  {line.group.label:<{width}}  {statistic} {line.middle[-1]:.4g}"
        if line.aligned.values.shape[1] > 1:
            text += f" [{line.low[-1]:.4g}, {line.high[-1]:.4g}]"
        if values.threshold is not None and line.group.label not in values.flat:
            text += f", {values.threshold:g} " + (
                "never" if line.reached is None else f"at {line.reached:,.0f}"
            )
        lines.append(f"{text}; {line.aligned.note}")
    return lines


def _write_table(file: str, panels: Iterable[Panel], axis: str) -> None:
    rows = [
        (panel.environment, line.group.label, panel.tag, *numbers)
        for panel in panels
        for line in panel.lines
        for numbers in zip(
            line.aligned.x,
            line.middle,
            line.low,
            line.high,
            [line.aligned.values.shape[1]] * len(line.middle),
            strict=True,
        )
    ]
    header = ("environment", "group", "tag", axis, "value", "low", "high", "runs")
    write_csv(file, header, rows)


def write_csv(
    file: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Writes a table, in which None is nothing.

    Raises:
        ConfigError: if the file cannot be written.
    """
    with (
        new_output(file, replace_file=True) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as opened,
    ):
        csv.writer(opened).writerows([header, *rows])


# The picture


def _draw(file: str, panels: Sequence[Panel], axis_name: str, values: Any) -> None:
    columns = min(len(panels), _PANELS_PER_ROW)
    rows = -(-len(panels) // columns)
    # A group has one colour in all panels.
    labels = dict.fromkeys(line.group.label for p in panels for line in p.lines)
    styles = {label: pictures.line_style(i) for i, label in enumerate(labels)}
    with pictures.picture(file, rows, columns, _PANEL_SIZE) as (figure, all_axes):
        for axes, panel in zip(all_axes, panels, strict=False):
            _draw_panel(axes, panel, styles, values)
            axes.set_xlabel(axis_name)
            axes.set_title(panel.environment)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        if values.title is not None:
            figure.suptitle(values.title)
        if len(labels) > 1:
            pictures.legend(figure, styles)


def _draw_panel(axes: Axes, panel: Panel, styles: dict[str, Any], values: Any) -> None:
    from alf_lite.tools.run_groups import RETURNS

    points = [line.aligned.x[-1] for line in panel.lines if _is_point(line, values)]
    ends = [line.aligned.x[-1] for line in panel.lines if not line.aligned.is_flat]
    end = values.end or max([*ends, *(_ROOM * x for x in points)], default=1.0)
    for line in panel.lines:
        style = styles[line.group.label]
        if _is_point(line, values):
            _draw_ends(axes, line, style["color"])
        else:
            _draw_line(axes, line, style, end, show_runs=values.show_runs)
    axes.set_ylabel(RETURNS.get(panel.tag, panel.tag))
    pictures.short_numbers(axes.xaxis)
    axes.set_xlim(0, end)
    axes.margins(y=0.05)
    if values.bottom is not None:
        axes.set_ylim(bottom=values.bottom)


def _draw_line(
    axes: Axes, line: Line, style: dict[str, Any], end: float, *, show_runs: bool
) -> None:
    x, all_runs = line.aligned.x, line.aligned.values
    middle, low, high = line.middle, line.low, line.high
    if line.aligned.is_flat:  # without a step, as good everywhere
        x = line.aligned.x.repeat(2)
        x[:] = 0.0, end
        middle, low, high = (edge.repeat(2) for edge in (middle, low, high))
        all_runs = all_runs.repeat(2, axis=0)
        style = style | {"linestyle": "--"}
    colour = style["color"]
    axes.fill_between(x, low, high, color=colour, alpha=pictures.BAND_ALPHA, lw=0)
    if show_runs:
        axes.plot(x, all_runs, color=colour, linewidth=0.6, alpha=0.5)
    axes.plot(x, middle, **style)


def _is_point(line: Line, values: Any) -> bool:
    """Whether its curves have no stretch in common, and did take steps."""
    aligned = line.aligned
    is_told_flat = line.group.label in values.flat
    return aligned.is_flat and aligned.x[0] > 0 and not is_told_flat


def _draw_ends(axes: Axes, line: Line, colour: str) -> None:
    """Of curves that have no stretch in common."""
    errors = [line.middle - line.low, line.high - line.middle]
    axes.errorbar(line.aligned.x, line.middle, errors, color=colour, marker="o")
