"""Writes TensorBoard's event files, and goes on after a disk was full.

TensorBoard's own writer ends with the first error of the disk, names its files by the
clock alone and says nothing about who wrote one. Here what could not be written waits
in memory, and files sort in the order they were begun in, whatever the clock says.
"""

from __future__ import annotations

import io
import logging
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alf_lite.errors import ConfigError
from alf_lite.utils.appended_file import AppendedFile

_logger = logging.getLogger(__name__)

# Files are read in the order of their names; readers know them by the beginning.
_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\..*")
# Events beyond this are handed to the disk before flush_secs are over.
_MAX_UNWRITTEN_BYTES = 2**20


class EventWriter:
    """Appends to one new event file. Errors of the disk are logged, never raised.

    Args:
        directory: of the file; created.
        flush_secs: how long an event waits until it is given to the disk.
        owner: ends the name of the file, see :func:`rewind_event_files`.

    Raises:
        ConfigError: if ``directory`` cannot be a directory.
    """

    def __init__(
        self, directory: Path | str, flush_secs: float = 10.0, owner: str = ""
    ) -> None:
        self._directory = Path(directory)
        self._suffix = f".{owner}" if owner else ""
        self._flush_secs = flush_secs
        self._lock = threading.Lock()  # of the events
        self._events: list[bytes] = []
        self._num_event_bytes = 0
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(
                f"{self._directory} cannot be a directory for summaries: "
                f"{error.strerror}"
            ) from error
        except OSError:
            pass  # a full disk; it is tried again with the first events
        self._file_lock = threading.Lock()
        self._file = AppendedFile(self._directory, self._begin_file)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(
            target=self._flush_regularly, name="event writer", daemon=True
        )
        self._thread.start()

    def write(self, summary: Any, step: int) -> None:
        """Adds a ``Summary`` of TensorBoard at ``step``."""
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), step=step, summary=summary)
        data = event.SerializeToString()
        with self._lock:
            self._events.append(data)
            self._num_event_bytes += len(data)
            is_much = self._num_event_bytes > _MAX_UNWRITTEN_BYTES
        if is_much:
            self.flush()

    def flush(self) -> None:
        """Gives everything to the disk, or keeps it if the disk refuses."""
        with self._file_lock:
            with self._lock:
                events, self._events = self._events, []
                self._num_event_bytes = 0
            self._file.write(map(_record, events))

    def sync(self) -> None:
        """As ``flush``; and a machine that stops does not take it away any more."""
        self.flush()
        self._file.sync()

    def close(self) -> None:
        """Writes the rest, if possible. A second call does nothing."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._thread.join()
        self.flush()
        self._file.close()

    def _flush_regularly(self) -> None:
        while not self._is_closed.wait(self._flush_secs):
            if self._events or self._file.has_waiting:
                self.flush()

    def _begin_file(self) -> tuple[int, bytes]:
        from tensorboard.compat.proto.event_pb2 import Event

        self._directory.mkdir(parents=True, exist_ok=True)
        found = [_NAME.fullmatch(path.name) for path in self._directory.iterdir()]
        newest = max((int(match[1]) for match in found if match), default=0)
        # Behind all others, also if the clock was set back since.
        place = min(max(int(time.time()), newest + 1), 10**10 - 1)
        path = self._directory / (
            f"events.out.tfevents.{place:010d}.{socket.gethostname()}.{os.getpid()}"
            f"{self._suffix}"
        )
        # Never what somebody has put there already.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o666)
        first = Event(wall_time=time.time(), file_version="brain.Event:2")
        return descriptor, _record(first.SerializeToString())


def _record(event: bytes) -> bytes:
    """The event as it stands in the file, with its length and checksums."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    record = io.BytesIO()
    RecordWriter(record).write(event)
    return record.getvalue()


# Event files are rewound to the moment of a checkpoint. A run that died
# after its last one repeats some iterations when it is resumed, whose points would
# appear twice. TensorBoard's own purge compares one step number for all tags, but ours
# have three axes (iterations, environment steps, episodes). Event files only ever grow,
# so the length of each one at the checkpoint says exactly what belongs to it.
#
# Only files of the run itself are touched: their names end with its id, which every
# checkpoint holds, and ``run.json`` until there is one. What a user has copied or
# linked into the directory stays as it is.

_RUN_ID = re.compile(r"[0-9a-f]{16}")


def new_run_id() -> str:
    """An id that no other run has."""
    return os.urandom(8).hex()


def is_run_id(value: object) -> bool:
    """Whether it can be one."""
    return isinstance(value, str) and _RUN_ID.fullmatch(value) is not None


def event_file_sizes(directory: Path, run_id: str) -> dict[str, int]:
    """Name -> bytes of every event file of a run. Flush the writer first."""
    return {path.name: size for path, size in _own_files(directory, run_id)}


def rewind_event_files(directory: Path, run_id: str, recorded: dict[str, int]) -> None:
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
        if _NAME.fullmatch(path.name) and path.name.endswith(f".{run_id}"):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                yield path, status.st_size


def _cut(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
