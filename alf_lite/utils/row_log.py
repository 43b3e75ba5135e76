"""Rows of numbers that last: JSON lines, and the same as a table in CSV."""

from __future__ import annotations

import contextlib
import csv
import functools
import heapq
import io
import itertools
import json
import logging
import math
import operator
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from alf_lite.utils.appended_file import AppendedFile

_logger = logging.getLogger(__name__)

Row = dict[str, Any]
_Key = tuple[Any, ...]

# Where a run is, in every row.
AXES = ("iteration", "env_steps", "updates", "seconds")

# The files of a run, and the columns by which their rows are told apart.
METRICS = "metrics"
EPISODES = "evaluation_episodes"
KEYS = {METRICS: ("iteration",), EPISODES: ("iteration", "episode")}

# New columns and late rows wait so long at least, so that many of them cost little.
_REWRITE_SECONDS = 10.0
# They wait longer where the table takes longer: at most a twentieth of the time.
_QUICK_SECONDS = _REWRITE_SECONDS / 20


class RowLog:
    """Appends rows to ``NAME.jsonl``, and keeps ``NAME.csv`` like it.

    A row is in the file of JSON lines when ``add`` returns; nothing of it is ever
    changed, except by :func:`rewind_rows`. A number that is not finite is null.

    The table is derived from it. It has one row per key, in their order, with all that
    came for it, and a column for every name, the axes first. It is written anew for new
    columns, and for what comes when there is a later row.

    Errors of the disk are logged, never raised.

    Args:
        path: of the JSON lines; rows that are there stay.
        keys: names of the columns that tell rows apart.
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self._path = path
        self._file = AppendedFile(path, self._open)
        self._table = _Table(path.with_suffix(".csv"), keys)
        self._next_rewrite = -math.inf
        self._is_behind = path.exists() and path.stat().st_size > 0
        self._bring_table_up_to_date(at_once=True)

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes a row; its names are the columns."""
        values = {name: _finite(value) for name, value in row.items()}
        self._file.write([json.dumps(values).encode() + b"\n"])
        if not self._is_behind:
            self._is_behind = self._file.is_failing or not self._table.add(values)
        self._bring_table_up_to_date(at_once=False)

    def sync(self) -> None:
        """A machine that stops does not take away what was added."""
        self._file.sync()
        self._bring_table_up_to_date(at_once=True)

    def close(self) -> None:
        self._file.write([])
        self._bring_table_up_to_date(at_once=True)
        self._table.close()
        self._file.close()

    def _bring_table_up_to_date(self, *, at_once: bool) -> None:
        now = time.monotonic()
        is_due = self._is_behind and (at_once or now >= self._next_rewrite)
        if not is_due or self._file.is_failing or not self._is_ours():
            return
        try:
            self._table.rewrite(self._path)
        except OSError as error:
            _logger.error("%s cannot be written: %s", self._table.path, error)
        else:
            self._is_behind = False
        seconds = time.monotonic() - now
        self._next_rewrite = now + _REWRITE_SECONDS * max(1, seconds / _QUICK_SECONDS)

    def _is_ours(self) -> bool:
        """False if the directory was deleted, or is another run's now."""
        assert self._file.descriptor is not None
        try:
            ours, there = os.fstat(self._file.descriptor), self._path.stat()
        except OSError:
            return False
        return os.path.samestat(ours, there)

    def _open(self) -> tuple[int, bytes]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        return os.open(self._path, flags, 0o666), b""


