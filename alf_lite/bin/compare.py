"""Compares groups of runs: ``python -m alf_lite.bin.compare runs/ppo runs/sac``."""

from __future__ import annotations

from alf_lite.bin.plot import GROUPING
from alf_lite.bin.program import Flag, Program
from alf_lite.tools.comparison import compare

FLAGS = (
    Flag(
        "run",
        "What to compare, with or without --run=: runs, folders of runs, patterns "
        "in quotes ('runs/*/seed?'). LABEL=PATH gives a group its name.",
        default=[],
        required="what should be compared?",
    ),
    Flag(
        "output",
        "Files to write: .png, .svg or .pdf for the picture, .csv for the scores.",
        default=[],
    ),
    Flag(
        "tag",
        "The score, a name of docs/logged_metrics.md. Default: the return of the "
        "evaluations, else of the training episodes.",
    ),
    GROUPING,
    Flag(
        "last",
        "The score of a run is the mean of so many of its last points.",
        default=1,
        low=1,
    ),
    Flag(
        "range",
        "What is 0 and what is 1 in an environment: CartPole-v1=0:500. Default, "
        "where there are several environments: the lowest and the highest score in "
        "it.",
        default=[],
    ),
)


PROGRAM = Program(
    name="compare",
    summary="Compares groups of runs: scores, profiles, probability of improvement.",
    examples=(
        "runs                                  # all runs in a folder",
        "'ours=runs/new/*' 'before=runs/old/*' --output=compare.png",
        "runs --group_by=conf --last=3 --output=scores.csv",
        "runs --range=CartPole-v1=0:500 --range=Pendulum-v1=-1500:-150",
    ),
    flags=FLAGS,
    run=compare,
    operand="run",
    prints_result=True,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
