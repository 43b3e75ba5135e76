"""Recognises the format of a source from what is at its path."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

from alf_lite.datasets import minari_datasets
from alf_lite.datasets.alf_checkpoints import AlfCheckpoint, newest_alf_checkpoint
from alf_lite.datasets.npz_episodes import NpzEpisodes
from alf_lite.datasets.source import Source
from alf_lite.environments.environment import Environment
from alf_lite.errors import DataError

_FORMATS = (
    "a run directory, a checkpoint or a replay file of alf_lite, a replay checkpoint "
    "of ALF, a Minari data set, .npz episodes"
)


def open_source(path: str, env: Environment) -> Source:
    """The source at ``path``.

    Args:
        path: or ``minari:NAME``.
        env: that the steps are for.

    Raises:
        DataError: if there is nothing, it cannot be read or the format is unknown.
    """
    if path.startswith(minari_datasets.PREFIX):
        directory = minari_datasets.find(path.removeprefix(minari_datasets.PREFIX))
        return minari_datasets.MinariDataset(directory)
    place = Path(path).expanduser()
    try:
        if place.is_dir():
            return _open_directory(place)
        if place.is_file():
            return _open_file(place)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    raise DataError(
        f"{path}: there is no such file or directory (looked from {Path.cwd()})"
    )


def _open_directory(place: Path) -> Source:
    names = {entry.name for entry in place.iterdir()}
    if minari_datasets.is_dataset(place):
        return minari_datasets.MinariDataset(place)
    if _any_ends(names, ".npz"):
        return NpzEpisodes(place)
    alf_checkpoint = newest_alf_checkpoint(place)
    if alf_checkpoint is not None:
        return AlfCheckpoint(alf_checkpoint)
    raise DataError(
        f"{place}: no known data in this directory; it has "
        f"{', '.join(sorted(names)[:10]) or 'nothing'}. Known are {_FORMATS}."
    )


def _open_file(place: Path) -> Source:
    if not place.stat().st_size:
        raise DataError(f"{place}: the file is empty")
    members = _members(place)
    if _any_ends(members, ".npy") or place.suffix == ".npz":
        return NpzEpisodes(place)
    if _any_ends(members, "/data.pkl") or _looks_pickled(place):
        return AlfCheckpoint(place)
    raise DataError(f"{place}: unknown format. Known are {_FORMATS}.")


def _members(place: Path) -> list[str]:
    """What is in a zip archive; nothing if it is none."""
    try:
        with zipfile.ZipFile(place) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []


def _looks_pickled(place: Path) -> bool:
    """Whether an old version of torch may have written it."""
    with place.open("rb") as file:
        return file.read(1) == b"\x80"


def _any_ends(names: Iterable[str], suffix: str) -> bool:
    return any(name.endswith(suffix) for name in names)
