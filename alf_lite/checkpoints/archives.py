"""Zip archives, as numpy and torch write them, that anybody may have written.

Sizes are compared before anything is allocated: a file cannot declare more than it can
hold.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

from alf_lite.border import RefusalError, reading

# A byte of the deflate format cannot stand for more bytes than this.
_MAX_DEFLATE_RATIO = 1032
_CHUNK_BYTES = 2**20


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
    with reading(path) as file:
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
