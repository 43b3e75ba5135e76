"""Compares groups of runs: ``python -m alf_lite.bin.compare runs/ppo runs/sac``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from alf_lite.bin import program
from alf_lite.bin.plot import define_grouping
from alf_lite.tools.comparison import compare


def define_flags() -> flags.FlagValues:
    """The flags and their defaults."""
    values = flags.FlagValues()
    flags.DEFINE_multi_string(
        "run",
        [],
        "What to compare, with or without --run=: runs, folders of runs, patterns in "
        "quotes ('runs/*/seed?'). LABEL=PATH gives a group its name.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "output",
        [],
        "Files to write: .png, .svg or .pdf for the picture, .csv for the scores.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "tag",
        None,
        "The score, a name of docs/logged_metrics.md. Default: the return of the "
        "evaluations, else of the training episodes.",
        flag_values=values,
    )
    define_grouping(values)
    flags.DEFINE_integer(
        "last",
        1,
        "The score of a run is the mean of so many of its last points.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "range",
        [],
        "What is 0 and what is 1 in an environment: CartPole-v1=0:500. Default, where "
        "there are several environments: the lowest and the highest score in it.",
        flag_values=values,
    )
    return values


PROGRAM = program.Program(
    name="compare",
    summary="Compares groups of runs: scores, profiles, probability of improvement.",
    examples=(
        "runs                                  # all runs in a folder",
        "'ours=runs/new/*' 'before=runs/old/*' --output=compare.png",
        "runs --group_by=conf --last=3 --output=scores.csv",
        "runs --range=CartPole-v1=0:500 --range=Pendulum-v1=-1500:-150",
    ),
    define_flags=define_flags,
    run=compare,
    operand="run",
    prints_result=True,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return program.main(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
