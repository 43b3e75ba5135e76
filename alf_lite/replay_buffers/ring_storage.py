"""The memory of a replay buffer: one ring of rows for every environment.

The step at absolute position p of environment e lies in slot p mod max_length of ring
e. Positions never start again, not even when the buffer is cleared: a position names
one step for ever.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from alf_lite.replay_buffers.allocation import allocate
from alf_lite.replay_buffers.position_ranges import PositionRanges
from alf_lite.replay_buffers.row_layout import RowLayout

# Single steps are collected in a small block and moved to the rings together: writing
# one step costs little more than the calls it takes.
_MAX_STAGED_STEPS = 32
_MAX_STAGED_BYTES = 2**20


class RingStorage:
    """``num_environments`` rings of ``max_length`` rows.

    Args:
        layout: of a row.
        num_environments: E.
        max_length: rows per environment.
        device: where the rows are.
        directory: keep them in a file there instead of in memory.

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
    ) -> None:
        self.layout = layout
        self.num_environments = num_environments
        self.max_length = max_length
        self.device = device
        self.directory = directory
        self.begin = np.zeros(num_environments, np.int64)
        self.end = np.zeros(num_environments, np.int64)
        self.num_writes = 0
        self._all_environments = np.arange(num_environments)
        # Ordinary tensors, wherever the buffer is constructed.
        with torch.inference_mode(False):
            self._allocate(directory)

    def _allocate(self, directory: Path | str | None) -> None:
        layout, num_environments = self.layout, self.num_environments
        num_rows = num_environments * self.max_length
        memory = allocate(num_rows * layout.row_bytes, self.device, directory)
        self.rows = memory.view(num_rows, layout.row_bytes)
        self.leaves = layout.views(self.rows)  # [E * max_length, *shape] each
        # numpy takes rows more than twice as fast as torch, if a row is one element.
        self._elements = self._as_elements(self.rows)
        num_staged = _MAX_STAGED_BYTES // (num_environments * layout.row_bytes)
        num_staged = min(max(num_staged, 1), _MAX_STAGED_STEPS, self.max_length)
        self._staged = torch.empty(
            (num_staged, num_environments, layout.row_bytes),
            dtype=torch.uint8,
            device=self.device,
        )
        leaves = [leaf.unbind(0) for leaf in layout.views(self._staged)]
        self._staged_leaves = [list(step) for step in zip(*leaves, strict=True)]
        self._num_staged = 0

    @property
    def num_bytes(self) -> int:
        return self.rows.numel()

    def write_step(self, leaves: list[Tensor]) -> None:
        """Appends one step of all environments, leaves [E, ...]."""
        torch._foreach_copy_(self._staged_leaves[self._num_staged], leaves)
        self._num_staged += 1
        if self._num_staged == len(self._staged_leaves):
            self.flush()

    def write_block(
        self, leaves: list[Tensor], env_ids: np.ndarray | None = None
    ) -> None:
        """Appends several steps of some environments.

        Args:
            leaves: [T, B, ...] each.
            env_ids: [B], each at most once; None means all.
        """
        self.flush()
        num_steps = len(leaves[0])
        if env_ids is None:
            env_ids = self._all_environments
        if num_steps > self.max_length:
            # The older ones would be overwritten by the newer ones at once.
            skipped = num_steps - self.max_length
            self.end[env_ids] += skipped
            leaves = [leaf[skipped:] for leaf in leaves]
            num_steps = self.max_length
        rows = torch.empty(
            (num_steps, len(env_ids), self.layout.row_bytes),
            dtype=torch.uint8,
            device=self.device,
        )
        torch._foreach_copy_(self.layout.views(rows), leaves)
        self._append(rows, env_ids)

    def flush(self) -> None:
        """Moves the staged steps to the rings."""
        if self._num_staged:
            rows = self._staged[: self._num_staged]
            self._num_staged = 0
            self._append(rows, self._all_environments)

    def clear(self, env_ids: np.ndarray | None = None) -> None:
        """Forgets all steps of some environments, or of all."""
        self.flush()
        if env_ids is None:
            env_ids = self._all_environments
        self.begin[env_ids] = self.end[env_ids]
        self.num_writes += 1

    def row_indices(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Where in :attr:`rows` the steps are. The arguments broadcast."""
        return env_ids * self.max_length + positions % self.max_length

    def is_stored(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Which of these steps are in the buffer now. The arguments broadcast."""
        return (positions >= self.begin[env_ids]) & (positions < self.end[env_ids])

    def window_rows(
        self, env_ids: np.ndarray, positions: np.ndarray, length: int
    ) -> np.ndarray:
        """The row indices [B, T] of windows of ``length`` steps.

        Args:
            env_ids: [B].
            positions: [B], of the first steps.
            length: T.
        """
        slots = positions % self.max_length
        rows = env_ids * self.max_length + slots
        if length == 1:
            return rows[:, None]
        rows = rows[:, None] + np.arange(length)
        num_before_seam = self.max_length - slots
        crossing = np.flatnonzero(num_before_seam < length)
        if len(crossing):
            behind_seam = np.arange(length) >= num_before_seam[crossing, None]
            rows[crossing] -= self.max_length * behind_seam
        return rows

    def gather_rows(self, row_indices: np.ndarray) -> Tensor:
        """A copy of some rows, contiguous [*dims, row_bytes].

        Args:
            row_indices: [*dims] int64, each in range.
        """
        if self._elements is None:
            return self.rows[torch.from_numpy(row_indices).to(self.device)]
        taken = self._elements.take(row_indices)
        return torch.from_numpy(taken.view(np.uint8)).view(
            *row_indices.shape, self.layout.row_bytes
        )

    def gather(self, row_indices: np.ndarray) -> list[Tensor]:
        """The leaves of some rows, [*dims, *shape]: views of one block of memory."""
        if self._elements is None:
            return self.layout.views(self.gather_rows(row_indices))
        return self.layout.array_views(self._elements.take(row_indices))

    def gather_leaf(self, leaf: int, row_indices: np.ndarray) -> Tensor:
        """One leaf of some rows, [*dims, *shape], without reading the other leaves."""
        return self.leaves[leaf][torch.from_numpy(row_indices).to(self.device)]

    def scatter_leaf(self, leaf: int, row_indices: np.ndarray, value: float) -> None:
        """Sets one leaf of some rows, each given once, to ``value``."""
        self.leaves[leaf][torch.from_numpy(row_indices).to(self.device)] = value

    def scatter_rows(self, row_indices: np.ndarray, rows: Tensor) -> None:
        """Overwrites some rows, each given once, with ``rows`` [*dims, row_bytes]."""
        if self._elements is None:
            self.rows[torch.from_numpy(row_indices).to(self.device)] = rows
        else:
            self._elements[row_indices] = self._as_elements(rows)

    def replace(self, begin: np.ndarray, end: np.ndarray, rows: Tensor) -> None:
        """Puts other steps in the place of all that are stored.

        Args:
            begin: [E], at most ``max_length`` below ``end``.
            end: [E].
            rows: [R, row_bytes] on the CPU, the steps of environment 0 in the order of
                their positions, then those of environment 1, ….
        """
        self._num_staged = 0
        self.begin[:], self.end[:] = begin, end
        self.num_writes += 1
        indices = self.row_indices(*PositionRanges(begin, end).all())
        self.scatter_rows(indices, rows.to(self.device))

    def check_valid(self) -> None:
        """Raises AssertionError if the counters contradict each other."""
        assert self._num_staged == 0, self._num_staged
        assert (self.begin >= 0).all(), self.begin
        sizes = self.end - self.begin
        assert ((sizes >= 0) & (sizes <= self.max_length)).all(), (sizes, self.end)

    def _append(self, rows: Tensor, env_ids: np.ndarray) -> None:
        """Writes rows [T, B, row_bytes], T <= max_length, behind the newest ones."""
        num_steps = len(rows)
        first = self.end[env_ids]
        positions = first + np.arange(num_steps)[:, None]  # [T, B]
        indices = self.row_indices(env_ids, positions)
        self.scatter_rows(indices, rows)
        self.end[env_ids] = first + num_steps
        np.maximum(self.begin, self.end - self.max_length, out=self.begin)
        self.num_writes += 1

    def _as_elements(self, rows: Tensor) -> np.ndarray | None:
        """``rows`` [*dims, row_bytes] on the CPU as an array [*dims] of whole rows."""
        if rows.device.type != "cpu":
            return None
        return rows.numpy().view(np.dtype((np.void, self.layout.row_bytes)))[..., 0]
