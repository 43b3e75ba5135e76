"""Writes a replay buffer as a source of recorded steps."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from alf_lite.checkpoints.files import check_is_new, new_output
from alf_lite.data_structures import StepType
from alf_lite.datasets.replay_sources import BufferSource
from alf_lite.datasets.source import (
    CUT_OFF,
    Arrays,
    Segments,
    Source,
    StepSequence,
    field_kind,
    is_of_steps,
    join_path,
)
from alf_lite.datasets.step_assembly import recorded_leaves
from alf_lite.environments.environment import Environment
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.errors import ConfigError, DataError, needs_extra
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer

_logger = logging.getLogger(__name__)

FORMATS = ("alf_lite", "npz", "minari")


def check_output(path: Path | str, output_format: str) -> None:
    """Finds out early whether :func:`write_source` can write there.

    Raises:
        ConfigError: if there is something at ``path`` already, the name does not fit
            the format, or that needs a missing extra.
    """
    path = Path(path).expanduser()
    if output_format not in FORMATS:
        raise ConfigError(
            f"the format must be one of {', '.join(FORMATS)}, got {output_format!r}"
        )
    check_is_new(path)
    if output_format == "npz" and path.suffix != ".npz":
        raise ConfigError(f"{path}: the name of an npz file ends in .npz")
    if output_format != "npz" and path.suffix == ".npz":
        raise ConfigError(
            f"{path}: only the names of npz files end in .npz. Give --format=npz, or "
            "choose another name."
        )
    if output_format == "minari":
        dataset_name(path)
        _check_minari()


def write_source(
    buffer: ReplayBuffer, env: Environment, path: Path | str, output_format: str
) -> None:
    """Writes all steps of a buffer; the output appears whole or not at all.

    ``alf_lite`` keeps the steps as they are, those of every environment apart. ``npz``
    and ``minari`` hold episodes in the environment's own units, environment after
    environment; what is left of an episode that was cut becomes a truncated one. They
    say of discounts where they are 0 at an end: a warning tells of others.

    Args:
        buffer: of ``Experience``.
        env: that the steps are of.
        path: of the file or, for ``minari``, the directory.
        output_format: one of :data:`FORMATS`.

    Raises:
        ConfigError: if there is something at ``path`` already, it cannot be written, or
            the ``minari`` extra is missing.
        DataError: if there is not one transition to be written.
    """
    path = Path(path).expanduser()
    check_output(path, output_format)
    source = BufferSource(buffer)
    if next(EpisodeReader(source, env).episodes(), None) is None:
        raise DataError(
            f"there is nothing to be written to {path}: no step is followed by another"
        )
    reader = EpisodeReader(source, env)
    episodes = reader.episodes()
    with new_output(path) as temporary:
        if output_format == "alf_lite":
            buffer.save().write_to(temporary)
        elif output_format == "npz":
            write_npz(episodes, temporary)
        else:
            write_minari(episodes, env, temporary, dataset_name(path))
    if reader.num_lost_discounts:
        _logger.warning(
            "%s: %d steps have discounts that are neither 0 at the end of an episode "
            "nor 1, and are 1 there. The format alf_lite keeps them.",
            path,
            reader.num_lost_discounts,
        )


class EpisodeReader:
    """Cuts a source into episodes, as data sets hold them.

    Args:
        source: in the agent's units, with ``prev_action``.
        env: that it was recorded in.

    Attributes:
        num_lost_discounts: steps of which episodes do not say the discount, so far.
    """

    def __init__(self, source: Source, env: Environment) -> None:
        self.num_lost_discounts = 0
        self._source = source
        self._leaves = recorded_leaves(env)

    def episodes(self) -> Iterator[Arrays]:
        """One after the other; what is left of an episode that was cut counts as one.

        Yields:
            With T actions: ``action`` [T, ...], ``reward`` [T] or [T, D],
            ``terminated`` [T] and ``truncated`` [T]; ``observation`` [T + 1, ...] and
            ``env_info`` likewise. The last step of an episode that was cut is
            truncated, and ``cut_off`` [T].
        """
        for sequence in self._source.sequences():
            segments = Segments.of(sequence.fields["step_type"])
            for begin, end in zip(segments.begins, segments.ends, strict=True):
                if end - begin > 1:
                    yield self._episode(sequence, int(begin), int(end))

    def _episode(self, sequence: StepSequence, begin: int, end: int) -> Arrays:
        fields = sequence.fields
        arrays = {}
        for name, array in fields.items():
            if is_of_steps(name):
                arrays[name] = self._to_environment(name, array[begin:end])
            elif field_kind(name) == "prev_action":
                action = name.removeprefix("prev_")
                arrays[action] = self._to_environment(action, array[begin + 1 : end])
        arrays["reward"] = fields["reward"][begin + 1 : end]
        is_last = fields["step_type"][end - 1] == StepType.LAST
        is_terminal = bool(is_last and fields["discount"][end - 1] == 0)
        flags = np.zeros((2, end - begin - 1), np.bool_)
        flags[:, -1] = is_terminal, not is_terminal
        arrays["terminated"], arrays["truncated"] = flags
        arrays[CUT_OFF] = flags[1] & ~is_last
        told = np.where(flags[0], 0.0, 1.0)
        self.num_lost_discounts += int(
            (fields["discount"][begin + 1 : end] != told).sum()
        )
        return arrays

    def _to_environment(self, name: str, array: np.ndarray) -> np.ndarray:
        leaf = self._leaves.get(name)
        return array if leaf is None else leaf.to_environment(array)


def write_npz(episodes: Iterable[Arrays], path: Path) -> None:
    """Writes episodes as one ``.npz`` file; what is in it: ``npz_episodes``.

    Args:
        episodes: as of ``EpisodeReader``; at least one.
        path: is overwritten.
    """
    parts: dict[str, list[np.ndarray]] = {}
    for episode in episodes:
        for name, array in episode.items():
            parts.setdefault(name, []).append(array)
    arrays: dict[str, Any] = {
        name: np.concatenate(parts.pop(name)) for name in list(parts)
    }
    if not arrays[CUT_OFF].any():
        del arrays[CUT_OFF]
    with path.open("wb") as file:  # savez adds a suffix to a name
        np.savez(file, **arrays)


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
    _check_minari()
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

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


def _check_minari() -> None:
    with needs_extra("the format minari", "minari"):
        import h5py  # noqa: F401 - Minari says so only when it needs it
        import minari  # noqa: F401
