"""The steps of a replay buffer in a file that describes itself and can be mapped.

The file (``checkpoints/array_file.py``) has one row of bytes per step, chronologically,
those of environment 0, then of environment 1, …, and says where in a row each leaf
lies. So it can be read without the buffer, the specs or the algorithm that it was
written by. Steps are written from where they lie in a buffer and restored to where they
belong, a piece at a time: neither needs memory for a second buffer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.border import CHECKPOINT, FOREIGN, border, reading
from alf_lite.checkpoints import files as checkpoint_files
from alf_lite.checkpoints.array_file import decode_header, encode_header
from alf_lite.checkpoints.files import Stream
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.errors import CheckpointError
from alf_lite.nest import build_nest
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.row_layout import Leaf, RowLayout, dtype_name
from alf_lite.replay_buffers.sampling_weights import NEVER_STALE
from alf_lite.replay_buffers.window_sampler import PositionRanges, UniformSampler
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.plain_data import check_like, check_numbers

Nest = Any

FILE_NAME = "replay_buffer.safetensors"
_FORMAT = "alf_lite-replay-1"
_OTHER = FOREIGN._replace(verdict=f"not a replay buffer of the format {_FORMAT}")
_CHUNK_BYTES = 2**26
# Every header begins with it: the length, then the sha256 of the file with this digest
# of zeros. A file in a checkpoint keeps the zeros; it has its sha256 in the manifest.
_BEGIN = b'{"__metadata__": {"sha256": "'
_NO_DIGEST = "0" * 64
DIGEST_PLACE = 8 + len(_BEGIN)
_DTYPES = {
    dtype_name(dtype): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
# What the steps of a run are; fields of other types are read as dicts.
_TYPES = {"<root>": Experience, "time_step": TimeStep}


class RawSteps(NamedTuple):
    """Steps as they lie in a buffer, or in a file."""

    leaves: dict[str, Leaf]  # by path
    rows: Tensor  # uint8 [R, row_bytes], one environment after the other

    def view(self, path: str) -> Tensor:
        """A leaf of all rows, [R, *shape]."""
        return self.leaves[path].of_rows(self.rows)


class ReplayFile:
    """A file of steps, mapped into memory: what is not looked at is not read.

    Attributes:
        path: of the file.
        leaves: where the leaves lie in a row.
        begin: [E] int64, the positions of the oldest steps.
        end: [E] int64, one past those of the newest.
        rows: uint8 [R, row_bytes], one row per step, environment after environment.
        step_arrays: name -> [R], what else is known about each step.
        numbers: what else is known in general.
    """

    def __init__(self, path: Path | str, *, verify: bool = True) -> None:
        """Opens a file.

        Args:
            path: of the file, or the directory of a checkpoint that has one.
            verify: compare the file with its sha256, in the manifest of its checkpoint
                or in the file itself. It is read once for that.

        Raises:
            CheckpointError: if there is no such file, or it is damaged.
        """
        path = Path(path)
        self.path = path / FILE_NAME if path.is_dir() else path
        if path.is_dir() and not self.path.exists():
            raise CheckpointError(
                f"{path} has no {FILE_NAME}. A checkpoint has one with "
                "TrainerConfig.checkpoint_replay_buffer = True."
            )
        with _open(self.path, verify) as file:
            # A private copy: what is written to it does not reach the file.
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        with border(self.path, _OTHER):
            self._read()

    def _read(self) -> None:
        data = self._data
        arrays_of_file, metadata = decode_header(data, str(self.path))
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"its format is {metadata.get('format')!r}")
        places = dict(arrays_of_file)
        rows = places.pop("rows")
        num_rows, row_bytes = rows.shape
        size = rows.end - rows.begin
        flat = (
            torch.frombuffer(data, dtype=torch.uint8, offset=rows.begin, count=size)
            if size
            else torch.empty(0, dtype=torch.uint8)
        )
        if rows.dtype != np.uint8:
            raise ValueError(f"its rows are {rows.dtype}")
        self.rows = flat.view(num_rows, row_bytes)
        arrays = {
            name: np.frombuffer(
                data, place.dtype, math.prod(place.shape), place.begin
            ).reshape(place.shape)
            for name, place in places.items()
        }
        self.begin, self.end = arrays.pop("begin"), arrays.pop("end")
        self.step_arrays = arrays
        self.numbers = json.loads(metadata["numbers"])
        check_like(self.numbers, {}, f"{self.path}: numbers")
        check_numbers(self.numbers, f"{self.path}: numbers")
        self._check_counts()
        self.leaves = _read_leaves(json.loads(metadata["leaves"]), row_bytes)
        sizes = self.end - self.begin
        self._first_rows = sizes.cumsum() - sizes

    def _check_counts(self) -> None:
        begin, end, num_rows = self.begin, self.end, len(self.rows)
        if not (
            begin.dtype == end.dtype == np.int64
            and begin.shape == end.shape
            and begin.ndim == 1
            and (begin >= 0).all()
            and (end >= begin).all()
            and (end - begin).sum() == num_rows
        ):
            raise ValueError(
                f"the positions {begin.tolist()} to {end.tolist()} do not fit "
                f"{num_rows} rows"
            )
        for name, array in self.step_arrays.items():
            if array.shape != (num_rows,):
                raise ValueError(f"{name} has the shape {array.shape}, not {num_rows}")
            # Weights, uses and iterations. Not so a NaN, either.
            least = NEVER_STALE if name == "collected_at" else 0
            if not (array >= least).all() or np.isinf(array).any():
                raise ValueError(f"{name} has entries that are negative or not finite")

    def as_stream(self) -> Stream:
        """The content of the file, to write it once more."""
        data = memoryview(self._data)
        num_bytes = len(data)
        return Stream(
            num_bytes,
            lambda: (
                data[begin : begin + _CHUNK_BYTES]
                for begin in range(0, num_bytes, _CHUNK_BYTES)
            ),
        )

    @property
    def num_environments(self) -> int:
        return len(self.begin)

    @property
    def lengths(self) -> np.ndarray:
        """[E] int64, how many steps there are of each environment."""
        return self.end - self.begin

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Path -> spec of every leaf of a step."""
        return {leaf.path: TensorSpec(leaf.shape, leaf.dtype) for leaf in self.leaves}

    @property
    def stored(self) -> RawSteps:
        """All rows, for a buffer that takes them as they are."""
        return RawSteps({leaf.path: leaf for leaf in self.leaves}, self.rows)

    def places(self, env_id: int, begin: int = 0, end: int | None = None) -> slice:
        """Where some steps of an environment are, in ``rows`` and ``step_arrays``.

        Args:
            env_id: of the environment.
            begin: the first of its steps; 0 is the oldest one in the file.
            end: one past the last; None is the number of steps.

        Raises:
            IndexError: if there is no such environment or step.
        """
        if not 0 <= env_id < self.num_environments:
            raise IndexError(
                f"{self.path}: there is no environment {env_id}; it has "
                f"{self.num_environments}, numbered from 0"
            )
        length = int(self.lengths[env_id])
        end = length if end is None else end
        if not 0 <= begin <= end <= length:
            raise IndexError(
                f"{self.path}: there are no steps {begin} to {end} of environment "
                f"{env_id}, which has {length}"
            )
        first = int(self._first_rows[env_id])
        return slice(first + int(begin), first + int(end))

    def read_leaves(
        self, env_id: int, begin: int = 0, end: int | None = None
    ) -> dict[str, Tensor]:
        """Path -> some steps [T, ...] of an environment, as views of the mapped file.

        Args:
            env_id: of the environment.
            begin: the first step, see :meth:`places`.
            end: one past the last.
        """
        rows = self.rows[self.places(env_id, begin, end)]
        return {leaf.path: leaf.of_rows(rows) for leaf in self.leaves}

    def read(
        self,
        env_id: int,
        begin: int = 0,
        end: int | None = None,
        structure: NestedTensorSpec | None = None,
    ) -> Nest:
        """As :meth:`read_leaves`, but a nest.

        Args:
            env_id: of the environment.
            begin: the first step, see :meth:`places`.
            end: one past the last.
            structure: what the nest shall be like; its leaves are looked up by their
                paths, whatever they are. None means an ``Experience`` with a
                ``TimeStep``, in which fields of other types become dicts.

        Raises:
            ValueError: if a leaf of ``structure`` is not in the file; lists them.
        """
        leaves = self.read_leaves(env_id, begin, end)
        if structure is None:
            return build_nest(leaves, _TYPES)
        paths = [path for path, _ in nest.flatten_with_path(structure)]
        missing = [path for path in paths if path not in leaves]
        if missing:
            raise ValueError(
                f"{self.path} has no {', '.join(missing)}; it has {', '.join(leaves)}"
            )
        return nest.pack_sequence_as(structure, [leaves[path] for path in paths])