class _Table:
    """A CSV file that grows by rows, and is written anew where that is not possible."""

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path = path
        self._keys = tuple(keys)
        self._columns: list[str] = []
        self._descriptor: int | None = None
        self._last: Row = {}
        self._begin_of_last = self._end = 0

    def add(self, row: Row) -> bool:
        """Writes a row, or completes the last one; False if that is not possible."""
        if self._descriptor is None or not row.keys() <= set(self._columns):
            return False
        begin = self._end
        if self._last:
            key, last_key = self._key(row), self._key(self._last)
            if key < last_key:
                return False
            if key == last_key:
                row, begin = self._last | row, self._begin_of_last
        line = self._line(row)
        try:
            if os.pwrite(self._descriptor, line, begin) < len(line):
                return False
            os.ftruncate(self._descriptor, begin + len(line))
        except OSError:
            return False
        self._last, self._begin_of_last, self._end = row, begin, begin + len(line)
        return True

    def rewrite(self, source: Path) -> None:
        """Writes what is in the JSON lines. Whole, or not at all."""
        with source.open("rb") as lines:
            names, late = self._look_through(read_rows(lines))
        first = [name for name in dict.fromkeys((*AXES, *self._keys)) if name in names]
        self._columns = [*first, *sorted(names - set(first))]
        self.close()
        temporary = self.path.with_name(f".tmp-{os.getpid()}-{self.path.name}")
        try:
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as file, source.open("rb") as lines:
                header = {name: name for name in self._columns}
                self._end, self._last = file.write(self._line(header)), {}
                for row in self._merged(read_rows(lines), late):
                    self._last, self._begin_of_last = row, self._end
                    self._end += file.write(self._line(row))
            self._descriptor = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
            temporary.replace(self.path)
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _look_through(self, rows: Iterable[Row]) -> tuple[set[str], list[Row]]:
        """All names, and the rows that came when there was a later one, in order.

        Those are few: what is in time need not be kept in memory.
        """
        names: set[str] = set()
        late: dict[_Key, Row] = {}
        last: _Key = ()
        for row in rows:
            names.update(row)
            key = self._key(row)
            if key < last:
                late[key] = late.get(key, {}) | row
            last = max(last, key)
        return names, [late[key] for key in sorted(late)]

    def _merged(self, rows: Iterable[Row], late: list[Row]) -> Iterator[Row]:
        """Rows of one key as one, in the order of the keys.

        Args:
            rows: as they came.
            late: those of them that came late, see :meth:`_look_through`.
        """
        # Sorting is stable: what came late completes what was there.
        in_order = heapq.merge(self._in_time(rows), late, key=self._key)
        for _, same in itertools.groupby(in_order, self._key):
            yield functools.reduce(operator.or_, same)

    def _in_time(self, rows: Iterable[Row]) -> Iterator[Row]:
        last: _Key = ()
        for row in rows:
            key = self._key(row)
            if key >= last:
                last = key
                yield row

    def _key(self, row: Row) -> _Key:
        return tuple(_comparable(row.get(name)) for name in self._keys)

    def _line(self, row: Row) -> bytes:
        line = io.StringIO()
        cells = [row.get(name) for name in self._columns]
        csv.writer(line, lineterminator="\n").writerow(cells)
        return line.getvalue().encode()


def _comparable(value: Any) -> tuple[int, Any]:
    """Numbers in their order; what is missing comes first, what is none comes last."""
    if isinstance(value, int | float):
        return 1, value
    return (0, 0) if value is None else (2, str(value))


def read_rows(lines: Iterable[bytes]) -> Iterator[Row]:
    """The rows of JSON lines; what a crash has left half is left out."""
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and line.endswith(b"\n"):
            yield row


def rewind_rows(path: Path, size: int) -> None:
    """Drops everything that was added after the file had ``size`` bytes.

    A link is replaced by a file: what it leads to stays as it is.
    """
    try:
        status = path.lstat()
        is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        with path.open("rb") as file:
            kept = file.read(size)
        kept = kept[: kept.rfind(b"\n") + 1]  # whole lines
        if is_plain and len(kept) == status.st_size:
            return
        temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
        temporary.write_bytes(kept)
        temporary.replace(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        _logger.warning(
            "%s: %s. Rows of repeated iterations may appear twice.", path, error
        )


def row_log_size(path: Path) -> int:
    """Bytes that are there; 0 without a file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    is_finite = not isinstance(value, float) or math.isfinite(value)
    return value if is_finite else None
