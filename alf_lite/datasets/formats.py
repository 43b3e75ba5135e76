"""Recognises the format of a source from what is at its path."""

from __future__ import annotations

from pathlib import Path

from alf_lite.border import border, reading
from alf_lite.checkpoints.archives import open_archive
from alf_lite.config import configurable
from alf_lite.datasets import minari_datasets, replay_sources
from alf_lite.datasets.alf_checkpoints import (
    AlfCheckpoint,
    load_data,
    newest_alf_checkpoint,
)
from alf_lite.datasets.d4rl_files import MAGIC, D4rlFile
from alf_lite.datasets.minari_datasets import MinariDataset
from alf_lite.datasets.npz_episodes import NpzEpisodes
from alf_lite.datasets.source import REQUIRED_FIELDS, Source, field_kind
from alf_lite.environments.specs_only_environment import SpecsOnlyEnvironment
from alf_lite.errors import ConfigError, DataError

_FORMATS = (
    "a run directory, a checkpoint or a replay file of alf_lite, a replay checkpoint "
    "of ALF, a Minari data set, .npz episodes, an HDF5 file of D4RL"
)


def open_source(path: str | Path, *, verify: bool = True) -> Source:
    """The source at ``path``.

    Args:
        path: or ``minari:NAME``.
        verify: compare what it holds with the checksums that were written with it. It
            is read once for that.

    Raises:
        DataError: if there is nothing, it cannot be read or the format is unknown, or
            it is damaged.
    """
    source = _open(str(path), verify)
    if sum(source.lengths):
        _check_fields(source)
    return source


def _open(path: str, verify: bool) -> Source:
    # Of a variable that is not set: Path takes nothing for this directory.
    if path in ("", minari_datasets.PREFIX):
        raise DataError(f"{path!r} names no source of recorded steps")
    if path.startswith(minari_datasets.PREFIX):
        directory = minari_datasets.find(path.removeprefix(minari_datasets.PREFIX))
        return minari_datasets.MinariDataset(directory)
    with border(path):
        place = Path(path).expanduser()
        if place.is_dir():
            return _open_directory(place, verify)
        if place.exists():
            return _open_file(place, verify)
    raise DataError(
        f"{path}: there is no such file or directory (looked from {Path.cwd()})"
    )


def _check_fields(source: Source) -> None:
    """Raises DataError if these are no steps, of whatever environment."""
    kinds = {field_kind(name) for name in source.fields}
    missing = {*REQUIRED_FIELDS, "observation", "action"} - kinds
    if "prev_action" in kinds:
        missing -= {"action"}
    if missing:
        raise DataError(
            f"{source.name}: {', '.join(sorted(missing))} missing; the fields are "
            f"{', '.join(source.fields)}"
        )
    for name in REQUIRED_FIELDS:
        field = source.fields.get(name)
        if (
            field is None
            or field.dtype.kind not in "biuf"
            or (field.shape and name != "reward")
        ):
            found = "nested" if field is None else field
            raise DataError(f"{source.name}: {name} is {found}, expected a number")


def _open_directory(place: Path, verify: bool) -> Source:
    names = {entry.name for entry in place.iterdir()}
    if minari_datasets.is_dataset(place):
        return minari_datasets.MinariDataset(place)
    if any(name.endswith(".npz") for name in names):
        return NpzEpisodes(place)
    checkpoint = replay_sources.open_newest(place, verify)
    if checkpoint is not None:
        return checkpoint
    alf_checkpoint = newest_alf_checkpoint(place)
    if alf_checkpoint is not None:
        return _open_torch_file(alf_checkpoint, verify)
    raise DataError(
        f"{place}: no known data in this directory; it has "
        f"{', '.join(sorted(names)[:10]) or 'nothing'}. Known are {_FORMATS}."
    )


def _open_file(place: Path, verify: bool) -> Source:
    with reading(place) as file:
        begin = file.read(9)
    if not begin:
        raise DataError(f"{place}: the file is empty")
    if replay_sources.is_replay_file(begin):
        return replay_sources.ReplayCheckpoint(place, verify)
    if begin.startswith(MAGIC):
        return D4rlFile(place)
    if begin[:2] == b"PK":
        return _open_archive(place, verify)
    if begin[:1] == b"\x80":  # a pickle, as old versions of torch wrote them
        return _open_torch_file(place, verify)
    raise DataError(f"{place}: unknown format. Known are {_FORMATS}.")


def _open_archive(place: Path, verify: bool) -> Source:
    """Files of numpy and of torch are zip archives."""
    with open_archive(place) as archive:
        members = archive.namelist()
    if any(name.endswith("/data.pkl") for name in members):
        return _open_torch_file(place, verify)
    return NpzEpisodes(place)


def _open_torch_file(file: Path, verify: bool) -> Source:
    return AlfCheckpoint(load_data(file, verify=verify), str(file))


@configurable
def recorded_environment(source: str = "") -> SpecsOnlyEnvironment:
    """An environment with the spaces that a source was recorded in, which cannot step.

    Args:
        source: of a format that says its spaces: a Minari data set.

    Raises:
        ConfigError: if the source does not say its spaces.
        DataError: if it cannot be read.
    """
    if not source:
        raise ConfigError("recorded_environment.source is not set")
    opened = open_source(source)
    if not isinstance(opened, MinariDataset):
        raise ConfigError(
            f"{source} does not say the spaces it was recorded in. Name them with "
            "create_environment.env_ctor = @SpecsOnlyEnvironment"
        )
    observation_space, action_space = opened.spaces
    return SpecsOnlyEnvironment(observation_space, action_space, name=source)
