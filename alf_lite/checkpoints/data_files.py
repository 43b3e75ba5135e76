"""Files that anybody may have written: opened with care, their damage told in a line.

Sizes are compared before anything is allocated: a file cannot declare more than it can
hold.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zipfile
from collections.abc import Collection, Iterator
from io import BufferedReader
from pathlib import Path

from alf_lite.errors import AlfLiteError, DataError
from alf_lite.utils.free_memory import free_ram

# Of the machine, and no damage of the file.
_TROUBLE = {
    errno.EACCES,
    errno.EIO,
    errno.ELOOP,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOENT,
    errno.ENOMEM,
    errno.ENOTDIR,
    errno.EPERM,
    errno.ESTALE,
}
# A byte of the deflate format cannot stand for more bytes than this.
_MAX_DEFLATE_RATIO = 1032
_CHUNK_BYTES = 2**20
_SMALL_BYTES = 2**27


class RefusalError(ValueError):
    """Says what is wrong with a file, to a :func:`reading` that knows which it is."""


@contextlib.contextmanager
def reading(name: Path | str) -> Iterator[None]:
    """Makes one DataError of whatever a file makes its reader raise.

    Args:
        name: of the file, for the message.
    """
    try:
        yield
    except (AlfLiteError, ImportError):
        raise
    except RefusalError as error:
        raise DataError(f"{name}: {error}") from error
    except MemoryError as error:
        raise DataError(f"{name}: it does not fit into memory") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _TROUBLE:
            raise DataError(f"{name}: cannot be read ({error.strerror})") from error
        lines = str(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise DataError(f"{name}: damaged or truncated ({reason})") from error


def check_regular(path: Path) -> None:
    """Raises DataError for a pipe, a device or a directory; links are followed."""
    with reading(path):
        _refuse_irregular(path, path.stat().st_mode)


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Opens a file, or what a link leads to, and nothing that one could wait for.

    Raises:
        DataError: if it cannot be read, or is a pipe or a device.
    """
    with reading(path):
        # Opening a pipe would wait for its other end.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    with file:
        _refuse_irregular(path, os.fstat(file.fileno()).st_mode)
        yield file


def _refuse_irregular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {
            stat.S_IFIFO: "a pipe",
            stat.S_IFCHR: "a device",
            stat.S_IFBLK: "a device",
            stat.S_IFSOCK: "a socket",
            stat.S_IFDIR: "a directory",
        }
        kind = kinds.get(stat.S_IFMT(mode), "something else")
        raise DataError(f"{path}: expected a regular file, found {kind}")


def check_fits(what: str, num_bytes: int) -> None:
    """Raises RefusalError if something does not fit into the memory that is free."""
    if num_bytes < _SMALL_BYTES:
        return  # what is free is not worth asking for
    free = free_ram()
    if free is not None and num_bytes > free:
        raise RefusalError(
            f"{what} needs {num_bytes / 1e9:.1f} GB of memory, of which "
            f"{free / 1e9:.1f} GB are free"
        )


@contextlib.contextmanager
def open_archive(
    path: Path, methods: Collection[int] = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
) -> Iterator[zipfile.ZipFile]:
    """Opens a zip archive, as numpy and torch write them.

    Args:
        path: of the file.
        methods: of compression, that its members may have.

    Raises:
        DataError: if it is damaged, encrypted or says of a member what cannot be. So
            does any trouble in the block.
    """
    with open_regular(path) as file, reading(path):
        size = os.fstat(file.fileno()).st_size
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            names = {member.filename for member in members}
            if len(names) < len(members):
                raise RefusalError("a name appears twice in the archive")
            for member in members:
                _check_member(member, methods)
            if sum(member.compress_size for member in members) > size:
                raise RefusalError("its parts are larger than the file")
            yield archive


def _check_member(member: zipfile.ZipInfo, methods: Collection[int]) -> None:
    name = member.filename
    if member.flag_bits & 1:
        raise RefusalError(f"{name} is encrypted: decrypt it first")
    if member.compress_type not in methods:
        raise RefusalError(f"{name} is compressed in an unknown way")
    is_stored = member.compress_type == zipfile.ZIP_STORED
    ratio = 1 if is_stored else _MAX_DEFLATE_RATIO
    if member.file_size > ratio * member.compress_size:
        raise RefusalError(
            f"{name} claims {member.file_size} bytes, of which the archive has only "
            f"{member.compress_size}"
        )


def verify_archive(path: Path) -> None:
    """Compares the members of an archive that is not compressed with their checksums.

    Raises:
        DataError: naming the first that was changed.
    """
    with open_archive(path, (zipfile.ZIP_STORED,)) as archive:
        for member in archive.infolist():
            with archive.open(member) as content:
                while content.read(_CHUNK_BYTES):
                    pass
