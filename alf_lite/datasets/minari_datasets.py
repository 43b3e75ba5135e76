"""Minari data sets (https://minari.farama.org), HDF5 and Arrow, with the minari extra.

Named by the directory of the data set, or as ``minari:pendulum/random-v0``: then it is
looked for where Minari keeps its data sets, in ``MINARI_DATASETS_PATH`` or
``~/.minari/datasets``. Nothing is downloaded.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from alf_lite.border import (
    RefusalError,
    border,
    check_regular,
    read_record,
)
from alf_lite.datasets import source
from alf_lite.environments.environment import Environment
from alf_lite.environments.space_specs import RecordedValues
from alf_lite.errors import ConfigError, DataError, needs_extra

if TYPE_CHECKING:
    import h5py

_logger = logging.getLogger(__name__)

PREFIX = "minari:"
_METADATA = "metadata.json"
_METADATA_TYPES = {"total_episodes": int, "total_steps": int, "data_format": str}
HDF5_NAME = "main_data.hdf5"
_ARROW = ("arrow", "parquet")
# More than any filter saves of numbers that are all the same.
_MAX_RATIO = 1032
_MAX_DEPTH = 32


class MinariDataset(source.Source):
    """The episodes of one data set, in their order.

    Args:
        directory: see :func:`find`.

    Raises:
        ConfigError: if the minari extra is missing.
        DataError: if the data set is damaged or does not say its spaces.
    """

    is_in_environment_units = True

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._storage, num_episodes, num_steps = self._open(
            _data_directory(directory) or directory
        )
        # One more observation than actions each.
        self.lengths = [num_steps + num_episodes]
        self._num_episodes = num_episodes
        self._episode_fields: dict[str, source.RecordedField] = {}
        if num_episodes:
            first = next(self._episodes(range(1)))
            self._episode_fields = {
                name: source.RecordedField.of(array) for name, array in first.items()
            }
        self.fields = source.episode_fields(self._episode_fields)

    @property
    def spaces(self) -> tuple[Space, Space]:
        """Of observations and actions."""
        return self._storage.observation_space, self._storage.action_space

    def warn_of_units(self, env: Environment) -> None:
        """Warns of actions that were other ones where they were recorded than here."""
        values = env.recorded_values
        if values is None:
            return
        action_space = self.spaces[1]
        recorded = RecordedValues(values.observation_space, action_space).actions
        if not all(
            leaf.is_read_as(recorded[keys])
            for keys, leaf in values.actions.items()
            if keys in recorded
        ):
            _logger.warning(
                "%s was recorded with actions of %s, and they are read as those of %s, "
                "which are %s. If a wrapper had changed them there, such as "
                "RescaleAction, wrap this environment likewise.",
                self.name,
                action_space,
                env.name,
                values.action_space,
            )

    def sequences(self) -> Iterator[source.StepSequence]:
        taken = {
            name: field
            for name, field in self._episode_fields.items()
            if name in self.fields or name in source.OUTCOMES
        }
        for number, arrays in enumerate(self._episodes(range(self._num_episodes))):
            num_actions = len(arrays["reward"])
            for name, field in taken.items():
                array = arrays.get(name)
                length = num_actions + source.is_of_steps(name)
                expected = (length, *field.shape), field.dtype
                if array is None or (array.shape, array.dtype) != expected:
                    found = array if array is None else (array.shape, str(array.dtype))
                    raise DataError(
                        f"{self.name}: {name} of episode {number} is {found}, expected "
                        f"{expected[0]} {expected[1]}, with {num_actions} rewards"
                    )
            with border(self.name):
                sequence = source.episode_sequence(
                    {name: arrays[name] for name in taken}
                )
            yield sequence

    def _episodes(self, numbers: range) -> Iterator[dict[str, np.ndarray]]:
        with border(self.name):
            storage = self._storage
            if storage.FORMAT in _ARROW:
                episodes = _arrow_episodes(storage, numbers)
            else:
                episodes = storage.get_episodes(numbers)
            for episode in episodes:
                yield _arrays(episode)

    def _open(self, directory: Path) -> tuple[Any, int, int]:
        """The storage of Minari, how many episodes there are and of how many steps."""
        with needs_extra(self.name, "minari"):
            from minari.dataset.minari_storage import MinariStorage

            with border(self.name):
                metadata = _read_metadata(directory)
                # Minari would build the environment that the data set names.
                missing = {"observation_space", "action_space"} - metadata.keys()
                if missing:
                    raise DataError(
                        f"{self.name}: the data set does not say its {sorted(missing)}"
                    )
                counts = (metadata["total_episodes"], metadata["total_steps"])
                if min(counts) < 0:
                    raise RefusalError(f"it says to have {counts} episodes and steps")
                for file in directory.rglob("*"):
                    if not file.is_dir():
                        check_regular(file)
                if metadata["data_format"] == "hdf5":
                    check_hdf5(directory / HDF5_NAME, *counts)
                return MinariStorage.read(directory), *counts


def find(name: str) -> Path:
    """The directory of a data set in Minari's own place.

    Raises:
        DataError: if there is none of this name; lists those there are.
    """
    root = Path(
        os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets"
    ).expanduser()
    # One that was just written is named by its path.
    for directory in (root / name, Path(name).expanduser()):
        if is_dataset(directory):
            return directory
    metadata = sorted(root.glob(f"**/data/{_METADATA}"))
    names = [str(path.parent.parent.relative_to(root)) for path in metadata]
    raise DataError(
        f"minari:{name}: there is no such data set in {root}; there "
        f"{'are ' + ', '.join(names) if names else 'is none'}. Download it with: "
        f"minari download {name}"
    )


def is_dataset(directory: Path) -> bool:
    """Whether a directory, or ``data`` in it, is that of a data set."""
    return _data_directory(directory) is not None


def _data_directory(directory: Path) -> Path | None:
    for place in (directory / "data", directory):
        if (place / HDF5_NAME).exists() and (place / _METADATA).exists():
            return place  # whatever state they are in
        try:
            metadata = _read_metadata(place)
        except DataError:
            continue
        if "data_format" in metadata:
            return place
    return None


def _read_metadata(directory: Path) -> dict[str, Any]:
    return read_record(directory / _METADATA, _METADATA_TYPES)


def _arrow_episodes(storage: Any, numbers: range) -> Iterator[Mapping[str, Any]]:
    """As Minari reads them, which fails on infos that are an array of numbers [N].

    And takes an episode of more rows than there are in a batch of Arrow for several.
    """
    from pyarrow import dataset

    try:
        from minari.dataset._storages.arrow_storage import _decode_space
    except ImportError as error:  # it is nobody's to rely on
        raise ConfigError(
            f"{storage.data_path}: the Arrow files of Minari {version('minari')} "
            "cannot be read yet. Install minari==0.5.4, or write the data as HDF5."
        ) from error
    for number in numbers:
        table = dataset.dataset(
            str(storage.data_path / str(number)),
            format=storage.FORMAT,
            ignore_prefixes=["_", ".", _METADATA],
        ).to_table()
        columns = {
            name: table[name].combine_chunks()
            for name in table.column_names
            if name != "episode_id"
        }
        actions = columns["actions"][:-1]
        observations = columns["observations"]
        yield {
            "observations": _decode_space(storage.observation_space, observations),
            "actions": _decode_space(storage.action_space, actions),
            **{
                name: columns[name].to_numpy(zero_copy_only=False)[:-1]
                for name in ("rewards", "terminations", "truncations")
            },
            "infos": _arrow_infos(columns["infos"]) if "infos" in columns else {},
        }


def _arrow_infos(values: Any) -> dict[str, Any]:
    """The arrays [N, ...] of a column of structures, which may be nested."""
    from pyarrow import StructArray

    infos: dict[str, Any] = {}
    for i, field in enumerate(values.type):
        column = values.field(i)
        if isinstance(column, StructArray):
            infos[field.name] = _arrow_infos(column)
            continue
        array = np.stack(column.to_numpy(zero_copy_only=False))
        shape = (field.metadata or {}).get(b"shape")
        if shape is not None:
            sizes = [int(size) for size in shape.split(b",") if size]
            array = array.reshape(len(array), *sizes)
        infos[field.name] = array
    return infos


def _arrays(episode: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parts of an episode by their paths, ``env_info`` only of every step."""
    reward = np.asarray(episode["rewards"])
    nested = {
        **source.flatten("observation", episode["observations"]),
        **source.flatten("action", episode["actions"]),
        "reward": reward,
        "terminated": episode["terminations"],
        "truncated": episode["truncations"],
    }
    arrays = {name: np.asarray(value) for name, value in nested.items()}
    for name, value in source.flatten("env_info", episode.get("infos") or {}).items():
        info = np.asarray(value)
        if info.shape[:1] == (len(reward) + 1,):
            arrays[name] = info
    return arrays