def _read_leaves(entries: Any, row_bytes: int) -> list[Leaf]:
    if not isinstance(entries, list) or not entries:
        raise ValueError("it says nothing about the leaves of a step")
    leaves = []
    for path, shape, dtype, offset in entries:
        leaf = Leaf(str(path), torch.Size(shape), _DTYPES[dtype], int(offset))
        fits = 0 <= offset <= row_bytes - leaf.num_bytes and min((0, *shape)) == 0
        if not fits or offset % leaf.dtype.itemsize or row_bytes % leaf.dtype.itemsize:
            raise ValueError(f"{path} does not lie inside of a row")
        leaves.append(leaf)
    return leaves


@contextlib.contextmanager
def _open(path: Path, verify: bool) -> Iterator[BufferedReader]:
    if verify and (path.parent / checkpoint_files.MANIFEST_NAME).is_file():
        manifest = checkpoint_files.read_manifest(path.parent)
        if path.name in manifest["files"]:
            with checkpoint_files.open_verified(path.parent, manifest, path.name) as f:
                yield f
            return
    with reading(path, CHECKPOINT) as file:
        if verify:
            _compare_with_digest(path, file)
        yield file


def _compare_with_digest(path: Path, file: BufferedReader) -> None:
    """Raises CheckpointError if the file has a sha256 and another content."""
    begin = file.read(DIGEST_PLACE)
    expected = file.read(len(_NO_DIGEST))
    if begin[8:] == _BEGIN and expected != _NO_DIGEST.encode():
        digest = hashlib.sha256(begin + _NO_DIGEST.encode())
        found = hashlib.file_digest(file, lambda: digest).hexdigest()
        if found.encode() != expected:
            raise CheckpointError(
                f"{path}: the content does not match its sha256; it was changed, "
                "damaged or cut off after it was written"
            )
    file.seek(0)


