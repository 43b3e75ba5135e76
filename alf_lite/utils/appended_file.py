"""A file that only grows, and goes on after a disk was full."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

_logger = logging.getLogger(__name__)

# What waits while the disk fails; the oldest are given up first.
_MAX_WAITING_BYTES = 2**24


class AppendedFile:
    """Writes whole records at the end of a file.

    Errors of the disk are logged, never raised: what could not be written waits in
    memory until it can. One thread at a time.

    Args:
        name: for the log.
        begin: opens the file, when there is space; returns its descriptor and what is
            written before everything else.
    """

    def __init__(self, name: Path, begin: Callable[[], tuple[int, bytes]]) -> None:
        self._name = name
        self._begin = begin
        self._records: deque[bytes] = deque()  # on their way to the file
        self._num_lost = 0
        self._descriptor: int | None = None
        self._size = 0  # of what is whole in the file
        self.is_failing = False
        self.write([])

    @property
    def has_waiting(self) -> bool:
        """Whether some records are not in the file yet."""
        return bool(self._records)

    @property
    def descriptor(self) -> int | None:
        """Of the file; None as long as it could not be opened."""
        return self._descriptor

    def write(self, records: Iterable[bytes]) -> None:
        """Gives them to the disk, after those that wait; keeps what it refuses."""
        self._records.extend(records)
        try:
            if self._descriptor is None:
                self._descriptor, first = self._begin()
                self._size = os.fstat(self._descriptor).st_size
                if first:
                    self._records.appendleft(first)
            self._append(b"".join(self._records))
        except OSError as error:
            self._keep(error)
        else:
            self._has_written()

    def sync(self) -> None:
        """A machine that stops does not take away what was written."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Tries once more to write what waits."""
        self.write([])
        if self.is_failing:
            _logger.error(
                "%s: the last %d points of the summaries were lost.",
                self._name,
                self._num_lost + len(self._records),
            )
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> None:
        assert self._descriptor is not None
        num_written = 0
        with memoryview(data) as view:
            while num_written < len(data):
                num_written += os.pwrite(
                    self._descriptor, view[num_written:], self._size + num_written
                )
        self._size += len(data)

    def _has_written(self) -> None:
        self._records.clear()
        if self.is_failing:
            _logger.warning(
                "%s: summaries are written again; %s lost.",
                self._name,
                f"{self._num_lost} points were" if self._num_lost else "nothing was",
            )
        self.is_failing, self._num_lost = False, 0

    def _keep(self, error: OSError) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)  # no half records
        if not self.is_failing:
            _logger.error(
                "%s: summaries cannot be written now (%s). Training goes on; they wait "
                "in memory until there is space.",
                self._name,
                error.strerror or error,
            )
        self.is_failing = True
        num_bytes = sum(map(len, self._records))
        while num_bytes > _MAX_WAITING_BYTES:
            num_bytes -= len(self._records.popleft())
            self._num_lost += 1