def check_hdf5(file: Path, num_episodes: int, num_steps: int) -> None:
    """Checks the structure of the file of a data set.

    Args:
        file: of Minari.
        num_episodes: as the metadata beside it say.
        num_steps: likewise, actions.

    Raises:
        RefusalError: naming what is wrong. Whatever h5py makes of a damaged file.
        ImportError: without h5py.
    """
    import h5py

    with h5py.File(file, "r") as root:
        lengths: dict[str, int] = {}
        check_group(root.id, "", set(), lengths)
        episodes = [name for name in root if name.startswith("episode_")]
        if len(episodes) != num_episodes:
            raise RefusalError(
                f"its metadata say {num_episodes} episodes, {file.name} has "
                f"{len(episodes)}"
            )
        rewards = [f"/episode_{number}/rewards" for number in range(num_episodes)]
        missing = [place for place in rewards if place not in lengths]
        if missing:
            raise RefusalError(f"{missing[0]} is missing, or no array")
        found = sum(lengths[place] for place in rewards)
        if found != num_steps:
            raise RefusalError(
                f"its metadata say {num_steps} steps, {file.name} has {found}"
            )


def check_group(
    group: h5py.h5g.GroupID, place: str, seen: set[int], lengths: dict[str, int]
) -> None:
    """Checks what is in a group, and notes the length of each array by its place.

    By the calls of HDF5 itself: the usual ones of h5py take twice as long.
    """
    from h5py import h5d, h5g, h5l, h5o

    if place.count("/") > _MAX_DEPTH:
        raise RefusalError(f"{place} lies too deep")
    for name in group:
        child_place = f"{place}/{name.decode(errors='replace')}"
        if group.links.get_info(name).type != h5l.TYPE_HARD:
            raise RefusalError(
                f"{child_place} is a link: refused, it may lead to any file"
            )
        child = h5o.open(group, name)
        if isinstance(child, h5d.DatasetID):
            _check_dataset(child_place, child)
            lengths[child_place] = child.shape[0] if child.shape else 0
        elif isinstance(child, h5g.GroupID):
            address = h5o.get_info(child).addr
            if address not in seen:
                seen.add(address)
                check_group(child, child_place, seen, lengths)


def _check_dataset(place: str, dataset: h5py.h5d.DatasetID) -> None:
    from h5py import h5d, h5s

    settings = dataset.get_create_plist()
    layout, shape = settings.get_layout(), dataset.shape
    if settings.get_external_count() or layout == h5d.VIRTUAL:
        raise RefusalError(f"{place} takes its numbers from other files: refused")
    if dataset.get_space().get_simple_extent_type() == h5s.NULL:
        raise RefusalError(f"{place} is empty")
    claimed = math.prod(shape) * dataset.get_type().get_size()
    stored = dataset.get_storage_size()
    ratio = _MAX_RATIO if layout == h5d.CHUNKED and settings.get_nfilters() else 1
    if claimed > ratio * stored:
        raise RefusalError(
            f"{place} claims {claimed} bytes, of which {stored} were written"
        )
    source.check_fits(place, claimed)
    if layout == h5d.CHUNKED and claimed:
        sizes = zip(shape, settings.get_chunk(), strict=True)
        expected = math.prod(-(-size // chunk) for size, chunk in sizes)
        found = dataset.get_num_chunks()
        if found != expected:
            raise RefusalError(f"{place}: {found} of its {expected} parts were written")
