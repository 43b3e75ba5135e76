"""One checkpoint directory on disk: written so that it appears whole or not at all.

A directory is written under a temporary name, every file is flushed to the disk, a
manifest with the size and sha256 of every file comes last, and one rename makes it
visible. A process that is killed at any point leaves either the complete directory or
only a temporary one, which the next :func:`recover` removes.

Reading trusts nothing: the manifest is bounded, names must be plain, sizes are compared
before anything is allocated and hashes before anything is parsed. What differs from
what was written is damage; what the machine refuses is not.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from alf_lite.border import (
    CHECKPOINT,
    RefusalError,
    border,
    check_types,
    read_record,
    reading,
)
from alf_lite.errors import CheckpointError, ConfigError

FORMAT = "alf_lite-checkpoint"
SCHEMA = 1
MANIFEST_NAME = "manifest.json"


class Stream(NamedTuple):
    """The content of a file in pieces, for what would not fit in memory twice."""

    num_bytes: int
    pieces: Callable[[], Iterable[bytes | memoryview]]
    # Of a file without a manifest: where the sha256 of all else is written in hex.
    digest_place: int | None = None

    def write_to(self, path: Path) -> None:
        """Writes a file of its own."""
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for piece in self.pieces():
                file.write(piece)
                digest.update(piece)
            if self.digest_place is not None:
                file.seek(self.digest_place)
                file.write(digest.hexdigest().encode())


Content = bytes | memoryview | Stream

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# Prefixes of directories that are not (or no longer) checkpoints.
_UNFINISHED = ".tmp-"
_REPLACED = ".old-"
_DELETED = ".deleted-"


def fault_point(name: str) -> None:
    """Does nothing. Tests replace it to fail or die between any two writes."""


def write(
    path: Path, contents: Mapping[str, Content], manifest: Mapping[str, Any]
) -> None:
    """Writes the directory ``path``, replacing one of the same name.

    Args:
        path: the final name.
        contents: file name -> bytes, or a stream of them.
        manifest: further entries for the manifest, as JSON data.

    Raises:
        CheckpointError: if the disk refuses; nothing is left behind and everything
            written earlier is untouched.
    """
    temporary = path.with_name(f"{_UNFINISHED}{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        _write_files(temporary, contents, manifest)
        fault_point("before rename")
        _put_in_place(temporary, path)
    except OSError as error:
        needed = sum(_num_bytes(content) for content in contents.values())
        raise CheckpointError(_explain_write_error(path, needed, error)) from error
    finally:
        # After success there is no such directory any more.
        _delete(temporary)
    fault_point("after rename")


def remove(path: Path) -> None:
    """Deletes a checkpoint; a crash half-way leaves nothing that looks like one."""
    deleted = path.with_name(f"{_DELETED}{path.name}-{os.getpid()}")
    path.rename(deleted)
    fault_point("before delete")
    _delete(deleted)


def _delete(path: Path) -> None:
    """Deletes what may be there, as far as possible; of a link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def recover(directory: Path) -> None:
    """Cleans up after a process that died while writing or deleting.

    Only the process that owns ``directory`` may call it.

    Raises:
        CheckpointError: if a checkpoint cannot be put back.
    """
    try:
        _recover(directory)
    except OSError as error:
        raise CheckpointError(
            f"{directory}: cannot be written ({error.strerror or error})"
        ) from error


