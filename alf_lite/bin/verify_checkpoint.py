"""Checks checkpoints: ``python -m alf_lite.bin.verify_checkpoint runs/ppo``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from alf_lite.bin import program
from alf_lite.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from alf_lite.trainers.checkpoint_report import CheckpointReport


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


def verify_checkpoint(values: flags.FlagValues) -> int:
    """Checks what the flags say; returns the exit code."""
    places = [*values.path, *([values.root_dir] if values.root_dir else [])]
    if not places:
        raise ConfigError(
            "no PATH is given: which run or checkpoint should be checked?"
        )

    # Imported here: it takes a second or two, which a misspelt flag need not wait for.
    from alf_lite.trainers.checkpoint_report import examine, find_checkpoints

    reports = []
    for place in places:
        found = map(examine, find_checkpoints(Path(place).expanduser()))
        reports += [report for report in found if report is not None]
    if not reports:
        raise CheckpointError(f"the checkpoints of {places[0]} were deleted meanwhile")
    print("\n".join(_details(reports[-1]) if len(reports) == 1 else _table(reports)))
    invalid = [report for report in reports if report.problem is not None]
    if values.json:
        result = {
            "num_valid": len(reports) - len(invalid),
            "num_invalid": len(invalid),
            "checkpoints": [_as_json(report) for report in reports],
        }
        print(json.dumps(result))
    return CheckpointError.exit_code if invalid else 0


def _details(report: CheckpointReport) -> list[str]:
    """All that is known of one checkpoint."""
    rows = [
        ("algorithm", report.algorithm),
        ("iteration", report.step),
        ("environment steps", report.env_steps),
        ("parameters", report.num_parameters),
        ("stored steps", report.num_stored_steps),
        ("resumable", _yes_or_no(report.resumable)),
        ("best score", report.best_score),
        ("written", report.written),
        ("by", _versions(report)),
        ("size", _size(report.num_bytes)),
    ]
    width = max(len(name) for name, _ in rows) + 2
    lines = [str(report.path)]
    lines += [f"  {n:<{width}}{value}" for n, value in rows if value not in (None, "")]
    for title, entries in (
        ("specs", report.specs or {}),
        ("files", {n: _size(size) for n, size in (report.files or {}).items()}),
    ):
        name_width = max(map(len, entries), default=0)
        lines += [f"  {title}:"] if entries else []
        lines += [f"    {name:<{name_width}}  {entries[name]}" for name in entries]
    return [*lines, f"  {_verdict(report)}"]


def _table(reports: Sequence[CheckpointReport]) -> list[str]:
    """One line for each checkpoint, then what is wrong with some."""
    rows = [
        (
            "checkpoint",
            "algorithm",
            "env steps",
            "parameters",
            "best score",
            "resumable",
            "size",
            "written",
            "check",
        )
    ]
    rows += [
        (
            report.path.name,
            report.algorithm or "-",
            _or_dash(report.env_steps),
            _or_dash(report.num_parameters),
            _or_dash(report.best_score),
            _yes_or_no(report.resumable) or "-",
            _size(report.num_bytes),
            report.written or "-",
            "good" if report.problem is None else "REFUSED",
        )
        for report in reports
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    problems = [_verdict(report) for report in reports if report.problem is not None]
    return [*lines, *problems]


def _verdict(report: CheckpointReport) -> str:
    if report.problem is None:
        return (
            "good: sizes and hashes are right, all parts can be loaded and are finite"
        )
    return f"REFUSED: {report.problem}"


def _versions(report: CheckpointReport) -> str:
    found = {"alf_lite": report.alf_lite, "torch": report.torch}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no: only to be played"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}" if value % 1 else f"{value:.0f}"


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} bytes"


def _as_json(report: CheckpointReport) -> dict[str, Any]:
    return {
        **report._asdict(),
        "path": str(report.path),
        "num_bytes": report.num_bytes,
        "is_valid": report.problem is None,
    }


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
