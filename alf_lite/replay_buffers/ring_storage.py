"""The memory of a replay buffer: one ring of rows for every environment.

The step at absolute position p of environment e lies in slot p mod max_length of ring
e. Positions never start again, not even when the buffer is cleared: a position names
one step for ever.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from alf_lite.replay_buffers.allocation import allocate
from alf_lite.replay_buffers.row_layout import Leaves, PackedSteps, RowLayout
from alf_lite.utils.devices import moved_tensor

# So much is staged at most.
_MAX_STEPS = 64
_MAX_BYTES = 2**20

# Rows that are moved as a whole. On the CPU an array with one element of ``row_bytes``
# bytes per row, which numpy moves more than twice as fast as torch; elsewhere a tensor
# with one more dimension for the bytes.
Rows = Any
Nest = Any
_Array = TypeVar("_Array", np.ndarray, Tensor)


class _Place(NamedTuple):
    """The leaves of some rows, [T, E, ...] each, as two kinds of views."""

    tensors: list[Tensor]
    arrays: list[np.ndarray]  # none if the rows are not on the CPU


class RingStorage:
    """``num_environments`` rings of ``max_length`` rows.

    Args:
        layout: of a row.
        num_environments: E.
        max_length: rows per environment.
        device: where the rows are.
        directory: keep them in a file there instead of in memory.
        rows: [E * max_length, row_bytes] of steps, environment after environment, that
            are taken as they are: the storage is full then. None allocates the rows.

    Attributes:
        begin: [E] int64, the position of the oldest step that is stored.
        end: [E] int64, the position of the next step. Both are right after
            :meth:`flush`; they are the storage's own, to be read only.
        num_writes: grows whenever ``begin`` or ``end`` changes.
    """

    def __init__(
        self,
        layout: RowLayout,
        num_environments: int,
        max_length: int,
        device: torch.device,
        directory: Path | str | None = None,
        rows: Tensor | None = None,
    ) -> None:
        self.layout = layout
        self.num_environments = num_environments
        self.max_length = max_length
        self.device = device
        self.directory = directory
        self.begin = np.zeros(num_environments, np.int64)
        self.end = np.zeros(num_environments, np.int64)
        self.num_writes = 0
        # Where all environments are, if they are at the same position.
        self._common_end: int | None = 0
        self._all_environments = np.arange(num_environments)
        # Ordinary tensors, wherever the buffer is constructed.
        with torch.inference_mode(False):
            self._allocate(directory, rows)

    def _allocate(self, directory: Path | str | None, rows: Tensor | None) -> None:
        layout, num_environments = self.layout, self.num_environments
        num_rows = num_environments * self.max_length
        if rows is None:
            memory = allocate(num_rows * layout.row_bytes, self.device, directory)
            self.rows = memory.view(num_rows, layout.row_bytes)
        else:
            assert rows.shape == (num_rows, layout.row_bytes), rows.shape
            self.rows = rows
            self.end += self.max_length
            self._common_end = self.max_length
        self.leaves = layout.views(self.rows)  # [E * max_length, *shape] each
        self._whole_rows = self._as_whole(self.rows)
        # The number of steps → all windows of so many rows, on the CPU.
        self._whole_windows: dict[int, np.ndarray] = {}
        self._rings = self._as_whole(
            self.rows.view(num_environments, -1, layout.row_bytes)
        )
        # Steps that come one by one or a few at a time are collected in a small block
        # and moved together: they cost little more than the copies of their leaves.
        num_that_fit = _MAX_BYTES // (num_environments * layout.row_bytes)
        self._max_staged = min(max(num_that_fit, 1), _MAX_STEPS, self.max_length)
        self._num_staged = 0
        shape = (self._max_staged, num_environments, layout.row_bytes)
        # Zeros, because the bytes between leaves are written to checkpoints, too
        self._staged = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self._whole_staged = self._as_whole(self._staged)
        # (first, number of steps) → the leaves of the staged rows there.
        self._places: dict[tuple[int, int], _Place] = {}

    @functools.cached_property
    def steps(self) -> PackedSteps:
        """All rows as they are; of a storage on the CPU."""
        return self.layout.packed(self._whole_rows)

    @functools.cached_property
    def bytes(self) -> np.ndarray:
        """All rows [E * max_length, row_bytes] uint8; of a storage on the CPU."""
        return self.rows.numpy()

    @property
    def num_bytes(self) -> int:
        return self.rows.numel()

    def write(self, leaves: Leaves, num_steps: int = 1) -> None:
        """Appends some steps of all environments.

        Args:
            leaves: [T, E, ...] each, or [E, ...] for one step; arrays only if the
                rows are on the CPU.
            num_steps: T.
        """
        first = self._num_staged
        if first + num_steps > self._max_staged:
            self.flush()
            if num_steps > self._max_staged:
                self.write_block(leaves)
                return
            first = 0
        place = self._places.get((first, num_steps))
        if place is None:
            staged = self._staged[first : first + num_steps]
            place = self._places[first, num_steps] = self._place(staged)
        _copy(leaves, place)
        self._num_staged = first + num_steps

    def write_block(self, leaves: Leaves, env_ids: np.ndarray | None = None) -> None:
        """Appends many steps, or steps of some environments.

        Args:
            leaves: [T, B, ...] each; arrays only if the rows are on the CPU.
            env_ids: [B], each at most once; None means all.
        """
        self.flush()
        num_steps = leaves[0].shape[0]
        skipped = max(0, num_steps - self.max_length)
        if skipped:
            # The older ones would be overwritten by the newer ones at once.
            leaves = [leaf[skipped:] for leaf in leaves]
        num_columns = self.num_environments if env_ids is None else len(env_ids)
        rows = torch.zeros(
            (num_steps - skipped, num_columns, self.layout.row_bytes),
            dtype=torch.uint8,
            device=self.device,
        )
        _copy(leaves, self._place(rows))
        self._append(self._as_whole(rows), env_ids, skipped)

    def flush(self) -> None:
        """Moves the staged steps to the rings."""
        num_steps = self._num_staged
        if num_steps:
            self._num_staged = 0
            self._append(self._whole_staged[:num_steps])

    def clear(self, env_ids: np.ndarray | None = None) -> None:
        """Forgets all steps of some environments, or of all."""
        self.flush()
        if env_ids is None:
            env_ids = self._all_environments
        self.begin[env_ids] = self.end[env_ids]
        self.num_writes += 1

    def forget_oldest(self, num_kept: int | np.ndarray) -> None:
        """Forgets all but the newest steps of every environment."""
        self.flush()
        np.maximum(self.begin, self.end - num_kept, out=self.begin)
        self.num_writes += 1

    def row_indices(self, env_ids: _Array, positions: _Array) -> _Array:
        """Where in :attr:`rows` the steps are. The arguments broadcast."""
        return env_ids * self.max_length + positions % self.max_length

    def rows_between(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The rows [N] of the positions ``first`` [E] to ``last`` [E] (exclusive).

        None of an environment whose ``last`` is not above ``first``.
        """
        sizes = last - first
        longest = int(np.maximum.reduce(sizes))
        if longest <= 0:
            return np.zeros(0, np.int64)
        if np.count_nonzero(sizes == longest) == len(sizes):
            positions = first[:, None] + np.arange(longest)
            return self.row_indices(self._all_environments[:, None], positions).ravel()
        np.maximum(sizes, 0, out=sizes)
        ends = sizes.cumsum()
        # Position i of all of them together is position i - (ends - last) of its own.
        positions = np.arange(ends[-1]) + (first - ends + sizes).repeat(sizes)
        return self.row_indices(self._all_environments.repeat(sizes), positions)

    def is_stored(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Which of these steps are in the buffer now. The arguments broadcast."""
        return (positions >= self.begin[env_ids]) & (positions < self.end[env_ids])

    def window_rows(self, env_ids: _Array, first_rows: _Array, length: int) -> _Array:
        """The row indices [B, T] of windows of ``length`` steps.

        Args:
            env_ids: [B]; arrays, or tensors where the rows are.
            first_rows: [B], of the first steps.
            length: T.
        """
        rows = first_rows[:, None]
        if length == 1:
            return rows
        if isinstance(first_rows, Tensor):
            offsets = torch.arange(length, device=first_rows.device)
            slots = rows % self.max_length
            return rows - slots + (slots + offsets) % self.max_length
        rows = rows + np.arange(length)
        ring_ends = (env_ids + 1) * self.max_length
        if np.count_nonzero(rows[:, -1] >= ring_ends):
            rows -= self.max_length * (rows >= ring_ends[:, None])
        return rows

    def windows(
        self,
        env_ids: _Array,
        first_rows: _Array,
        length: int,
        device: torch.device | None = None,
    ) -> Nest:
        """The steps [B, T, ...] of windows; for the arguments, see ``window_rows``.

        They are made on ``device``; None: where the rows are.
        """
        if (
            length == 1
            or length * self.layout.row_bytes > _MAX_BYTES
            or isinstance(self._whole_rows, Tensor)
            or isinstance(first_rows, Tensor)
        ):
            taken = self._take(self.window_rows(env_ids, first_rows, length))
        else:
            taken = self._take_windows(env_ids, first_rows, length)
        return self.layout.pack(self._views(taken, device or self.device))

    def _views(self, taken: Rows, device: torch.device) -> list[Tensor]:
        """The leaves of rows, on a device to which they go as one block."""
        if isinstance(taken, Tensor):
            return self.layout.views(moved_tensor(taken, device))
        if device.type == "cpu":
            return self.layout.array_views(taken)
        shape = (*taken.shape, self.layout.row_bytes)
        block = torch.from_numpy(taken.view(np.uint8).reshape(shape))
        return self.layout.views(moved_tensor(block, device))

    def _take_windows(
        self, env_ids: np.ndarray, first_rows: np.ndarray, length: int
    ) -> np.ndarray:
        """The whole rows [B, T] of windows, each of which is moved at once."""
        windows = self._whole_windows.get(length)
        if windows is None:
            windows = self._whole_windows[length] = self._as_windows(length)
        # What begins behind these rows goes on at the begin of its ring.
        last_rows = (env_ids + 1) * self.max_length - length
        crosses_seam = first_rows > last_rows
        if not np.count_nonzero(crosses_seam):
            return windows[first_rows][:, None].view(self._whole_rows.dtype)
        taken = windows[np.minimum(first_rows, last_rows)][:, None]
        taken = taken.view(self._whole_rows.dtype)
        across = crosses_seam.nonzero()[0]
        taken[across] = self._take(
            self.window_rows(env_ids[across], first_rows[across], length)
        )
        return taken

    def _as_windows(self, length: int) -> np.ndarray:
        """All windows of consecutive rows, which overlap; one element each."""
        row_bytes = self.layout.row_bytes
        return np.ndarray(
            len(self.rows) - length + 1,
            np.dtype((np.void, length * row_bytes)),
            self.rows.numpy(),
            strides=(row_bytes,),
        )

    def packed(self, row_indices: np.ndarray) -> PackedSteps:
        """Copies of some rows [*dims], not taken apart yet; of a storage on the CPU."""
        return self.layout.packed(self._take(row_indices))

    def gather(self, row_indices: np.ndarray) -> list[Tensor]:
        """The leaves of some rows, [*dims, *shape]: views of one block of memory."""
        taken = self._take(row_indices)
        if isinstance(taken, Tensor):
            return self.layout.views(taken)
        return self.layout.array_views(taken)

    def gather_leaf(self, leaf: int, row_indices: np.ndarray) -> Tensor:
        """One leaf of some rows, [*dims, *shape], without reading the other leaves."""
        return self.leaves[leaf][self._to_device(row_indices)]

    def scatter_leaf(self, leaf: int, row_indices: np.ndarray, value: float) -> None:
        """Sets one leaf of some rows, each given once, to ``value``."""
        self.leaves[leaf][self._to_device(row_indices)] = value

    def places(self, first: np.ndarray, last: np.ndarray) -> list[slice]:
        """Where in :attr:`rows` the positions ``first`` [E] to ``last`` [E] are.

        As slices, oldest first, environment after environment.
        """
        ranges = zip(range(self.num_environments), first, last, strict=True)
        return [place for each in ranges for place in self.places_of(*each)]

    def places_of(self, env_id: int, first: int, last: int) -> list[slice]:
        """As :meth:`places`, of one environment: none, one or two slices."""
        ring, slot = env_id * self.max_length, first % self.max_length
        num_rows = last - first
        if num_rows <= 0:
            return []
        num_before_seam = min(num_rows, self.max_length - slot)
        places = [slice(ring + slot, ring + slot + num_before_seam)]
        if num_before_seam < num_rows:
            places.append(slice(ring, ring + num_rows - num_before_seam))
        return places

    def replace(self, begin: np.ndarray, end: np.ndarray) -> None:
        """Says which steps there are now; the caller writes their rows.

        Args:
            begin: [E], at most ``max_length`` below ``end``.
            end: [E].
        """
        self._num_staged = 0
        self.begin[:], self.end[:] = begin, end
        self._note_ends()

    def check_valid(self) -> None:
        """Raises AssertionError if the counters contradict each other."""
        assert self._num_staged == 0, self._num_staged
        assert (self.begin >= 0).all(), self.begin
        sizes = self.end - self.begin
        assert ((sizes >= 0) & (sizes <= self.max_length)).all(), (sizes, self.end)
        if self._common_end is not None:
            assert (self.end == self._common_end).all(), (self.end, self._common_end)

    def _append(
        self, rows: Rows, env_ids: np.ndarray | None = None, num_skipped: int = 0
    ) -> None:
        """Writes rows [T, B], T <= max_length, behind the newest ones.

        Args:
            rows: of the environments ``env_ids`` [B]; None means all.
            num_skipped: leave so many positions out.
        """
        num_steps = rows.shape[0]
        if env_ids is None and self._common_end is not None:
            # All are at the same place, as always without ``env_ids``: rows that stand
            # side by side are written without looking for each one's place.
            first = self._common_end + num_skipped
            slot = first % self.max_length
            num_before_seam = self.max_length - slot
            self._rings[:, slot : slot + num_steps] = rows[:num_before_seam].swapaxes(
                0, 1
            )
            if num_before_seam < num_steps:
                behind_seam = rows[num_before_seam:].swapaxes(0, 1)
                self._rings[:, : num_steps - num_before_seam] = behind_seam
            self._common_end = first + num_steps
            self.end.fill(self._common_end)
            np.maximum(self.begin, self._common_end - self.max_length, out=self.begin)
            self.num_writes += 1
            return
        ids = self._all_environments if env_ids is None else env_ids
        ends = self.end[ids] + num_skipped
        positions = ends + np.arange(num_steps)[:, None]  # [T, B]
        self._scatter(self.row_indices(ids, positions), rows)
        self.end[ids] = ends + num_steps
        np.maximum(self.begin, self.end - self.max_length, out=self.begin)
        self._note_ends()

    def _note_ends(self) -> None:
        """Takes note that ``end`` has changed."""
        end = self.end.item(0)
        self._common_end = end if (self.end == end).all() else None
        self.num_writes += 1

    def _place(self, rows: Tensor) -> _Place:
        """The leaves of ``rows`` [T, B, row_bytes], to be written."""
        # Ordinary tensors, whoever writes them first.
        with torch.inference_mode(False):
            tensors = self.layout.views(rows)
        is_on_cpu = rows.device.type == "cpu"
        return _Place(tensors, self.layout.fields(rows) if is_on_cpu else [])

    # Whole rows

    def _as_whole(self, rows: Tensor) -> Rows:
        """``rows`` [*dims, row_bytes], to be moved as wholes."""
        if rows.device.type != "cpu":
            return rows
        return rows.numpy().view(np.dtype((np.void, self.layout.row_bytes)))[..., 0]

    def _take(self, row_indices: np.ndarray | Tensor) -> Rows:
        if isinstance(self._whole_rows, Tensor):
            return self._whole_rows[self._to_device(row_indices)]
        return self._whole_rows.take(row_indices)

    def _scatter(self, row_indices: np.ndarray, rows: Rows) -> None:
        if isinstance(self._whole_rows, Tensor):
            self._whole_rows[self._to_device(row_indices)] = rows
        else:
            self._whole_rows[row_indices] = rows

    def _to_device(self, row_indices: np.ndarray | Tensor) -> Tensor:
        return moved_tensor(torch.as_tensor(row_indices), self.device)


def _copy(leaves: Leaves, place: _Place) -> None:
    if type(leaves[0]) is np.ndarray:
        for array, leaf in zip(place.arrays, leaves, strict=True):
            array[...] = leaf
    else:
        torch._foreach_copy_(place.tensors, leaves)
