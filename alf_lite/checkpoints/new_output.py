"""Files and directories that appear whole under their name, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from alf_lite.errors import ConfigError


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
        _remove(temporary)  # a link there would lead elsewhere
        yield temporary
        for file in [temporary, *temporary.rglob("*")]:
            _flush_to_disk(file)
        if not replace_file:
            check_is_new(path)  # it may have appeared meanwhile
        temporary.replace(path)
        _flush_to_disk(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}"
        ) from error
    finally:
        _remove(temporary)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Removes what may be there; of a link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
