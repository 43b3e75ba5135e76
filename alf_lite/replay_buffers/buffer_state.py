"""The content of a replay buffer, to a file and back.

Only the steps that are stored are in it. They are written from where they lie and read
to where they belong, a piece at a time: neither needs memory for a second buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from alf_lite.checkpoints.files import Stream
from alf_lite.errors import CheckpointError
from alf_lite.replay_buffers import replay_file
from alf_lite.replay_buffers.position_ranges import PositionRanges
from alf_lite.replay_buffers.replay_file import ReplayFile, leaf_of_rows
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.row_layout import Leaf, RowLayout, dtype_name
from alf_lite.replay_buffers.window_sampler import UniformSampler

_CHUNK_BYTES = 2**26


def save(storage: RingStorage, sampler: UniformSampler) -> Stream:
    """The content of a ``ReplayFile``; to be written before the storage changes."""
    numbers, step_arrays = sampler.export(), sampler.step_arrays()
    begin, end, row_bytes = storage.begin, storage.end, storage.layout.row_bytes
    num_rows = int((end - begin).sum())
    header = replay_file.header(
        storage.layout.leaves,
        row_bytes,
        storage.num_environments,
        num_rows,
        {name: array.dtype for name, array in step_arrays.items()},
        numbers,
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
    return Stream(num_bytes, pieces, replay_file.DIGEST_PLACE)


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
    is_alike = _kinds(sampler.export(), step_arrays) == _kinds(
        file.numbers, file.step_arrays
    )
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


def restore_sampling(
    sampler: UniformSampler,
    numbers: Mapping[str, float],
    step_arrays: Mapping[str, np.ndarray],
) -> bool:
    """Continues as another sampler of the same steps, if that drew in the same way."""
    own = sampler.step_arrays()
    if _kinds(sampler.export(), own) != _kinds(numbers, step_arrays) or any(
        own[name].shape != array.shape for name, array in step_arrays.items()
    ):
        return False
    for name, array in step_arrays.items():
        own[name][:] = array
    sampler.restore(dict(numbers))
    return True


def _kinds(
    numbers: Mapping[str, float], step_arrays: Mapping[str, np.ndarray]
) -> dict[str, str]:
    """What a sampler keeps. Weights may be priorities, or all 1."""
    kinds = {name: type(number).__name__ for name, number in numbers.items()}
    kinds["is_prioritized"] = str(numbers.get("is_prioritized", 0))
    return kinds | {name: str(array.dtype) for name, array in step_arrays.items()}


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
    by_path = {leaf.path: leaf_of_rows(leaf, rows) for leaf in leaves}
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
