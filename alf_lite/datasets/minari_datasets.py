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

from alf_lite.datasets.episodes import episode_fields, episode_sequence
from alf_lite.datasets.source import Field, Sequence, Source, field_kind, flatten
from alf_lite.errors import ConfigError, DataError

PREFIX = "minari:"
_METADATA = "metadata.json"


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
        self._storage = self._open(_data_directory(directory) or directory)
        num_episodes = self._storage.total_episodes
        self.fields, self.lengths = {}, [0]
        if num_episodes:
            # One more observation than actions each.
            self.lengths = [self._storage.total_steps + num_episodes]
            first = _arrays(next(self._episodes(range(1))))
            self.fields = episode_fields(
                {name: Field(a.shape[1:], a.dtype) for name, a in first.items()}
            )

    @property
    def spaces(self) -> tuple[Space, Space]:
        """Of observations and actions."""
        return self._storage.observation_space, self._storage.action_space

    def sequences(self) -> Iterator[Sequence]:
        for number, episode in enumerate(
            self._episodes(range(self._storage.total_episodes))
        ):
            arrays = _arrays(episode)
            num_actions = len(arrays["reward"])
            for name, array in arrays.items():
                of_steps = field_kind(name) in ("observation", "env_info")
                if len(array) != num_actions + of_steps:
                    raise DataError(
                        f"{self.name}: {name} of episode {number} has {len(array)} "
                        f"rows, expected {num_actions + of_steps}"
                    )
            yield episode_sequence(arrays)

    def _episodes(self, numbers: range) -> Iterator[dict[str, Any]]:
        try:
            yield from self._storage.get_episodes(numbers)
        except (OSError, KeyError, IndexError, ValueError) as error:
            raise DataError(f"{self.name}: damaged or truncated ({error})") from error

    def _open(self, directory: Path) -> Any:
        try:
            from minari.dataset.minari_storage import MinariStorage

            metadata = json.loads((directory / _METADATA).read_text(encoding="utf-8"))
            # Minari would build the environment that the data set names.
            missing = {"observation_space", "action_space"} - metadata.keys()
            if missing:
                raise DataError(
                    f"{self.name}: the data set does not say its {sorted(missing)}"
                )
            return MinariStorage.read(directory)
        except ImportError as error:
            raise ConfigError(
                f"{self.name} needs the minari extra ({error}): "
                "pip install 'alf_lite[minari]'"
            ) from error
        except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.name}: damaged or truncated ({error})") from error


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
        try:
            metadata = json.loads((place / _METADATA).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(metadata, dict) and "data_format" in metadata:
            return place
    return None


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
