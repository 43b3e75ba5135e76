"""Rewinds TensorBoard's event files to the moment of a checkpoint.

A run that died after its last checkpoint repeats some iterations when it is resumed.
Their points are in the event files already and would appear twice. TensorBoard's own
purge compares one step number for all tags, but ours have three axes (iterations,
environment steps, episodes). Event files only ever grow, so the length of each one at
the checkpoint says exactly what belongs to it.

Only files of the run itself are touched: their names end with its id, which every
checkpoint holds, and ``run.json`` until there is one. What a user has copied or linked
into the directory stays as it is.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from alf_lite.utils.event_writer import NAME

_logger = logging.getLogger(__name__)

_RUN_ID = re.compile(r"[0-9a-f]{16}")


def new_run_id() -> str:
    """An id that no other run has."""
    return os.urandom(8).hex()


def run_id_of(run_file: str | None) -> str | None:
    """The id that the text of a ``run.json`` tells, if it does."""
    try:
        run_id = json.loads(run_file or "")["run_id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return run_id if is_run_id(run_id) else None


def is_run_id(value: object) -> bool:
    """Whether it can be one."""
    return isinstance(value, str) and _RUN_ID.fullmatch(value) is not None


def sizes(directory: Path, run_id: str) -> dict[str, int]:
    """Name -> bytes of every event file of a run. Flush the writer first."""
    return {path.name: size for path, size in _own_files(directory, run_id)}


def rewind(directory: Path, run_id: str, recorded: dict[str, int]) -> None:
    """Drops everything that a run has written after ``recorded`` was taken."""
    for path, size in _own_files(directory, run_id):
        try:
            if path.name not in recorded:
                path.unlink()
            elif size > recorded[path.name]:
                _cut(path, recorded[path.name])
        except OSError as error:
            _logger.warning(
                "%s: %s. Points of repeated iterations may appear twice.", path, error
            )


def _own_files(directory: Path, run_id: str) -> Iterator[tuple[Path, int]]:
    """The event files of a run, none of them with a second name."""
    # Whoever links the directory to one elsewhere may mean to show other runs' files.
    if directory.is_symlink() or not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if NAME.fullmatch(path.name) and path.name.endswith(f".{run_id}"):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                yield path, status.st_size


def _cut(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
