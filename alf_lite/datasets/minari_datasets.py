"""Minari data sets (https://minari.farama.org), HDF5 and Arrow, with the minari extra.

Named by the directory of the data set, or as ``minari:pendulum/random-v0``: then it is
looked for where Minari keeps its data sets, in ``MINARI_DATASETS_PATH`` or
``~/.minari/datasets``. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from alf_lite.checkpoints.data_files import (
    RefusalError,
    check_regular,
    open_regular,
    reading,
)
from alf_lite.datasets.episodes import episode_fields, episode_sequence
from alf_lite.datasets.hdf5_files import HDF5_NAME, check_hdf5
from alf_lite.datasets.source import Field, Sequence, Source, field_kind, flatten
from alf_lite.errors import ConfigError, DataError

PREFIX = "minari:"
_METADATA = "metadata.json"
_MAX_METADATA_BYTES = 2**26


class MinariDataset(Source):
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
        self._episode_fields: dict[str, Field] = {}
        if num_episodes:
            first = next(self._episodes(range(1)))
            self._episode_fields = {
                name: Field(a.shape[1:], a.dtype) for name, a in first.items()
            }
        self.fields = episode_fields(self._episode_fields)

    @property
    def spaces(self) -> tuple[Space, Space]:
        """Of observations and actions."""
        return self._storage.observation_space, self._storage.action_space

    def sequences(self) -> Iterator[Sequence]:
        for number, arrays in enumerate(self._episodes(range(self._num_episodes))):
            num_actions = len(arrays["reward"])
            for name, field in self._episode_fields.items():
                array = arrays.get(name)
                of_steps = field_kind(name) in ("observation", "env_info")
                expected = (num_actions + of_steps, *field.shape), field.dtype
                if array is None or (array.shape, array.dtype) != expected:
                    found = array if array is None else (array.shape, str(array.dtype))
                    raise DataError(
                        f"{self.name}: {name} of episode {number} is {found}, expected "
                        f"{expected[0]} {expected[1]}, with {num_actions} rewards"
                    )
            with reading(self.name):
                sequence = episode_sequence(
                    {name: arrays[name] for name in self._episode_fields}
                )
            yield sequence

    def _episodes(self, numbers: range) -> Iterator[dict[str, np.ndarray]]:
        with reading(self.name):
            for episode in self._storage.get_episodes(numbers):
                yield _arrays(episode)

    def _open(self, directory: Path) -> tuple[Any, int, int]:
        """The storage of Minari, how many episodes there are and of how many steps."""
        try:
            from minari.dataset.minari_storage import MinariStorage

            with reading(self.name):
                metadata = _read_metadata(directory)
                # Minari would build the environment that the data set names.
                missing = {"observation_space", "action_space"} - metadata.keys()
                if missing:
                    raise DataError(
                        f"{self.name}: the data set does not say its {sorted(missing)}"
                    )
                counts = (metadata["total_episodes"], metadata["total_steps"])
                if any(type(n) is not int or n < 0 for n in counts):
                    raise RefusalError(f"it says to have {counts} episodes and steps")
                for file in directory.rglob("*"):
                    if not file.is_dir():
                        check_regular(file)
                if metadata["data_format"] == "hdf5":
                    check_hdf5(directory / HDF5_NAME, *counts)
                return MinariStorage.read(directory), *counts
        except ImportError as error:
            raise ConfigError(
                f"{self.name} needs the minari extra ({error}): "
                "pip install 'alf_lite[minari]'"
            ) from error


def find(name: str) -> Path:
    """The directory of a data set in Minari's own place.

    Raises:
        DataError: if there is none of this name; lists those there are.
    """
    root = Path(
        os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets"
    ).expanduser()
    directory = root / name
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
    path = directory / _METADATA
    with open_regular(path) as file, reading(path):
        metadata = json.loads(file.read(_MAX_METADATA_BYTES))
        if not isinstance(metadata, dict):
            raise ValueError("no JSON object")
        return metadata


def _arrays(episode: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The parts of an episode by their paths, ``env_info`` only of every step."""
    reward = np.asarray(episode["rewards"])
    nested = {
        **flatten("observation", episode["observations"]),
        **flatten("action", episode["actions"]),
        "reward": reward,
        "terminated": episode["terminations"],
        "truncated": episode["truncations"],
    }
    arrays = {name: np.asarray(value) for name, value in nested.items()}
    for name, value in flatten("env_info", episode.get("infos") or {}).items():
        info = np.asarray(value)
        if info.shape[:1] == (len(reward) + 1,):
            arrays[name] = info
    return arrays
