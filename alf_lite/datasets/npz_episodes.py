"""Episodes in ``.npz`` files of numpy, in the environment's own units.

A file holds one or more episodes, one after the other. With T actions in N episodes:

    observation           [T + N, ...], one more per episode than actions
    observation/arm/0     likewise, for observations that are nested
    action, action/…      [T, ...]
    reward                [T] or [T, D], of the action with the same index
    terminated            [T] bool, whether the state it led to was terminal
    truncated             [T] bool, whether the episode was ended there, as by a limit
    cut_off               [T] bool, optional: the recording ended there, in mid-episode
    env_info/…            [T + N, ...], optional

An episode ends where one of these three is true, and at the end of the file.
In a directory all ``.npz`` files are read, in the order of their names, where
``episode_2`` comes before ``episode_10``.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from alf_lite.border import RefusalError, border
from alf_lite.checkpoints.archives import open_archive
from alf_lite.datasets import source
from alf_lite.errors import DataError


class NpzEpisodes(source.Source):
    """The episodes of a file, or of the files in a directory.

    Raises:
        DataError: naming the file, if one is damaged, holds anything but arrays, or
            differs from the others.
    """

    is_in_environment_units = True

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._files = natural_order(path.glob("*.npz")) if path.is_dir() else [path]
        if not self._files:
            raise DataError(f"{path}: there are no .npz files in this directory")
        self.fields = {}
        length = 0
        for file in self._files:
            headers = _read_headers(file)
            length += _check_lengths(file, headers)
            fields = source.episode_fields(
                {
                    name: source.RecordedField(f.shape[1:], f.dtype)
                    for name, f in headers.items()
                }
            )
            if self.fields and fields != self.fields:
                raise DataError(_explain(self._files[0], self.fields, file, fields))
            self.fields = fields
        self.lengths = [length]

    def sequences(self) -> Iterator[source.StepSequence]:
        for file in self._files:
            yield from _episodes(file)


def natural_order(files: Iterator[Path]) -> list[Path]:
    """Sorted by name, ``episode_2`` before ``episode_10``."""

    def key(file: Path) -> list[tuple[bool, int, str]]:
        parts = re.split(r"(\d+)", file.name)
        return [(p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts]

    return sorted(files, key=key)


def _episodes(file: Path) -> Iterator[source.StepSequence]:
    arrays = _read_arrays(file)
    if not len(arrays["reward"]):
        return  # one observation, and nothing was done
    with border(file):
        outcomes = (arrays[name] for name in source.FLAGS if name in arrays)
        ended = np.any([source.as_flags(array) for array in outcomes], axis=0)
    ends = [*(np.flatnonzero(ended) + 1).tolist()]
    if not ends or ends[-1] != len(ended):
        ends.append(len(ended))
    _check_observations(file, arrays, len(ends))
    begin = 0
    for episode, end in enumerate(ends):
        # So many observations more than actions came before.
        of_steps = slice(begin + episode, end + episode + 1)
        yield source.episode_sequence(
            {
                name: array[of_steps if source.is_of_steps(name) else slice(begin, end)]
                for name, array in arrays.items()
            }
        )
        begin = end


def _check_observations(
    file: Path, arrays: dict[str, np.ndarray], num_episodes: int
) -> None:
    num_actions = len(arrays["reward"])
    for name, array in arrays.items():
        if source.is_of_steps(name) and len(array) != num_actions + num_episodes:
            raise DataError(
                f"{file}: {name} has {len(array)} rows, expected "
                f"{num_actions + num_episodes}: {num_actions} actions in "
                f"{num_episodes} episodes, and one observation more in each"
            )


def _check_lengths(file: Path, headers: dict[str, source.RecordedField]) -> int:
    """The number of steps, if the arrays are those of episodes.

    Raises:
        DataError: if one is missing or does not fit to the others.
    """
    observations, actions = _observations_and_actions(file, headers)
    flags = [name for name in source.FLAGS if name in headers]
    for name, header in headers.items():
        if not header.shape or (name in flags and len(header.shape) != 1):
            raise DataError(
                f"{file}: {name} has the shape {header.shape}, expected [T]"
            )
    for name in (*flags, "reward"):
        if headers[name].dtype.kind not in "biuf":
            raise DataError(f"{file}: {name} is {headers[name].dtype}, no numbers")
    num_actions = headers["reward"].shape[0]
    for name in (*actions, *flags):
        if headers[name].shape[0] != num_actions:
            raise DataError(
                f"{file}: {name} has {headers[name].shape[0]} rows, but there are "
                f"{num_actions} rewards"
            )
    return headers[observations[0]].shape[0] if num_actions else 0


def _observations_and_actions(
    file: Path, headers: dict[str, source.RecordedField]
) -> tuple[list[str], list[str]]:
    """The names of their arrays.

    Raises:
        DataError: if what episodes need is missing, or there is something else.
    """
    found = {
        kind: [name for name in headers if source.field_kind(name) == kind]
        for kind in ("observation", "action")
    }
    missing = [name for name in ("reward", *source.OUTCOMES) if name not in headers]
    missing += [kind for kind, names in found.items() if not names]
    if missing:
        raise DataError(
            f"{file}: {', '.join(missing)} missing; it has "
            f"{', '.join(headers) or 'nothing'}"
        )
    known = {*found["observation"], *found["action"], "reward", *source.FLAGS}
    unknown = [
        n for n in headers if n not in known and source.field_kind(n) != "env_info"
    ]
    if unknown:
        raise DataError(
            f"{file}: {', '.join(unknown)} cannot be read. Leave it out, or name it "
            "env_info/… if it is an info key of the environment, with a row for every "
            "observation."
        )
    return found["observation"], found["action"]


def _read_headers(file: Path) -> dict[str, source.RecordedField]:
    """Shape and dtype of every array, without reading it."""
    with open_archive(file) as archive:
        headers = {}
        for member in archive.infolist():
            name = _array_name(member)
            if name in headers:
                raise RefusalError(f"{name} is in it twice")
            headers[name] = _read_header(file, archive, member)
        return headers


def _array_name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _read_header(
    file: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> source.RecordedField:
    name = _array_name(info)
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(member)
        num_bytes = info.file_size - member.tell()
    if dtype.hasobject:
        raise DataError(
            f"{file}: {name} holds Python objects: refused, because reading them "
            "could run code. Store plain arrays of numbers."
        )
    if min((0, *shape)) < 0 or math.prod(shape) * dtype.itemsize != num_bytes:
        raise DataError(
            f"{file}: {name} claims to be {shape} {dtype}, but has {num_bytes} bytes"
        )
    return source.RecordedField(shape, dtype)


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    arrays = {}
    with open_archive(file) as archive:
        source.check_fits("it", sum(info.file_size for info in archive.infolist()))
        for info in archive.infolist():
            with archive.open(info) as member:
                name = _array_name(info)
                arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                member.read(1)  # at the end its checksum is compared
    return arrays


def _explain(
    first: Path,
    expected: dict[str, source.RecordedField],
    file: Path,
    found: dict[str, source.RecordedField],
) -> str:
    lines = [
        f"  {name}: {expected.get(name, 'nothing')} and {found.get(name, 'nothing')}"
        for name in sorted({*expected, *found})
        if expected.get(name) != found.get(name)
    ]
    return (
        f"{first} and {file} are not of one environment; these fields differ:\n"
        + "\n".join(lines)
    )
