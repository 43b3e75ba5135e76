"""Checks checkpoints: ``python -m alf_lite.bin.verify_checkpoint runs/ppo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from alf_lite.bin import program
from alf_lite.tools.checkpoint_report import verify_checkpoint


def define_flags() -> flags.FlagValues:
    """The flags and their defaults."""
    values = flags.FlagValues()
    flags.DEFINE_multi_string(
        "path",
        [],
        "What to check, with or without --path=: a run, or one checkpoint of it.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "root_dir",
        None,
        "Directory of a run, as for train and play.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "json",
        False,
        "Print one JSON object as the last line: num_valid, num_invalid, checkpoints.",
        flag_values=values,
    )
    return values


PROGRAM = program.Program(
    name="verify_checkpoint",
    summary="Tells what checkpoints hold, and whether they can be used.",
    examples=(
        "runs/ppo                            # all checkpoints of a run",
        "runs/ppo/checkpoints/ckpt-392",
        "--root_dir=runs/ppo --json | tail -n 1",
    ),
    define_flags=define_flags,
    run=verify_checkpoint,
    operand="path",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return program.main(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
