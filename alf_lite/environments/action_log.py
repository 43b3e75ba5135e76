"""The actions of the open episodes of a batch of environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.environments.space_tree import SpaceLeaf
from alf_lite.errors import CheckpointError

# Of an episode that is longer the first actions are forgotten: it cannot be brought
# back. The bytes are those of all environments together.
MAX_STEPS = 100_000
MAX_BYTES = 64 * 2**20

_MAX_CHUNK_STEPS = 1024
_MIN_CHUNKS = 16


class ActionLog:
    """Keeps what the environments were given since their open episodes began.

    A step costs one copy of each array. What is older than all open episodes is
    forgotten from time to time.

    Args:
        leaves: of the action space.
        batch_size: B.
    """

    def __init__(self, leaves: Sequence[SpaceLeaf], batch_size: int) -> None:
        self._rows = [
            ((batch_size, *leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves
        ]
        row_bytes = sum(_num_bytes(*row) for row in self._rows)
        self.max_steps = max(1, min(MAX_STEPS, MAX_BYTES // max(row_bytes, 1)))
        self._chunk_steps = max(1, min(_MAX_CHUNK_STEPS, self.max_steps // _MIN_CHUNKS))
        self._starts = np.zeros(batch_size, np.int64)  # [B], of the open episodes
        self.clear()

    def clear(self) -> None:
        """All environments begin new episodes; steps are counted from here."""
        self._starts[:] = 0
        self._first = 0  # the first step that is still known
        self._chunks: list[list[np.ndarray]] = []  # oldest first; the last may be full
        self._chunk: list[np.ndarray] = []  # the last one
        self._used = self._chunk_steps  # steps in it

    @property
    def _num_steps(self) -> int:
        """How many steps there were, forgotten ones included."""
        return self._first + (len(self._chunks) - 1) * self._chunk_steps + self._used

    def add(self, actions: Sequence[np.ndarray]) -> None:
        """Adds one step.

        Args:
            actions: [B, ...] for each leaf.
        """
        row = self._used
        if row == self._chunk_steps:
            row = self._begin_chunk()
        self._used = row + 1
        for kept, array in zip(self._chunk, actions):  # noqa: B905 - at every step
            kept[row] = array

    def begin(self, env_indices: Any) -> None:
        """Says where the step that was added last has begun new episodes.

        Args:
            env_indices: indices, or a mask [B].
        """
        self._starts[env_indices] = self._num_steps

    def _begin_chunk(self) -> int:
        """Makes room, and forgets what no open episode or the limit asks for.

        Returns:
            0, the first row.
        """
        num_steps, size = self._num_steps, self._chunk_steps
        first_wanted = max(int(self._starts.min()), num_steps + size - self.max_steps)
        num_unwanted = min((first_wanted - self._first) // size, len(self._chunks))
        del self._chunks[: max(num_unwanted, 0)]
        self._first += max(num_unwanted, 0) * size
        self._chunk = [np.empty((size, *shape), dtype) for shape, dtype in self._rows]
        self._chunks.append(self._chunk)
        self._used = 0
        return 0

    def episodes(self) -> list[list[np.ndarray] | None]:
        """Of each environment the actions [N, ...] of its open episode, for each leaf.

        None where not all of them are known any more.
        """
        first = self._first
        joined = self._since(first)
        return [
            None if start < first else [leaf[start - first :, i] for leaf in joined]
            for i, start in enumerate(self._starts.tolist())
        ]

    def no_actions(self) -> list[np.ndarray]:
        """Of an episode in which nothing was done yet, as :meth:`episodes` says it."""
        return [np.empty((0, *shape[1:]), dtype) for shape, dtype in self._rows]

    def _since(self, step: int) -> list[np.ndarray]:
        """All actions from ``step`` on, [N, B, ...] for each leaf."""
        begin, end = step - self._first, self._num_steps - self._first
        return [
            np.concatenate(
                [np.empty((0, *shape), dtype), *(chunk[i] for chunk in self._chunks)]
            )[begin:end]
            for i, (shape, dtype) in enumerate(self._rows)
        ]

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on."""
        known = self._starts[self._starts >= self._first]
        begin = int(known.min()) if len(known) else self._num_steps
        return {
            # 0 where the first actions are forgotten
            "starts": np.maximum(self._starts - begin + 1, 0).tolist(),
            # As bytes, because not every dtype of numpy is one of torch.
            "actions": [_to_bytes(leaf) for leaf in self._since(begin)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned.

        Raises:
            CheckpointError: if it is of other environments.
        """
        starts, actions = state["starts"], state["actions"]
        if len(starts) != len(self._starts) or len(actions) != len(self._rows):
            raise CheckpointError("open episodes: of other environments")
        leaves = [
            _from_bytes(t, *row) for t, row in zip(actions, self._rows, strict=True)
        ]
        num_steps = min(map(len, leaves))
        if not set(starts) <= set(range(num_steps + 2)):
            raise CheckpointError("open episodes: they begin where nothing is known")
        self.clear()
        for row in zip(*leaves, strict=True):
            self.add(row)
        # A forgotten start is one before the first step that is known.
        self._first += 1
        self._starts[:] = starts


def _num_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _to_bytes(actions: np.ndarray) -> Tensor:
    """[N, bytes of a row] uint8."""
    num_bytes = _num_bytes(actions.shape[1:], actions.dtype)
    data = torch.from_numpy(np.frombuffer(bytearray(actions.tobytes()), np.uint8))
    return data.reshape(len(actions), num_bytes)


def _from_bytes(data: Tensor, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if data.dtype != torch.uint8 or data.shape[1:] != (_num_bytes(shape, dtype),):
        raise CheckpointError(
            f"open episodes: actions of shape {tuple(data.shape)} are not those of "
            f"{shape} {dtype}"
        )
    return data.numpy().view(dtype).reshape(len(data), *shape)