def save(storage: RingStorage, sampler: UniformSampler) -> Stream:
    """The content of a ``ReplayFile``; to be written before the storage changes."""
    numbers, step_arrays = sampler.export(), sampler.step_arrays()
    begin, end, row_bytes = storage.begin, storage.end, storage.layout.row_bytes
    num_rows = int((end - begin).sum())
    places = [
        [x.path, list(x.shape), dtype_name(x.dtype), x.offset]
        for x in storage.layout.leaves
    ]
    metadata = {
        "sha256": _NO_DIGEST,
        "format": _FORMAT,
        "leaves": json.dumps(places),
        "numbers": json.dumps(numbers),
    }
    of_each = (begin.dtype, begin.shape)
    header = encode_header(
        {
            "rows": (np.dtype(np.uint8), (num_rows, row_bytes)),
            "begin": of_each,
            "end": of_each,
            **{name: (a.dtype, (num_rows,)) for name, a in step_arrays.items()},
        },
        metadata,
    )

    def pieces() -> Iterator[bytes | memoryview]:
        places = storage.places(begin, end)
        yield header
        for place in places:
            for chunk in storage.rows[place].split(_rows_per_chunk(row_bytes)):
                yield chunk.numpy(force=True).data
        yield begin.tobytes()
        yield end.tobytes()
        for array in step_arrays.values():
            for place in places:
                yield array[place].data

    bytes_per_step = row_bytes + sum(a.itemsize for a in step_arrays.values())
    positions = begin.nbytes + end.nbytes
    num_bytes = len(header) + num_rows * bytes_per_step + positions
    return Stream(num_bytes, pieces, DIGEST_PLACE)


