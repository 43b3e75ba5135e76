"""The content of a replay buffer, to a file and back.

Only the steps that are stored are in it. They are written from where they lie and read
to where they belong, a piece at a time: neither needs memory for a second buffer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from alf_lite.errors import CheckpointError
from alf_lite.replay_buffers import replay_file
from alf_lite.replay_buffers.position_ranges import PositionRanges
from alf_lite.replay_buffers.replay_file import ReplayFile, leaf_of_rows
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.row_layout import Leaf, RowLayout, dtype_name
from alf_lite.replay_buffers.window_sampler import UniformSampler
from alf_lite.utils.checkpoint_files import Stream

_CHUNK_BYTES = 2**26


def save(storage: RingStorage, sampler: UniformSampler) -> Stream:
    """The content of a ``ReplayFile``; to be written before the storage changes."""
    stored = PositionRanges(storage.begin.copy(), storage.end.copy())
    numbers, step_arrays = sampler.export(storage.row_indices(*stored.all()))
    layout = storage.layout
    before, behind = replay_file.encode(
        layout.leaves,
        layout.row_bytes,
        stored.first,
        stored.last,
        step_arrays,
        numbers,
    )

    def pieces() -> Iterator[bytes | memoryview]:
        yield before
        for env_id in range(storage.num_environments):
            for rows in storage.slices(env_id):
                for chunk in rows.split(_rows_per_chunk(layout.row_bytes)):
                    yield memoryview(chunk.numpy(force=True))
        yield behind

    num_bytes = len(before) + stored.size * layout.row_bytes + len(behind)
    return Stream(num_bytes, pieces)


def restore(storage: RingStorage, sampler: UniformSampler, file: ReplayFile) -> None:
    """Replaces the content of a buffer by that of a file.

    Raises:
        CheckpointError: if it does not fit; nothing has changed then.
    """
    _compare_leaves(storage.layout.leaves, file)
    if file.num_environments != storage.num_environments:
        raise CheckpointError(
            f"{file.path} has {file.num_environments} environments, the replay buffer "
            f"has {storage.num_environments}"
        )
    _compare_samplers(sampler, file)
    # A smaller buffer takes the newest steps.
    saved = PositionRanges(file.begin, file.end)
    kept = saved.newest(storage.max_length)
    storage.replace(kept.first, kept.last)
    for env_id in range(storage.num_environments):
        position = int(kept.first[env_id])
        rows = file.rows_of(env_id, position - int(file.begin[env_id]))
        for chunk in rows.split(_rows_per_chunk(rows.shape[1])):
            if file.leaves != storage.layout.leaves:
                chunk = _rearrange(chunk, file.leaves, storage.layout)
            storage.put_rows(env_id, position, chunk)
            position += len(chunk)
    env_ids, positions = kept.all()
    sizes = file.lengths
    chosen = positions - file.begin[env_ids] + (sizes.cumsum() - sizes)[env_ids]
    sampler.restore(
        storage.row_indices(env_ids, positions),
        file.numbers,
        {name: array[chosen] for name, array in file.step_arrays.items()},
    )


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


def _compare_samplers(sampler: UniformSampler, file: ReplayFile) -> None:
    """Raises CheckpointError if the steps were sampled in another way."""
    numbers, step_arrays = sampler.export(np.zeros(0, np.int64))
    wanted, found = (
        {name: type(number).__name__ for name, number in a.items()}
        | {name: str(array.dtype) for name, array in b.items()}
        for a, b in ((numbers, step_arrays), (file.numbers, file.step_arrays))
    )
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise CheckpointError(
                f"{file.path} was sampled in another way (priorities, max_use, "
                f"max_staleness): {name} is {found.get(name, 'not there')}, expected "
                f"{wanted.get(name, 'nothing')}"
            )
