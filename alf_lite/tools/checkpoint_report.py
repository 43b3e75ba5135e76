"""What a checkpoint holds, and whether it can be used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl.flags import FlagValues

from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.tools.text_tables import aligned

if TYPE_CHECKING:
    from alf_lite.checkpoints.checkpointer import LoadedCheckpoint

_MAX_LISTED = 5

# What is imported inside the functions takes a second or two, which --help and a
# misspelt flag need not wait for.


class CheckpointReport(NamedTuple):
    """What is known of one checkpoint; None where nothing can be known."""

    path: Path
    problem: str | None  # why it cannot be used; None if it can
    step: int
    algorithm: str | None = None
    specs: dict[str, str] | None = None  # path -> shape, dtype and bounds
    env_steps: int | None = None
    num_parameters: int | None = None
    num_stored_steps: int | None = None  # in its replay buffer, if it has one
    files: dict[str, int] | None = None  # name -> bytes
    written: str | None = None  # when
    alf_lite: str | None = None  # the version that wrote it
    torch: str | None = None
    resumable: bool | None = None
    best_score: float | None = None  # if it was the best when it was written

    @property
    def num_bytes(self) -> int:
        return sum((self.files or {}).values())


def verify_checkpoint(values: FlagValues) -> int:
    """Checks what the flags say; returns the exit code."""
    places = [*values.path, *([values.root_dir] if values.root_dir else [])]
    if not places:
        raise ConfigError(
            "no PATH is given: which run or checkpoint should be checked?"
        )

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


# What is known of a checkpoint


def find_checkpoints(place: Path) -> list[Path]:
    """The checkpoints at a place, oldest first.

    Args:
        place: of a run, of its checkpoints, or one checkpoint.

    Raises:
        CheckpointError: if there is none, or nothing can be read.
    """
    from alf_lite.checkpoints.checkpointer import Checkpointer
    from alf_lite.checkpoints.data import NAME

    if NAME.fullmatch(place.name) and place.is_dir():
        return [place]
    for directory in (place / "checkpoints", place):
        if paths := Checkpointer(directory, read_only=True).paths():
            return [path for _, path in paths]
    raise CheckpointError(
        f"no checkpoint at {place}: expected a run, its checkpoints, or one ckpt-<step>"
    )


def examine(path: Path) -> CheckpointReport | None:
    """Reads all of a checkpoint; None if its run has deleted it meanwhile."""
    from alf_lite.checkpoints.checkpointer import identity_of

    identity = identity_of(path)
    while True:
        report = _examine(path)
        before, identity = identity, identity_of(path)
        if identity is None:
            return None
        if report.problem is None or identity == before:
            return report


def _examine(path: Path, *, is_of_run: bool = True) -> CheckpointReport:
    """What there is; of the other ranks of a run it has less."""
    from alf_lite.checkpoints import data as checkpoint_data
    from alf_lite.replay_buffers.replay_file import FILE_NAME, ReplayFile
    from alf_lite.runs import training_state

    step = int(path.name.removeprefix("ckpt-"))
    report = CheckpointReport(path, None, step)
    try:
        info = checkpoint_data.read_info(path)
        manifest, metadata = info.manifest, info.manifest.get("metadata", {})
        report = report._replace(
            algorithm=_text(metadata.get("algorithm")),
            specs=_texts(metadata.get("specs")),
            env_steps=_count(metadata.get("env_steps")),
            files={name: entry["bytes"] for name, entry in manifest["files"].items()},
            written=_text(manifest.get("written")),
            alf_lite=_text(manifest.get("alf_lite")),
            torch=_text(manifest.get("torch")),
            resumable=info.resumable,
            best_score=info.best_score,
        )
        loaded = checkpoint_data.read(path, None, resumable=False)
        assert loaded is not None
        if training_state.ALGORITHM in loaded.state:
            report = report._replace(num_parameters=_check_parameters(loaded))
        if info.resumable and is_of_run:
            training_state.check_parts(loaded)
        if FILE_NAME in loaded.mapped_files:
            file = ReplayFile(loaded.mapped_files[FILE_NAME], verify=False)
            report = report._replace(num_stored_steps=len(file.rows))
        if info.resumable and is_of_run:
            for part in checkpoint_data.parts_of_other_ranks(path):
                report = _with_part(report, _examine(part, is_of_run=False))
    except CheckpointError as error:
        return report._replace(problem=str(error))
    return report


def _with_part(report: CheckpointReport, part: CheckpointReport) -> CheckpointReport:
    """With what another rank of the run has written of it.

    Raises:
        CheckpointError: if that cannot be used.
    """
    if part.problem is not None:
        raise CheckpointError(f"the part of another rank: {part.problem}")
    counts = [c for c in (report.num_stored_steps, part.num_stored_steps) if c]
    names = "/".join(part.path.parts[-4:-2])
    files = {f"{names}/{name}": size for name, size in (part.files or {}).items()}
    return report._replace(
        num_stored_steps=sum(counts) if counts else report.num_stored_steps,
        files={**(report.files or {}), **files},
    )


def _check_parameters(loaded: LoadedCheckpoint) -> int:
    """How many numbers are trained; CheckpointError if one is not finite."""
    from torch import Tensor

    from alf_lite.checkpoints.data import (
        check_is_state_dict,
        non_finite_entries,
    )
    from alf_lite.runs import training_state

    entries: Any = loaded.state[training_state.ALGORITHM]
    what = f"{loaded.path / training_state.ALGORITHM}.pt"
    check_is_state_dict(entries, what)
    buffers = loaded.metadata.get("buffers")
    others = set(buffers) if isinstance(buffers, list) else set()
    parameters = {
        name: tensor
        for name, tensor in entries.items()
        if isinstance(tensor, Tensor) and name not in others
    }
    bad = non_finite_entries(parameters)
    if bad:
        raise CheckpointError(
            f"{what}: {len(bad)} entries are NaN or infinite: "
            f"{', '.join(bad[:_MAX_LISTED])}"
        )
    return sum(tensor.numel() for tensor in parameters.values())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> dict[str, str] | None:
    if not isinstance(value, Mapping):
        return None
    return {str(name): str(text) for name, text in value.items()}


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


# How it is told


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
    problems = [_verdict(report) for report in reports if report.problem is not None]
    return [*aligned(rows), *problems]


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
