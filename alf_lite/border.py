"""The border: where files that anybody may have written, or damaged, come in.

Only a regular file is opened, only up to a size, and whatever its content makes a
reader raise becomes one error that names it. Damage of a file is told from trouble of
the machine, with which the file may be as good as ever. Behind the border the code
trusts what it got.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

from alf_lite.errors import (
    AlfLiteError,
    CheckpointError,
    ConfigError,
    DamagedCheckpointError,
    DataError,
)

MAX_RECORD_BYTES = 2**26
# A file that was listed, and now there is none, or a link in its place, or a socket.
_NOT_A_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO)
_ADVICE = {
    errno.EACCES: "Give this user the right to read it",
    errno.EPERM: "Give this user the right to read it",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENFILE: "Let other processes close files",
    errno.ENOMEM: "Free some memory",
    errno.EIO: "Look after the disk",
}
_WANTED = re.compile(r"GLOBAL ([\w.]+)")
_REASON = re.compile(r"WeightsUnpickler error: (.*)")
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


class Kind(NamedTuple):
    """What files are for, and so what becomes of trouble with them."""

    damage: type[AlfLiteError]
    trouble: type[AlfLiteError]  # of the machine
    verdict: str = "damaged or truncated"  # on whatever a reader raised
    follows_links: bool = True


CONFIG = Kind(ConfigError, ConfigError, "cannot be read")
DATA = Kind(DataError, DataError)
CHECKPOINT = Kind(DamagedCheckpointError, CheckpointError, follows_links=False)
# What has the right hash was written like this: it is not damaged but foreign.
FOREIGN = Kind(CheckpointError, CheckpointError, "refused, it is not plain data")


class RefusalError(ValueError):
    """Says what is wrong with a file, to a border that knows which it is."""


@contextlib.contextmanager
def border(path: Path | str, kind: Kind = DATA) -> Iterator[None]:
    """Makes one error, of the ``kind``, of whatever a file makes its reader raise."""
    try:
        yield
    except (AlfLiteError, ImportError):
        raise
    except RefusalError as error:
        raise kind.damage(f"{path}: {error}") from error
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        is_torch = isinstance(error, RuntimeError) and "allocate memory" in str(error)
        if isinstance(error, MemoryError) or is_torch:
            raise kind.trouble(
                f"{path}: there is not enough memory to read it. Free some and try "
                "again; nothing was changed."
            ) from error
        if number in _NOT_A_FILE:
            said = os.strerror(number)
            raise kind.damage(f"{path}: cannot be read ({said})") from error
        if number not in (None, errno.EINVAL):
            raise kind.trouble(
                f"{path}: cannot be read ({os.strerror(number)}). "
                f"{_ADVICE.get(number, 'Solve this')} and try again; nothing was "
                "changed."
            ) from error
        raise kind.damage(f"{path}: {kind.verdict} ({reason_of(error)})") from error


@contextlib.contextmanager
def reading(
    path: Path, kind: Kind = DATA, max_bytes: int | None = None
) -> Iterator[BufferedReader]:
    """Opens a file, which is a regular one, for a block inside of its border.

    Args:
        path: of the file.
        kind: of it.
        max_bytes: a larger file is refused.
    """
    with border(path, kind):
        # Opening a pipe would wait for its other end.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        flags |= 0 if kind.follows_links else os.O_NOFOLLOW
        descriptor = os.open(path, flags)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                found = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
                raise RefusalError(f"expected a regular file, found {found}")
            if max_bytes is not None and status.st_size > max_bytes:
                raise RefusalError(
                    f"{status.st_size} bytes, expected at most {max_bytes}"
                )
            file = os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
        with file:
            yield file


def check_regular(path: Path, kind: Kind = DATA) -> None:
    """Refuses what those would wait for who open a file by its name."""
    with reading(path, kind):
        pass


def read_text(
    path: Path,
    kind: Kind = DATA,
    max_bytes: int = MAX_RECORD_BYTES,
    *,
    errors: str = "strict",
) -> str:
    """The text of a file; ``errors`` as for ``bytes.decode``."""
    with reading(path, kind, max_bytes) as file:
        return file.read().decode("utf-8-sig", errors)


def read_record(
    path: Path, types: Mapping[str, Any], kind: Kind = DATA, *, is_strict: bool = False
) -> dict[str, Any]:
    """A JSON object.

    Args:
        path: of the file.
        types: of its entries, as far as they are there: types, ``[of each item]``, and
            dicts such as this one.
        kind: of the file.
        is_strict: refuse NaN and infinity, and a key that appears twice.
    """
    hooks: dict[str, Any] = {}
    if is_strict:
        hooks = {"object_pairs_hook": _without_duplicates, "parse_constant": _no_number}
    with reading(path, kind, MAX_RECORD_BYTES) as file:
        try:
            record = json.loads(file.read(), **hooks)
        except (ValueError, RecursionError) as error:
            raise RefusalError(f"not valid JSON ({error})") from error
        check_types(record, types)
        return record


def check_types(value: Any, types: Any, name: str = "it") -> None:
    """Raises RefusalError naming what is not as :func:`read_record` says."""
    basic: type | UnionType
    basic = type(types) if isinstance(types, list | dict) else types
    # A bool is an int, for Python.
    if not isinstance(value, basic) or (type(value) is bool and basic is not bool):
        expected = getattr(basic, "__name__", basic)
        raise RefusalError(f"{name} is {value!r:.60}, expected {expected}")
    if isinstance(types, list):
        for item in value:
            check_types(item, types[0], f"an item of {name}")
    elif isinstance(types, dict):
        for key in set(types).intersection(value):
            check_types(value[key], types[key], key)


def reason_of(error: Exception) -> str:
    """In a line; without torch's advice to read a file that wants to call something."""
    text = str(error)
    wanted, found = _WANTED.search(text), _REASON.search(text)
    if wanted is not None:
        return f"it wants to call {wanted[1]}"
    if found is None and "weights_only" in text:
        return "it is no plain data"
    lines = (text if found is None else found[1]).splitlines()
    return lines[0] if lines else type(error).__name__


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key appears twice")
    return entries


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")
