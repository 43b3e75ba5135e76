"""The replay buffers of this library: of a run, of a checkpoint or in a file alone.

Agents stored what they saw and chose. Nothing is read before it is needed: the files
are mapped.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from alf_lite import nest
from alf_lite.border import border
from alf_lite.checkpoints.data import NAME, parts_of_other_ranks, read_info
from alf_lite.checkpoints.files import MANIFEST_NAME
from alf_lite.datasets.source import (
    RecordedField,
    Source,
    StepSequence,
    join_path,
)
from alf_lite.errors import CheckpointError, DataError
from alf_lite.nest import path_parts
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import FILE_NAME, ReplayFile
from alf_lite.tensor_specs import TensorSpec

_logger = logging.getLogger(__name__)

_KINDS = (
    "step_type",
    "reward",
    "discount",
    "observation",
    "env_info",
    # What was executed; the policy's own choice may have been replaced.
    "prev_action",
)
# What ReplaySaver writes.
_SAVED = re.compile(r"replay-(\d+)")
# What a run that is writing leaves in its directory, whole or not.
_WRITTEN = re.compile(r"(\.tmp-(\d+-)?)?(ckpt|replay)-")
# A run deletes and replaces its checkpoints while another one reads them, which looks
# again for so many seconds, and so often where there is none.
_READ_SECONDS = 20.0
_NUM_ATTEMPTS = 20


class ReplayCheckpoint(Source):
    """The steps of a saved replay buffer.

    Args:
        file: of the buffer.
        verify: see ``ReplayFile``.

    Attributes:
        stored: the rows as they are.

    Raises:
        DataError: if it cannot be read or is not that of a buffer of ``Experience``.
    """

    is_in_environment_units = False

    def __init__(self, file: Path, verify: bool = True) -> None:
        self.name = str(file)
        with _as_data(), border(file):
            self._file = ReplayFile(file, verify=verify)
        self.stored = self._file.stored
        self._names, self.fields = _names_and_fields(self._file.specs)
        if "step_type" not in self.fields:
            raise DataError(
                f"{file}: these are no steps of an environment; the fields are "
                f"{', '.join(self._file.specs)}"
            )
        self.lengths = self._file.lengths.tolist()

    def sequences(self) -> Iterator[StepSequence]:
        for env_id, length in enumerate(self.lengths):
            if length:
                leaves = self._file.read_leaves(env_id)
                yield StepSequence(
                    env_id,
                    {name: leaves[path].numpy() for path, name in self._names.items()},
                )


@contextlib.contextmanager
def _as_data() -> Iterator[None]:
    """What is wrong with a checkpoint is wrong with it as a source of steps."""
    try:
        yield
    except CheckpointError as error:
        raise DataError(str(error)) from error


class ReplayOfRanks(Source):
    """What all ranks of a run have stored.

    Args:
        parts: of each rank.

    Raises:
        DataError: if they hold steps of different kinds.
    """

    is_in_environment_units = False

    def __init__(self, parts: Sequence[ReplayCheckpoint]) -> None:
        self._parts = parts
        self.name, self.fields = parts[0].name, parts[0].fields
        for part in parts[1:]:
            if part.fields != self.fields:
                raise DataError(f"{part.name}: other steps than {self.name}")
        self.lengths = [length for part in parts for length in part.lengths]

    def sequences(self) -> Iterator[StepSequence]:
        num_before = 0
        for part in self._parts:
            for env_id, steps in part.sequences():
                yield StepSequence(num_before + env_id, steps)
            num_before += len(part.lengths)


def _with_other_ranks(first: ReplayCheckpoint, path: Path, verify: bool) -> Source:
    """The steps of all ranks, of which the first one's are at ``path``."""
    with _as_data():  # a run that lives may have just deleted it
        others = parts_of_other_ranks(path)
    parts = [first]
    for other in others:
        if not other.exists():
            _logger.warning(
                "%s is missing: the steps of this rank are left out.", other
            )
        elif other.is_dir():
            parts.append(_open_part(other, verify))
        else:
            parts.append(ReplayCheckpoint(other, verify))
    return first if len(parts) == 1 else ReplayOfRanks(parts)


def is_replay_file(begin: bytes) -> bool:
    """Whether a file that begins with these 9 bytes may be that of a buffer."""
    return begin[8:] == b"{"


