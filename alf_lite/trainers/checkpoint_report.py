"""What a checkpoint holds, and whether it is what was written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from alf_lite.checkpoints import data as checkpoint_data
from alf_lite.checkpoints.checkpointer import LoadedCheckpoint
from alf_lite.checkpoints.module_state import check_is_state_dict, non_finite_entries
from alf_lite.errors import CheckpointError
from alf_lite.replay_buffers.replay_file import FILE_NAME, ReplayFile
from alf_lite.trainers import training_state

_MAX_LISTED = 5


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


def find_checkpoints(place: Path) -> list[Path]:
    """The checkpoints at a place, oldest first.

    Args:
        place: of a run, of its checkpoints, or one checkpoint.

    Raises:
        CheckpointError: if there is none, or nothing can be read.
    """
    if checkpoint_data.NAME.fullmatch(place.name) and place.is_dir():
        return [place]
    for directory in (place / "checkpoints", place):
        try:
            entries = list(directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise CheckpointError(
                f"{directory}: cannot be read ({error.strerror})"
            ) from error
        found = [(checkpoint_data.NAME.fullmatch(p.name), p) for p in entries]
        paths = sorted((int(match[1]), path) for match, path in found if match)
        if paths:
            return [path for _, path in paths]
    raise CheckpointError(
        f"no checkpoint at {place}: expected a run, its checkpoints, or one ckpt-<step>"
    )


def examine(path: Path) -> CheckpointReport | None:
    """Reads all of a checkpoint; None if its run has deleted it meanwhile."""
    identity = _identity(path)
    while True:
        report = _examine(path)
        before, identity = identity, _identity(path)
        if identity is None:
            return None
        if report.problem is None or identity == before:
            return report


def _identity(path: Path) -> int | None:
    """Tells whether it is replaced by another of the same name."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _examine(path: Path) -> CheckpointReport:
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
        if info.resumable:
            training_state.check_parts(loaded)
        if FILE_NAME in loaded.mapped_files:
            file = ReplayFile(loaded.mapped_files[FILE_NAME], verify=False)
            report = report._replace(num_stored_steps=len(file.rows))
    except CheckpointError as error:
        return report._replace(problem=str(error))
    return report


def _check_parameters(loaded: LoadedCheckpoint) -> int:
    """How many numbers are trained; CheckpointError if one is not finite."""
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
