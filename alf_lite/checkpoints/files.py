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
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from alf_lite.errors import CheckpointError, ConfigError, DamagedCheckpointError

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

_MAX_MANIFEST_BYTES = 16 * 1024 * 1024
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
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
    with open_regular(file_path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_MANIFEST_BYTES:
            raise DamagedCheckpointError(
                f"{file_path}: {size} bytes, expected at most {_MAX_MANIFEST_BYTES}"
            )
        with reading(file_path):
            text = file.read()
    try:
        manifest = json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(
            f"{file_path}: not valid JSON ({error})"
        ) from error
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
    with open_regular(path / name) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected["bytes"]:
            raise DamagedCheckpointError(
                f"{path / name}: {size} bytes, the manifest says {expected['bytes']}"
            )
        with reading(path / name):
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected["sha256"]:
            raise DamagedCheckpointError(
                f"{path / name}: the content does not match its sha256; it was "
                "changed or damaged after it was written"
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


def open_regular(path: Path) -> BufferedReader:
    """Opens a file that is neither a link nor a device nor a pipe; never waits for one.

    Raises:
        DamagedCheckpointError: if there is none, or something else.
        CheckpointError: if it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with reading(path):
        descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DamagedCheckpointError(f"{path}: not a regular file")
        with reading(path):
            return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tells what is wrong with a file from what is wrong with the machine.

    Raises:
        DamagedCheckpointError: if there is no such file, but perhaps something else.
        CheckpointError: if it cannot be read now.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise DamagedCheckpointError(
                f"{path}: cannot be read ({error.strerror})"
            ) from error
        raise cannot_read(path, error) from error
    except MemoryError as error:
        raise CheckpointError(
            f"{path}: there is not enough memory to read it. Free some and try again; "
            "nothing was changed."
        ) from error


def cannot_read(path: Path, error: OSError) -> CheckpointError:
    """What the machine refused, and what to do."""
    advice = _ADVICE.get(error.errno or 0, "Solve this")
    return CheckpointError(
        f"{path}: cannot be read ({error.strerror or error}). {advice} and try again; "
        "nothing was changed."
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key appears twice")
    return entries


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check_manifest(file_path: Path, manifest: Any) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DamagedCheckpointError(
            f"{file_path}: not a manifest of an alf_lite checkpoint"
        )
    schema = manifest.get("schema")
    if type(schema) is not int or schema < 1:
        raise DamagedCheckpointError(f"{file_path}: unknown schema {schema!r}")
    if schema > SCHEMA:
        raise CheckpointError(
            f"{file_path}: schema {schema}, written by alf_lite "
            f"{manifest.get('alf_lite')}; this version reads up to schema {SCHEMA}. "
            "Update alf_lite; nothing was changed."
        )
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise DamagedCheckpointError(f"{file_path}: lists no files")
    for name, entry in files.items():
        if not _PLAIN_NAME.fullmatch(name):
            raise DamagedCheckpointError(f"{file_path}: refused the file name {name!r}")
        if (
            not isinstance(entry, dict)
            or type(entry.get("bytes")) is not int
            or not isinstance(entry.get("sha256"), str)
        ):
            raise DamagedCheckpointError(
                f"{file_path}: no size and sha256 for {name!r}"
            )


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
    """Raises ConfigError if there is something at ``path`` already."""
    if path.exists() or path.is_symlink():
        raise ConfigError(
            f"{path} exists already and is not overwritten. Choose another name, or "
            "remove it first."
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
