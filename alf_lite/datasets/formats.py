"""Recognises the format of a source from what is at its path."""

from __future__ import annotations

import zipfile
from pathlib import Path

from alf_lite.datasets import minari_datasets, replay_checkpoints
from alf_lite.datasets.alf_checkpoints import AlfCheckpoint, newest_alf_checkpoint
from alf_lite.datasets.npz_episodes import NpzEpisodes
from alf_lite.datasets.source import Source
from alf_lite.datasets.torch_files import load_data
from alf_lite.errors import DataError

_FORMATS = (
    "a run directory, a checkpoint or a replay file of alf_lite, a replay checkpoint "
    "of ALF, a Minari data set, .npz episodes"
)


def open_source(path: str | Path) -> Source:
    """The source at ``path``.

    Args:
        path: or ``minari:NAME``.

    Raises:
        DataError: if there is nothing, it cannot be read or the format is unknown.
    """
    name = str(path)
    if name.startswith(minari_datasets.PREFIX):
        directory = minari_datasets.find(name.removeprefix(minari_datasets.PREFIX))
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
    if any(name.endswith(".npz") for name in names):
        return NpzEpisodes(place)
    checkpoint = replay_checkpoints.newest_checkpoint(place)
    if checkpoint is not None:
        return replay_checkpoints.open_checkpoint(checkpoint)
    alf_checkpoint = newest_alf_checkpoint(place)
    if alf_checkpoint is not None:
        return _open_torch_file(alf_checkpoint)
    raise DataError(
        f"{place}: no known data in this directory; it has "
        f"{', '.join(sorted(names)[:10]) or 'nothing'}. Known are {_FORMATS}."
    )


def _open_file(place: Path) -> Source:
    with place.open("rb") as file:
        begin = file.read(9)
    if not begin:
        raise DataError(f"{place}: the file is empty")
    if replay_checkpoints.is_replay_file(begin):
        return replay_checkpoints.ReplayCheckpoint(place)
    if begin[:2] == b"PK":
        return _open_archive(place)
    if begin[:1] == b"\x80":  # a pickle, as old versions of torch wrote them
        return _open_torch_file(place)
    raise DataError(f"{place}: unknown format. Known are {_FORMATS}.")


def _open_archive(place: Path) -> Source:
    """Files of numpy and of torch are zip archives."""
    try:
        with zipfile.ZipFile(place) as archive:
            members = archive.namelist()
    except zipfile.BadZipFile as error:
        raise DataError(f"{place}: damaged or truncated ({error})") from error
    if any(name.endswith("/data.pkl") for name in members):
        return _open_torch_file(place)
    return NpzEpisodes(place)


def _open_torch_file(file: Path) -> Source:
    return AlfCheckpoint(load_data(file), str(file))
