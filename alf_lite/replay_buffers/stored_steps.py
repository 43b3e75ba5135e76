"""The steps that a replay buffer holds, by environment and position."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import StepType
from alf_lite.replay_buffers.episode_index import EpisodeIndex
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.step_references import (
    to_distinct_env_ids,
    to_stored_steps,
)
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


class StoredSteps:
    """What is stored of every environment, to be looked at.

    Each step is stored once: what follows a step is the step at the next position. A
    position counts the steps of one environment since the buffer was made; it names one
    step for ever and is never used again.

    Args:
        storage: of the steps.
        step_type_field: path of the step type, for the methods that need it. None means
            the one leaf named ``step_type``.
    """

    def __init__(self, storage: RingStorage, step_type_field: str | None) -> None:
        self._storage = storage
        self._layout = storage.layout
        self._step_type_field = step_type_field
        self._episodes: EpisodeIndex | None = None

    @property
    def data_spec(self) -> NestedTensorSpec:
        return self._layout.data_spec

    @property
    def num_environments(self) -> int:
        return self._storage.num_environments

    @property
    def max_length(self) -> int:
        """How many steps of one environment fit."""
        return self._storage.max_length

    @property
    def device(self) -> torch.device:
        return self._storage.device

    @property
    def num_bytes(self) -> int:
        """The memory that the steps of a full buffer take."""
        return self._storage.num_bytes

    @property
    def total_size(self) -> int:
        """How many steps are stored, of all environments together."""
        return int(self.sizes.sum())

    @property
    def sizes(self) -> Tensor:
        """[E] int64, how many steps of each environment are stored."""
        self._storage.flush()
        return torch.from_numpy(self._storage.end - self._storage.begin)

    @property
    def begin_positions(self) -> Tensor:
        """[E] int64, the positions of the oldest steps that are stored."""
        self._storage.flush()
        return torch.from_numpy(self._storage.begin.copy())

    @property
    def end_positions(self) -> Tensor:
        """[E] int64, the positions that the next steps will have."""
        self._storage.flush()
        return torch.from_numpy(self._storage.end.copy())

    # Steps by environment and position

    def get_windows(self, env_ids: Tensor, positions: Tensor, length: int) -> Nest:
        """Reads windows of consecutive steps, faster than field by field.

        Args:
            env_ids: [B].
            positions: [B], of the first steps.
            length: T.

        Returns:
            A nest of [B, T, ...] tensors.

        Raises:
            ValueError: if a step is not stored any more or not yet.
        """
        self._storage.flush()
        to_stored_steps(self._storage, env_ids, positions + (length - 1))
        ids, first = to_stored_steps(self._storage, env_ids, positions)
        return self._windows(ids, self._storage.row_indices(ids, first), length)

    def get_field(self, fields: Nest, env_ids: Tensor, positions: Tensor) -> Nest:
        """Reads parts of some stored steps.

        Args:
            fields: a path such as ``time_step.observation``, or a nest of paths. A path
                may be that of a leaf or of a nest.
            env_ids: [*dims].
            positions: broadcasts with ``env_ids``.

        Returns:
            The structure of ``fields`` with [*dims, ...] tensors, or nests of them.

        Raises:
            ValueError: if there is no such field, or a step is not stored any more or
                not yet.
        """
        self._storage.flush()
        rows = self._storage.row_indices(
            *to_stored_steps(self._storage, env_ids, positions)
        )
        return nest.map_structure(
            lambda path: nest.map_structure(
                lambda leaf: self._storage.gather_leaf(leaf, rows),
                self._layout.select(path),
            ),
            fields,
        )

    def get_episode_bounds(
        self, env_ids: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The first and the last position of the episodes that steps belong to.

        Of an episode whose beginning was overwritten, the first position is that of the
        oldest step; of one that goes on, the last is that of the newest step.

        Args:
            env_ids: [*dims].
            positions: broadcasts with ``env_ids``.

        Returns:
            [*dims] int64 each.
        """
        if self._episodes is None:
            leaf = self._layout.find("step_type", self._step_type_field)
            self._episodes = EpisodeIndex(self._storage, leaf)
        self._storage.flush()
        steps = to_stored_steps(self._storage, env_ids, positions)
        begins, ends = self._episodes.bounds(*steps)
        return torch.from_numpy(begins), torch.from_numpy(ends)

    def mark_truncated_end(self, env_ids: Tensor | np.ndarray | None = None) -> None:
        """Makes the newest step of all or some environments the LAST of its episode.

        For when the next steps will not continue it. Its discount stays as it is, so
        that it is bootstrapped like a step at a time limit.
        """
        self._storage.flush()
        begin, end = self._storage.begin, self._storage.end
        ids = np.flatnonzero(end > begin)
        if env_ids is not None:
            ids = np.intersect1d(ids, self._distinct(env_ids))
        rows = self._storage.row_indices(ids, end[ids] - 1)
        leaf = self._layout.find("step_type", self._step_type_field)
        self._storage.scatter_leaf(leaf, rows, int(StepType.LAST))

    def _windows(self, env_ids: np.ndarray, rows: np.ndarray, length: int) -> Nest:
        """The steps [B, T, ...] of windows that start in ``rows`` [B]."""
        return self._layout.pack(
            self._storage.gather(self._storage.window_rows(env_ids, rows, length))
        )

    def _distinct(self, env_ids: Tensor | np.ndarray) -> np.ndarray:
        return to_distinct_env_ids(env_ids, self.num_environments)
