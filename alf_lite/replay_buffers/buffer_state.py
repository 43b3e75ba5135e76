"""The content of a replay buffer as plain data, for checkpoints and offline use.

Only the steps that are stored are in it, chronologically, environment after
environment, in one tensor of rows. ``torch.save`` writes it as it is, and
``torch.load(…, weights_only=True, mmap=True)`` maps it without reading it. The state
describes its own rows: :func:`leaf_views` needs no specs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite.errors import CheckpointError
from alf_lite.replay_buffers.allocation import allocate
from alf_lite.replay_buffers.position_ranges import PositionRanges
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.row_layout import Leaf, RowLayout
from alf_lite.replay_buffers.window_sampler import UniformSampler

FORMAT = "alf_lite-replay-1"
_CHUNK_BYTES = 2**26


def export(storage: RingStorage, sampler: UniformSampler) -> dict[str, Any]:
    """The state.

    Returns:
        A dict of numbers, strings, lists and tensors on the CPU:

        * ``format``
        * ``leaves``: [path, shape, dtype, offset in bytes] of every leaf.
        * ``begin``, ``end``: [E] positions of the oldest steps and after the newest.
        * ``rows``: uint8 [R, row_bytes], one row per step.
        * ``sampler``: what the sampler knows, in general and about each of the R steps.
    """
    stored = PositionRanges(storage.begin.copy(), storage.end.copy())
    indices = storage.row_indices(*stored.all())
    return {
        "format": FORMAT,
        "leaves": [
            [leaf.path, list(leaf.shape), _name(leaf.dtype), leaf.offset]
            for leaf in storage.layout.leaves
        ],
        "begin": torch.from_numpy(stored.first),
        "end": torch.from_numpy(stored.last),
        "rows": _copy_rows(storage, indices),
        "sampler": sampler.export(indices),
    }


class StoredRows(NamedTuple):
    """Steps as they lie in a buffer, or in a file."""

    leaves: dict[str, Leaf]  # by path
    rows: Tensor  # uint8 [R, row_bytes], one environment after the other

    def view(self, path: str) -> Tensor:
        """A leaf of all rows, [R, *shape]."""
        leaf = self.leaves[path]
        return self.rows.view(leaf.dtype).as_strided(
            *leaf.view_arguments(self.rows.shape[:1], self.rows.shape[1])
        )


def stored_rows(state: dict[str, Any]) -> StoredRows:
    """The rows of a state as they are, without a copy.

    Raises:
        CheckpointError: if this is not the state of a replay buffer.
    """
    rows = _checked_rows(state)
    leaves = _checked_leaves(state, rows.shape[1])
    return StoredRows({leaf.path: leaf for leaf in leaves}, rows)


def leaf_views(state: dict[str, Any]) -> dict[str, Tensor]:
    """The leaves by path, [R, *shape] in the order of the state's rows, as views.

    Raises:
        CheckpointError: if this is not the state of a replay buffer.
    """
    stored = stored_rows(state)
    return {path: stored.view(path) for path in stored.leaves}


def restore(
    storage: RingStorage, sampler: UniformSampler, state: dict[str, Any]
) -> None:
    """Replaces the content of a buffer by a state.

    Raises:
        CheckpointError: if the state does not fit; nothing has changed then.
    """
    rows = _checked_rows(state)
    leaves = _checked_leaves(state, rows.shape[1])
    saved = PositionRanges(state["begin"].numpy(), state["end"].numpy())
    _compare_leaves(storage.layout.leaves, leaves)
    if len(saved.first) != storage.num_environments:
        raise CheckpointError(
            f"the saved replay buffer has {len(saved.first)} environments, this one "
            f"has {storage.num_environments}"
        )
    _compare_samplers(sampler.export(np.zeros(0, np.int64)), state["sampler"], rows)
    # A smaller buffer takes the newest steps.
    kept = saved.newest(storage.max_length)
    env_ids, positions = kept.all()
    sizes = saved.last - saved.first
    chosen = positions - saved.first[env_ids] + (sizes.cumsum() - sizes)[env_ids]
    rows = rows if kept.size == saved.size else rows[torch.from_numpy(chosen)]
    if leaves != storage.layout.leaves:
        rows = _rearrange(rows, leaves, storage.layout)
    storage.replace(kept.first, kept.last, rows)
    sampler.restore(storage.row_indices(env_ids, positions), state["sampler"], chosen)


def _copy_rows(storage: RingStorage, indices: np.ndarray) -> Tensor:
    """Rows of the storage; of a storage in a file, in another file."""
    row_bytes = storage.layout.row_bytes
    directory = storage.directory if len(indices) else None
    memory = allocate(len(indices) * row_bytes, torch.device("cpu"), directory)
    rows = memory.view(len(indices), row_bytes)
    step = max(1, _CHUNK_BYTES // row_bytes)
    for i in range(0, len(indices), step):
        rows[i : i + step] = storage.gather_rows(indices[i : i + step])
    return rows


def _rearrange(rows: Tensor, leaves: list[Leaf], layout: RowLayout) -> Tensor:
    """The same steps in the layout of this buffer."""
    rearranged = torch.empty((len(rows), layout.row_bytes), dtype=torch.uint8)
    views = _views(rows, leaves)
    for leaf, view in zip(layout.leaves, layout.views(rearranged), strict=True):
        view.copy_(views[leaf.path])
    return rearranged


def _views(rows: Tensor, leaves: list[Leaf]) -> dict[str, Tensor]:
    return {
        leaf.path: rows.view(leaf.dtype).as_strided(
            *leaf.view_arguments(rows.shape[:1], rows.shape[1])
        )
        for leaf in leaves
    }


def _checked_rows(state: dict[str, Any]) -> Tensor:
    """The rows of a state whose parts are all there and fit together.

    Raises:
        CheckpointError: if they do not.
    """
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"this is not a saved replay buffer ({FORMAT})")
    for name, dtype, ndim in (
        ("begin", torch.int64, 1),
        ("end", torch.int64, 1),
        ("rows", torch.uint8, 2),
    ):
        part = state.get(name)
        if not isinstance(part, Tensor) or part.dtype != dtype or part.ndim != ndim:
            raise CheckpointError(
                f"saved replay buffer: {name} must be a {dtype} tensor with {ndim} "
                "dimensions"
            )
    if not isinstance(state.get("sampler"), dict):
        raise CheckpointError("saved replay buffer: sampler must be a dict")
    begin, end, rows = state["begin"], state["end"], state["rows"]
    if (
        begin.shape != end.shape
        or (begin < 0).any()
        or (end < begin).any()
        or int((end - begin).sum()) != len(rows)
    ):
        raise CheckpointError(
            f"saved replay buffer: the positions {begin.tolist()} to {end.tolist()} do "
            f"not fit {len(rows)} rows"
        )
    if not rows.is_contiguous() or rows.storage_offset():
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows


def _checked_leaves(state: dict[str, Any], row_bytes: int) -> list[Leaf]:
    """The leaves that a state describes.

    Raises:
        CheckpointError: if the description is wrong.
    """
    leaves = []
    try:
        for path, shape, dtype, offset in state["leaves"]:
            leaf = Leaf(str(path), torch.Size(shape), _DTYPES[dtype], offset)
            fits = 0 <= offset <= row_bytes - leaf.num_bytes and min((0, *shape)) == 0
            if (
                not fits
                or offset % leaf.dtype.itemsize
                or row_bytes % leaf.dtype.itemsize
            ):
                raise ValueError(f"{path} does not lie inside of a row")
            leaves.append(leaf)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"saved replay buffer: leaves: {error}") from error
    return leaves


def _compare_leaves(expected: list[Leaf], saved: list[Leaf]) -> None:
    """Raises CheckpointError if other leaves were saved, naming each difference."""
    wanted, found = (
        {leaf.path: f"{tuple(leaf.shape)} {_name(leaf.dtype)}" for leaf in leaves}
        for leaves in (expected, saved)
    )
    differences = [
        f"{path}: expected {wanted.get(path, 'nothing')}, "
        f"saved {found.get(path, 'nothing')}"
        for path in sorted(wanted.keys() | found.keys())
        if wanted.get(path) != found.get(path)
    ]
    if differences:
        raise CheckpointError(
            "the saved replay buffer holds other data:\n  " + "\n  ".join(differences)
        )


def _compare_samplers(
    expected: dict[str, Any], saved: dict[str, Any], rows: Tensor
) -> None:
    """Raises CheckpointError if the steps were sampled in another way."""
    for name in sorted(expected.keys() | saved.keys()):
        known, other = expected.get(name), saved.get(name)
        fits = type(known) is type(other)
        if isinstance(known, Tensor) and isinstance(other, Tensor):
            fits = known.dtype == other.dtype and other.shape == rows.shape[:1]
        if not fits:
            raise CheckpointError(
                "the saved replay buffer was sampled in another way (priorities, "
                f"max_use, max_staleness): {name} differs"
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_DTYPES = {
    _name(dtype): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
