"""The replay buffers of this library: of a run, of a checkpoint or in a file alone.

Agents stored what they saw and chose. Nothing is read before it is needed: the files
are mapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from alf_lite.datasets.source import Field, Sequence, Source, join_path
from alf_lite.datasets.torch_files import load_data
from alf_lite.errors import CheckpointError, DataError
from alf_lite.replay_buffers import buffer_state
from alf_lite.utils.checkpoint_data import NAME, read_info
from alf_lite.utils.checkpoint_files import MANIFEST_NAME
from alf_lite.utils.nest_paths import path_parts

_TRAINING = "training"
_OF_STEPS = (
    "step_type",
    "reward",
    "discount",
    "observation",
    "prev_action",
    "env_info",
)


class ReplayCheckpoint(Source):
    """The steps of a saved replay buffer.

    Args:
        state: what ``ReplayBuffer.state_dict`` returned.
        name: for messages.

    Attributes:
        stored: the rows as they are.

    Raises:
        DataError: if it is not the state of a buffer of ``Experience``.
    """

    is_in_environment_units = False

    def __init__(self, state: Any, name: str) -> None:
        self.name = name
        try:
            self.stored = buffer_state.stored_rows(state)
        except CheckpointError as error:
            raise DataError(f"{name}: {error}") from error
        self._leaves = {
            join_path(*parts[1:]): self.stored.view(path)
            for path, parts in ((p, path_parts(p)) for p in self.stored.leaves)
            if parts[0] == "time_step" and parts[1] in _OF_STEPS
        }
        if "step_type" not in self._leaves:
            raise DataError(
                f"{name}: these are no steps of an environment; the fields are "
                f"{', '.join(self.stored.leaves)}"
            )
        self.fields = {path: _field(leaf) for path, leaf in self._leaves.items()}
        self.lengths = (state["end"] - state["begin"]).tolist()

    def sequences(self) -> Iterator[Sequence]:
        begin = 0
        for env_id, length in enumerate(self.lengths):
            rows = slice(begin, begin + length)
            begin += length
            if length:
                yield Sequence(
                    env_id,
                    {path: leaf[rows].numpy() for path, leaf in self._leaves.items()},
                )


def _field(leaf: Tensor) -> Field:
    return Field(tuple(leaf.shape[1:]), leaf[:0].numpy().dtype)


def is_replay_state(content: Any) -> bool:
    """Whether a file of torch holds a replay buffer or the training part of a run."""
    return isinstance(content, dict) and (
        content.get("format") == buffer_state.FORMAT or "path" in content
    )


def open_state(content: dict[str, Any], name: str) -> ReplayCheckpoint:
    """The replay buffer in the content of a file.

    Raises:
        DataError: if there is none in it.
    """
    if content.get("format") == buffer_state.FORMAT:
        return ReplayCheckpoint(content, name)
    path = content["path"]
    state = path.get("replay") if isinstance(path, dict) else None
    if not state:
        raise DataError(
            f"{name}: the checkpoint holds no replay buffer. It is written with "
            "TrainerConfig.checkpoint_replay_buffer = True, for off-policy algorithms."
        )
    return ReplayCheckpoint(state, name)


def open_checkpoint(directory: Path) -> ReplayCheckpoint:
    """The replay buffer in one checkpoint.

    Raises:
        DataError: if there is none, or the checkpoint is damaged.
    """
    try:
        info = read_info(directory)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    file = directory / f"{_TRAINING}.pt"
    if _TRAINING not in info.parts:
        raise DataError(
            f"{directory}: this checkpoint holds a policy only, no replay buffer"
        )
    expected = info.manifest["files"][file.name]["bytes"]
    if not file.is_file() or file.stat().st_size != expected:
        raise DataError(f"{file}: missing or truncated, expected {expected} bytes")
    return open_state(load_data(file), str(directory))


def newest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint that a run can be resumed from, if this is a run's.

    Args:
        directory: of a run, of its checkpoints or of one checkpoint.
    """
    if (directory / MANIFEST_NAME).exists() and NAME.fullmatch(directory.name):
        return directory
    found = [
        (int(match[1]), path)
        for place in (directory / "checkpoints", directory)
        for path in place.glob("ckpt-*")
        if path.is_dir() and (match := NAME.fullmatch(path.name))
    ]
    for _, path in sorted(found, reverse=True):
        try:
            if read_info(path).resumable:
                return path
        except CheckpointError:
            continue  # the run would be resumed from an older one, too
    return max(found)[1] if found else None
