"""Writes a replay buffer as a source of recorded steps."""

from __future__ import annotations

from pathlib import Path

from alf_lite.checkpoints.new_output import check_is_new, new_output
from alf_lite.datasets.buffer_source import BufferSource
from alf_lite.datasets.episode_reader import EpisodeReader
from alf_lite.datasets.minari_writer import dataset_name, write_minari
from alf_lite.datasets.npz_writer import write_npz
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, DataError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer

FORMATS = ("alf_lite", "npz", "minari")


def check_output(path: Path | str, output_format: str) -> None:
    """Finds out early whether :func:`write_source` can write there.

    Raises:
        ConfigError: if there is something at ``path`` already, or the name does not fit
            the format.
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


def write_source(
    buffer: ReplayBuffer, env: Environment, path: Path | str, output_format: str
) -> None:
    """Writes all steps of a buffer; the output appears whole or not at all.

    ``alf_lite`` keeps the steps as they are, those of every environment apart. ``npz``
    and ``minari`` hold episodes in the environment's own units, environment after
    environment; what is left of an episode that was cut becomes a truncated one.

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
    reader = EpisodeReader(BufferSource(buffer), env)
    if next(reader.episodes(), None) is None:
        raise DataError(
            f"there is nothing to be written to {path}: no step is followed by another"
        )
    episodes = reader.episodes()
    with new_output(path) as temporary:
        if output_format == "alf_lite":
            buffer.save().write_to(temporary)
        elif output_format == "npz":
            write_npz(episodes, temporary)
        else:
            write_minari(episodes, env, temporary, dataset_name(path))
