"""Checks checkpoints: ``python -m alf_lite.bin.verify_checkpoint runs/ppo``."""

from __future__ import annotations

from alf_lite.bin.program import Flag, Program
from alf_lite.tools.checkpoint_report import verify_checkpoint

FLAGS = (
    Flag(
        "path",
        "What to check, with or without --path=: a run, or one checkpoint of it.",
        default=[],
    ),
    Flag("root_dir", "Directory of a run, as for train and play."),
    Flag(
        "json",
        "Print one JSON object as the last line: num_valid, num_invalid, checkpoints.",
        default=False,
    ),
)


PROGRAM = Program(
    name="verify_checkpoint",
    summary="Tells what checkpoints hold, and whether they can be used.",
    examples=(
        "runs/ppo                            # all checkpoints of a run",
        "runs/ppo/checkpoints/ckpt-392",
        "--root_dir=runs/ppo --json | tail -n 1",
    ),
    flags=FLAGS,
    run=verify_checkpoint,
    operand="path",
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