def _recover(directory: Path) -> None:
    for entry in sorted(directory.glob(".*-*")):
        if entry.name.startswith(_REPLACED):
            # It died between moving the old one away and the new one in.
            path = entry.with_name(entry.name.removeprefix(_REPLACED))
            if not path.exists():
                entry.rename(path)
                continue
        if entry.name.startswith((_REPLACED, _UNFINISHED, _DELETED)):
            _delete(entry)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, checked for its form and the names it lists.

    Raises:
        DamagedCheckpointError: naming the file and the reason.
        CheckpointError: if it cannot be read, or only by a newer version.
    """
    file_path = path / MANIFEST_NAME
    manifest = read_record(file_path, {"files": dict}, CHECKPOINT, is_strict=True)
    with border(file_path, CHECKPOINT):
        _check_manifest(file_path, manifest)
    return manifest


def change_manifest(path: Path, entries: Mapping[str, Any]) -> None:
    """Replaces entries of the manifest of a checkpoint; it is whole at every moment.

    Raises:
        CheckpointError: if it cannot be read, or the disk refuses.
    """
    manifest = {**read_manifest(path), **entries}
    temporary = path.with_name(f"{_UNFINISHED}{path.name}-{os.getpid()}")
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    try:
        _write_file(temporary, text)
        temporary.rename(path / MANIFEST_NAME)
        _sync(path)
    except OSError as error:
        raise CheckpointError(_explain_write_error(path, len(text), error)) from error
    finally:
        _delete(temporary)


@contextlib.contextmanager
def open_verified(
    path: Path, manifest: Mapping[str, Any], name: str
) -> Iterator[BufferedReader]:
    """Opens a file of a checkpoint after comparing its size and sha256.

    The file is hashed and read through the same handle, so that nothing can be put in
    its place between the two.

    Raises:
        DamagedCheckpointError: if the file is not the one that the manifest lists.
        CheckpointError: if it cannot be read.
    """
    expected = manifest["files"][name]
    with reading(path / name, CHECKPOINT) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected["bytes"]:
            raise RefusalError(f"{size} bytes, the manifest says {expected['bytes']}")
        if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
            raise RefusalError(
                "the content does not match its sha256; it was changed or damaged "
                "after it was written"
            )
        file.seek(0)
        yield file


def _write_files(
    directory: Path, contents: Mapping[str, Content], manifest: Mapping[str, Any]
) -> None:
    files = {}
    for name, content in contents.items():
        assert _PLAIN_NAME.fullmatch(name), name
        digest = _write_file(directory / name, content)
        files[name] = {"bytes": _num_bytes(content), "sha256": digest}
    entries = {"format": FORMAT, "schema": SCHEMA, **manifest, "files": files}
    text = json.dumps(entries, indent=1, allow_nan=False)
    _write_file(directory / MANIFEST_NAME, text.encode())
    _sync(directory)


def _write_file(path: Path, content: Content) -> str:
    """Returns the sha256."""
    fault_point(f"before {path.name}")
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in content.pieces() if isinstance(content, Stream) else (content,):
            file.write(piece)
            digest.update(piece)
        file.flush()
        size = file.tell()
        assert size == _num_bytes(content), (path, size, _num_bytes(content))
        fault_point(f"before fsync of {path.name}")
        os.fsync(file.fileno())
    return digest.hexdigest()


def _num_bytes(content: Content) -> int:
    return content.num_bytes if isinstance(content, Stream) else len(content)


def _put_in_place(temporary: Path, path: Path) -> None:
    if path.exists():
        # A directory cannot be renamed over a filled one; recover() undoes this step.
        replaced = path.with_name(f"{_REPLACED}{path.name}")
        path.rename(replaced)
        fault_point("before replacing")
        temporary.rename(path)
        _delete(replaced)
    else:
        temporary.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Flushes a file or the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_manifest(file_path: Path, manifest: Mapping[str, Any]) -> None:
    if manifest.get("format") != FORMAT:
        raise RefusalError("not a manifest of an alf_lite checkpoint")
    schema = manifest.get("schema")
    if type(schema) is not int or schema < 1:
        raise RefusalError(f"unknown schema {schema!r}")
    if schema > SCHEMA:
        raise CheckpointError(
            f"{file_path}: schema {schema}, written by alf_lite "
            f"{manifest.get('alf_lite')}; this version reads up to schema {SCHEMA}. "
            "Update alf_lite; nothing was changed."
        )
    if "files" not in manifest:
        raise RefusalError("lists no files")
    for name, entry in manifest["files"].items():
        if not _PLAIN_NAME.fullmatch(name):
            raise RefusalError(f"refused the file name {name!r}")
        check_types(entry, {"bytes": int, "sha256": str}, f"the entry of {name}")
        if not entry.keys() >= {"bytes", "sha256"}:
            raise RefusalError(f"no size and sha256 for {name!r}")


def _explain_write_error(path: Path, needed: int, error: OSError) -> str:
    message = f"could not write checkpoint {path}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        try:
            free = shutil.disk_usage(path.parent).free
            message += f" (needed {needed / 1e6:.1f} MB, free {free / 1e6:.1f} MB)"
        except OSError:
            message += f" (needed {needed / 1e6:.1f} MB)"
    return f"{message}. Earlier checkpoints are untouched."


# Other files and directories that appear whole, or not at all


def check_is_new(path: Path) -> None:
    """Raises ConfigError if something is at ``path``, or nobody can write there."""
    if os.path.lexists(path):
        raise ConfigError(
            f"{path} exists already and is not overwritten. Choose another name, or "
            "remove it first."
        )
    # Path.exists raises an error where one may not look.
    place = next(p for p in path.absolute().parents if os.path.exists(p))
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"{path} cannot be written: {place} is no directory that you may write in"
        )


@contextlib.contextmanager
def new_output(path: Path | str, *, replace_file: bool = False) -> Iterator[Path]:
    """Gives the block a temporary path, and what it wrote there its name at the end.

    If the block raises, by Ctrl-C too, what it wrote is removed.

    Args:
        path: of the file or directory; its parents are created.
        replace_file: put the new file in the place of one that is there.

    Raises:
        ConfigError: if there is something at ``path``, or it cannot be written.
    """
    path = Path(path).expanduser()
    if not replace_file:
        check_is_new(path)
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _delete(temporary)  # a link there would lead elsewhere
        yield temporary
        for file in [temporary, *temporary.rglob("*")]:
            _sync(file)
        if not replace_file:
            check_is_new(path)  # it may have appeared meanwhile
        temporary.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}"
        ) from error
    finally:
        _delete(temporary)