def restore(storage: RingStorage, sampler: UniformSampler, file: ReplayFile) -> bool:
    """Replaces the content of a buffer by that of a file.

    Returns:
        Whether ``sampler`` continues as the saved one. It is unchanged otherwise, as
        that one drew in another way.

    Raises:
        CheckpointError: if it does not fit; nothing has changed then.
    """
    _compare_leaves(storage.layout.leaves, file)
    if file.num_environments != storage.num_environments:
        raise CheckpointError(
            f"{file.path} has {file.num_environments} environments, the replay buffer "
            f"has {storage.num_environments}"
        )
    step_arrays = sampler.step_arrays()
    is_alike = sampler.is_like(file.numbers, file.step_arrays)
    if not is_alike:
        step_arrays = {}
    # A smaller buffer takes the newest steps.
    kept = PositionRanges(file.begin, file.end).newest(storage.max_length)
    storage.replace(kept.first, kept.last)
    for env_id in range(storage.num_environments):
        in_file = file.places(env_id, kept.first[env_id] - file.begin[env_id])
        for place in storage.places_of(env_id, kept.first[env_id], kept.last[env_id]):
            num_rows = place.stop - place.start
            source = slice(in_file.start, in_file.start + num_rows)
            in_file = slice(source.stop, in_file.stop)
            _copy_rows(file, source, storage, place)
            for name, array in step_arrays.items():
                array[place] = file.step_arrays[name][source]
    if is_alike:
        sampler.restore(file.numbers)
    return is_alike


def _copy_rows(
    file: ReplayFile, source: slice, storage: RingStorage, place: slice
) -> None:
    """Puts some rows of a file in their place, a piece at a time."""
    begin = place.start
    for rows in file.rows[source].split(_rows_per_chunk(file.rows.shape[1])):
        if file.leaves != storage.layout.leaves:
            rows = _rearrange(rows, file.leaves, storage.layout)
        storage.rows[begin : begin + len(rows)] = rows
        begin += len(rows)


def _rows_per_chunk(row_bytes: int) -> int:
    return max(1, _CHUNK_BYTES // row_bytes)


def _rearrange(rows: Tensor, leaves: list[Leaf], layout: RowLayout) -> Tensor:
    """The same steps in the layout of the buffer."""
    by_path = {leaf.path: leaf.of_rows(rows) for leaf in leaves}
    rearranged = torch.empty((len(rows), layout.row_bytes), dtype=torch.uint8)
    for leaf, view in zip(layout.leaves, layout.views(rearranged), strict=True):
        view.copy_(by_path[leaf.path])
    return rearranged


def _compare_leaves(expected: list[Leaf], file: ReplayFile) -> None:
    """Raises CheckpointError if there are other leaves, naming each difference."""
    wanted, found = (
        {leaf.path: f"{tuple(leaf.shape)} {dtype_name(leaf.dtype)}" for leaf in leaves}
        for leaves in (expected, file.leaves)
    )
    differences = [
        f"{path}: expected {wanted.get(path, 'nothing')}, "
        f"saved {found.get(path, 'nothing')}"
        for path in sorted(wanted.keys() | found.keys())
        if wanted.get(path) != found.get(path)
    ]
    if differences:
        raise CheckpointError(
            f"{file.path} holds other data than the replay buffer:\n  "
            + "\n  ".join(differences)
        )
