"""Draws curves of runs: ``python -m alf_lite.bin.plot runs``."""

from __future__ import annotations

from alf_lite.bin.program import Flag, Program
from alf_lite.tools.curve_pictures import plot

GROUPING = Flag(
    "group_by",
    "Which runs are a group: auto (all settings but the seed are the same), "
    "conf, environment, algorithm, folder, run, or a setting such as "
    "PPOAlgorithm.gamma.",
    default="auto",
)

FLAGS = (
    Flag(
        "run",
        "What to draw, with or without --run=: runs, folders of runs, patterns in "
        "quotes ('runs/*/seed?'). LABEL=PATH gives a group its name.",
        default=[],
        required="what should be drawn?",
    ),
    Flag(
        "output",
        "Files to write: .png, .svg or .pdf for the picture, .csv for its numbers.",
        default=["curves.png"],
    ),
    Flag(
        "tag",
        "What to draw, a name of docs/logged_metrics.md; each gets a panel. "
        "Default: the return of the evaluations, else of the training episodes.",
        default=[],
    ),
    GROUPING,
    Flag(
        "x",
        "The horizontal axis: environment steps, gradient updates, iterations, "
        "seconds of training.",
        default="steps",
        choices=["steps", "updates", "iterations", "time"],
    ),
    Flag(
        "statistic",
        "Of the runs of a group: their mean, or the mean of the middle half of "
        "them. The band is its 95 % bootstrap interval.",
        default="mean",
        choices=["mean", "iqm"],
    ),
    Flag(
        "smooth",
        "Draw the mean of so many points of each run: of one and those before it.",
        default=1,
        low=1,
    ),
    Flag(
        "threshold",
        "Tell where each group comes to this value, as the mean of three points.",
        kind=float,
    ),
    Flag(
        "flat",
        "A LABEL whose group is a horizontal line: what it had at its first place, "
        "such as after training offline and before the first step.",
        default=[],
    ),
    Flag("title", "Above the picture."),
    Flag("show_runs", "Draw every run as a thin line, too.", default=False),
    Flag("bottom", "Lowest value shown.", kind=float),
    Flag("end", "Last place shown.", kind=float, low=1e-9),
)


PROGRAM = Program(
    name="plot",
    summary="Draws curves of runs: means over seeds, with their uncertainty.",
    examples=(
        "runs                                  # all runs in a folder",
        "'runs/ppo*' runs/sac --x=time --output=curves.svg --output=curves.csv",
        "runs --group_by=PPOAlgorithm.gamma --statistic=iqm --smooth=5",
        "'online=runs/sac/*' 'hybrid=runs/hybrid/*' --threshold=-200",
        "runs --tag=PPOAlgorithm/loss/entropy --tag=charts/episodic_return",
    ),
    flags=FLAGS,
    run=plot,
    operand="run",
    prints_result=True,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
