"""Draws curves of runs: ``python -m alf_lite.bin.plot runs``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from alf_lite.bin import program
from alf_lite.tools.curve_pictures import plot


def define_flags() -> flags.FlagValues:
    """The flags and their defaults."""
    values = flags.FlagValues()
    flags.DEFINE_multi_string(
        "run",
        [],
        "What to draw, with or without --run=: runs, folders of runs, patterns in "
        "quotes ('runs/*/seed?'). LABEL=PATH gives a group its name.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "output",
        ["curves.png"],
        "Files to write: .png, .svg or .pdf for the picture, .csv for its numbers.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "tag",
        [],
        "What to draw, a name of docs/logged_metrics.md; each gets a panel. Default: "
        "the return of the evaluations, else of the training episodes.",
        flag_values=values,
    )
    define_grouping(values)
    flags.DEFINE_enum(
        "x",
        "steps",
        ["steps", "updates", "iterations", "time"],
        "The horizontal axis: environment steps, gradient updates, iterations, seconds "
        "of training.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "statistic",
        "mean",
        ["mean", "iqm"],
        "Of the runs of a group: their mean, or the mean of the middle half of them. "
        "The band is its 95 % bootstrap interval.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "smooth",
        1,
        "Draw the mean of so many points of each run: of one and those before it.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_float(
        "threshold",
        None,
        "Tell where each group comes to this value, as the mean of three points.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "flat",
        [],
        "A LABEL whose group is a horizontal line: what it had at its first place, "
        "such as after training offline and before the first step.",
        flag_values=values,
    )
    flags.DEFINE_string("title", None, "Above the picture.", flag_values=values)
    flags.DEFINE_bool(
        "show_runs", False, "Draw every run as a thin line, too.", flag_values=values
    )
    flags.DEFINE_float("bottom", None, "Lowest value shown.", flag_values=values)
    flags.DEFINE_float("end", None, "Last place shown.", flag_values=values)
    return values


def define_grouping(values: flags.FlagValues) -> None:
    """How runs become groups, for all programs that compare some."""
    flags.DEFINE_string(
        "group_by",
        "auto",
        "Which runs are a group: auto (all settings but the seed are the same), conf, "
        "environment, algorithm, folder, run, or a setting such as PPOAlgorithm.gamma.",
        flag_values=values,
    )


PROGRAM = program.Program(
    name="plot",
    summary="Draws curves of runs: means over seeds, with their uncertainty.",
    examples=(
        "runs                                  # all runs in a folder",
        "'runs/ppo*' runs/sac --x=time --output=curves.svg --output=curves.csv",
        "runs --group_by=PPOAlgorithm.gamma --statistic=iqm --smooth=5",
        "'online=runs/sac/*' 'hybrid=runs/hybrid/*' --threshold=-200",
        "runs --tag=PPOAlgorithm/loss/entropy --tag=charts/episodic_return",
    ),
    define_flags=define_flags,
    run=plot,
    operand="run",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return program.main(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
