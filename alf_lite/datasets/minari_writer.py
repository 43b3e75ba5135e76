"""Writes episodes as a Minari data set (HDF5), with the ``minari`` extra.

https://minari.farama.org. The directory is that of one data set: below Minari's own
directory (``MINARI_DATASETS_PATH``, or ``~/.minari/datasets``) Minari finds it by its
name, which is the path from there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from alf_lite.datasets.source import join_path
from alf_lite.environments.environment import Environment
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.errors import ConfigError

Arrays = Mapping[str, np.ndarray]


def dataset_name(path: Path) -> str:
    """What Minari calls the data set in the directory ``path``.

    Raises:
        ConfigError: if Minari does not accept the name.
    """
    root = os.environ.get("MINARI_DATASETS_PATH")
    directory = Path(root) if root else Path("~/.minari/datasets").expanduser()
    path, directory = path.expanduser().absolute(), directory.absolute()
    inside = path.is_relative_to(directory)
    name = str(path.relative_to(directory)) if inside else path.name
    if not re.fullmatch(r"[-_\w/]+-v\d+", name):
        raise ConfigError(
            f"{name!r} cannot be the name of a Minari data set. Letters, digits, - and "
            "_, and a version at the end: half_cheetah/medium-v0"
        )
    return name


def write_minari(
    episodes: Iterable[Arrays], env: Environment, directory: Path, name: str
) -> None:
    """Writes the data set.

    Args:
        episodes: as of ``EpisodeReader``.
        env: of gymnasium; its spaces and, if it has one, its registered id are written
            with the data.
        directory: does not exist yet.
        name: see :func:`dataset_name`.

    Raises:
        ConfigError: if the extra is missing, or the environment is not of gymnasium.
    """
    try:
        import h5py  # noqa: F401 - Minari says so only when it needs it
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ImportError as error:
        raise ConfigError(
            f"Minari data sets need the minari extra ({error}): "
            "pip install 'alf_lite[minari]'"
        ) from error
    values = env.recorded_values
    if values is None:
        raise ConfigError(
            f"{env.name} is no environment of gymnasium: it has no spaces, which a "
            "Minari data set is described by. Use another format."
        )
    directory.mkdir()
    # Minari takes a relative path for one below its own directory.
    data_directory = directory.absolute() / "data"
    storage = MinariStorage.new(
        data_directory,
        observation_space=values.observation_space,
        action_space=values.action_space,
        env_spec=_serializable_spec(env),
        data_format="hdf5",
        jpeg_encoding=False,  # which would change the pictures
    )
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__})
    observations = SpaceTree(values.observation_space, "observation")
    actions = SpaceTree(values.action_space, "action")
    storage.update_episodes(
        EpisodeBuffer(
            observations=_join(observations, arrays),
            actions=_join(actions, arrays),
            rewards=arrays["reward"],
            terminations=arrays["terminated"],
            truncations=arrays["truncated"],
            infos=_infos(arrays) or None,
        )
        for arrays in episodes
    )


def _join(tree: SpaceTree, arrays: Arrays) -> Any:
    return tree.join(
        [arrays[join_path(tree.path, *map(str, leaf.keys))] for leaf in tree.leaves]
    )


def _infos(arrays: Arrays) -> dict[str, np.ndarray]:
    prefix = join_path("env_info", "")
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _serializable_spec(env: Environment) -> Any:
    """What gymnasium rebuilds the environment from; None if it could not."""
    spec = getattr(getattr(env, "vector_env", None), "spec", None)
    try:
        return None if spec is None or spec.to_json() is None else spec
    except (TypeError, AttributeError):
        return None