def open_newest(directory: Path, verify: bool = True) -> Source | None:
    """The newest replay buffer of a run, which may live; None if it is no run's.

    Of a run on several ranks, those of all of them.

    Args:
        directory: of a run, of its checkpoints or of one checkpoint, or with files of
            ``ReplaySaver``.
        verify: see ``ReplayFile``.

    Raises:
        DataError: as :func:`open_checkpoint`.
    """
    deadline, num_empty = time.monotonic() + _READ_SECONDS, 0
    while num_empty < _NUM_ATTEMPTS and time.monotonic() < deadline:
        checkpoint = newest_checkpoint(directory)
        if checkpoint is None:
            if not _is_of_run(directory):
                return None
            num_empty += 1
        else:
            num_empty = 0
            identity = _identity(checkpoint)
            try:
                if checkpoint.is_dir():
                    return open_checkpoint(checkpoint, verify)
                return _with_other_ranks(
                    ReplayCheckpoint(checkpoint, verify), checkpoint, verify
                )
            except DataError:
                # Its owner may have replaced or deleted it meanwhile.
                is_there = identity is not None and _identity(checkpoint) == identity
                if is_there or checkpoint == directory:
                    raise
        time.sleep(0.001 * num_empty)
    return None


def _is_of_run(directory: Path) -> bool:
    """Whether a run writes there, so that what is gone has been replaced."""
    return (
        directory.name == "checkpoints"
        or (directory / "checkpoints").is_dir()
        or any(_WRITTEN.match(path.name) for path in directory.iterdir())
    )


def _identity(path: Path) -> int | None:
    try:
        # Of a link that leads nowhere, its own: nobody will replace that.
        return (path.stat() if path.exists() else path.lstat()).st_ino
    except OSError:
        return None


def open_checkpoint(directory: Path, verify: bool = True) -> Source:
    """The replay buffer in one checkpoint, with the parts of all ranks.

    Raises:
        DataError: if there is none, or the checkpoint is damaged.
    """
    return _with_other_ranks(_open_part(directory, verify), directory, verify)


def _open_part(directory: Path, verify: bool) -> ReplayCheckpoint:
    with _as_data():
        info = read_info(directory)
    entry = info.manifest["files"].get(FILE_NAME)
    if entry is None:
        reason = "a policy only, no replay buffer"
        if info.resumable:
            reason = (
                "no replay buffer. It is written with "
                "TrainerConfig.checkpoint_replay_buffer = True, for off-policy "
                "algorithms."
            )
        raise DataError(f"{directory}: this checkpoint holds {reason}")
    file = directory / FILE_NAME
    if not file.is_file() or file.stat().st_size != entry["bytes"]:
        raise DataError(
            f"{file}: missing or truncated, expected {entry['bytes']} bytes"
        )
    return ReplayCheckpoint(file, verify)


def newest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint that a run can be resumed from, or its newest replay file.

    Args:
        directory: see :func:`open_newest`.
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
    if not found:
        found = [
            (int(match[1]), path)
            for path in directory.glob("replay-*")
            if (match := _SAVED.fullmatch(path.name))
        ]
    return max(found)[1] if found else None


class BufferSource(Source):
    """The steps of a buffer of ``Experience``, one sequence per environment.

    Args:
        buffer: must not change meanwhile.
    """

    name = "the replay buffer"
    is_in_environment_units = False

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        specs = dict(nest.flatten_with_path(buffer.data_spec))
        self._names, self.fields = _names_and_fields(specs)
        self.lengths = buffer.sizes.tolist()

    def sequences(self) -> Iterator[StepSequence]:
        begins = self._buffer.begin_positions
        for env_id, length in enumerate(self.lengths):
            if length:
                begin = begins[env_id : env_id + 1]
                window = self._buffer.get_windows(torch.tensor([env_id]), begin, length)
                leaves = dict(nest.flatten_with_path(window))
                yield StepSequence(
                    env_id,
                    {n: leaves[p][0].numpy(force=True) for p, n in self._names.items()},
                )


def _names_and_fields(
    specs: Mapping[str, TensorSpec],
) -> tuple[dict[str, str], dict[str, RecordedField]]:
    """Of an ``Experience``, what is part of a source: names by path, and fields."""
    names = {}
    for path in specs:
        top, *keys = path_parts(path) or [""]
        if top == "time_step" and keys and keys[0] in _KINDS:
            names[path] = join_path(*keys)
    fields = {
        name: RecordedField.of(specs[path].zeros((0,)).numpy())
        for path, name in names.items()
    }
    return names, fields
