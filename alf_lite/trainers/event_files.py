"""Rewinds TensorBoard's event files to the moment of a checkpoint.

A run that died after its last checkpoint repeats some iterations when it is resumed.
Their points are in the event files already and would appear twice. TensorBoard's own
purge compares one step number for all tags, but ours have three axes (iterations,
environment steps, episodes). Event files only ever grow, so the length of each one at
the checkpoint says exactly what belongs to it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

_logger = logging.getLogger(__name__)

_MARK = "tfevents"


def sizes(directory: Path) -> dict[str, int]:
    """Name -> bytes of every event file. Flush the writer first."""
    if not directory.is_dir():
        return {}
    return {
        path.name: path.stat().st_size
        for path in sorted(directory.iterdir())
        if _MARK in path.name and path.is_file()
    }


def rewind(directory: Path, recorded: dict[str, int]) -> None:
    """Drops everything that was written after ``recorded`` was taken by ``sizes``."""
    for name, size in sizes(directory).items():
        path = directory / name
        try:
            if name not in recorded:
                path.unlink()
            elif size > recorded[name]:
                os.truncate(path, recorded[name])
        except OSError as error:
            _logger.warning(
                "%s: %s. Points of repeated iterations may appear twice.", path, error
            )
