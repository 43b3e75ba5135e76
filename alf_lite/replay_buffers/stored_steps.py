"""The steps that a replay buffer holds, by environment and position."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import StepType
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.window_sampler import PositionRanges

Nest = Any


class EpisodeIndex:
    """The first and last position of the episode that a step belongs to.

    The episodes of an environment are numbered in order. Every row keeps the number of
    its episode, and every episode its first position, in a ring of its own: as many
    episodes as steps can be alive. Steps are indexed when they are first asked for.

    An episode begins with a step that is FIRST, that follows a LAST, or that follows
    nothing that is stored.

    Args:
        storage: of the buffer.
        step_type_leaf: which of the storage's leaves is the step type.
    """

    def __init__(self, storage: RingStorage, step_type_leaf: int) -> None:
        self._storage = storage
        self._step_type_leaf = step_type_leaf
        num_rows = len(storage.rows)
        self._numbers = np.zeros(num_rows, np.int64)  # of the row's episode
        self._begins = np.zeros(num_rows, np.int64)  # ring of E x max_length episodes
        self._num_episodes = np.zeros(storage.num_environments, np.int64)
        self._indexed_end = np.zeros(storage.num_environments, np.int64)

    def bounds(
        self, env_ids: np.ndarray, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """First and last position of the episodes of stored steps.

        What was overwritten is not part of an episode any more. The newest episode ends
        with the newest step, whatever its type.

        Args:
            env_ids: [N].
            positions: [N].

        Returns:
            Two [N] arrays; both positions belong to the episode.
        """
        self._update()
        storage = self._storage
        numbers = self._numbers[storage.row_indices(env_ids, positions)]
        begins = self._begins[storage.row_indices(env_ids, numbers)]
        next_begins = self._begins[storage.row_indices(env_ids, numbers + 1)]
        is_newest = numbers + 1 == self._num_episodes[env_ids]
        ends = np.where(is_newest, storage.end[env_ids], next_begins) - 1
        return np.maximum(begins, storage.begin[env_ids]), ends

    def reset(self) -> None:
        """Forgets everything, after the content of the storage was replaced."""
        self._num_episodes[:] = 0
        self._indexed_end[:] = 0

    def _update(self) -> None:
        """Indexes the steps that were written since the last call."""
        storage = self._storage
        new = PositionRanges(np.maximum(self._indexed_end, storage.begin), storage.end)
        self._indexed_end = storage.end.copy()
        if not new.size:
            return
        env_ids, positions = new.all()
        is_begin = self._is_begin(env_ids, positions)
        begins_so_far = is_begin.cumsum()
        # Number of the episode: counted within the environment, from where it stood.
        counts = np.bincount(env_ids[is_begin], minlength=len(new.first))
        base = self._num_episodes - (counts.cumsum() - counts)
        numbers = base[env_ids] + begins_so_far - 1
        self._numbers[storage.row_indices(env_ids, positions)] = numbers
        begin_rows = storage.row_indices(env_ids[is_begin], numbers[is_begin])
        self._begins[begin_rows] = positions[is_begin]
        self._num_episodes += counts

    def _is_begin(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        previous = positions - 1
        has_previous = previous >= self._storage.begin[env_ids]
        follows_last = self._types(env_ids, previous) == StepType.LAST
        is_first = self._types(env_ids, positions) == StepType.FIRST
        return is_first | follows_last | ~has_previous

    def _types(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        rows = self._storage.row_indices(env_ids, positions)
        return self._storage.gather_leaf(self._step_type_leaf, rows).cpu().numpy()


def to_array(numbers: Tensor | np.ndarray) -> np.ndarray:
    """On the CPU, without a gradient: ``numpy(force=True)`` takes ten times as long."""
    if not isinstance(numbers, Tensor):
        return numbers
    if numbers.requires_grad:
        numbers = numbers.detach()
    return (numbers if numbers.is_cpu else numbers.cpu()).numpy()


def to_indices(numbers: Tensor | np.ndarray) -> np.ndarray:
    """The integers of a tensor or an array as int64 on the CPU.

    Raises:
        TypeError: if they are not integers.
    """
    array = to_array(numbers)
    if array.dtype.kind != "i":
        raise TypeError(f"expected a tensor of integers, got {numbers.dtype}")
    return array if array.dtype == np.int64 else array.astype(np.int64)


def to_env_ids(env_ids: Tensor | np.ndarray, num_environments: int) -> np.ndarray:
    """``env_ids``, which exist.

    Raises:
        ValueError: naming the first one that does not.
    """
    ids = to_indices(env_ids)
    # Negative numbers are the largest unsigned ones.
    if np.count_nonzero(ids.view(np.uint64) >= num_environments):
        wrong = ids[(ids < 0) | (ids >= num_environments)]
        raise ValueError(
            f"env_ids: there is no environment {wrong[0]}; the replay buffer has "
            f"{num_environments}, numbered from 0"
        )
    return ids


def to_distinct_env_ids(
    env_ids: Tensor | np.ndarray, num_environments: int
) -> np.ndarray:
    """``env_ids`` [B], which exist and are different.

    Raises:
        ValueError: naming the first one that does not or is there twice.
    """
    ids = to_env_ids(env_ids, num_environments)
    if ids.ndim != 1:
        raise ValueError(f"env_ids: expected shape [B], got {ids.shape}")
    counts = np.bincount(ids, minlength=1)
    if counts.max() > 1:
        raise ValueError(
            f"env_ids: environment {counts.argmax()} is given {counts.max()} times; "
            "one call can add to each environment once"
        )
    return ids


def to_stored_steps(
    storage: RingStorage, env_ids: Tensor | np.ndarray, positions: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Environments and positions, broadcast together, of steps that are stored.

    Raises:
        ValueError: naming the first step that is not stored any more or not yet.
    """
    ids, steps = np.broadcast_arrays(
        to_env_ids(env_ids, storage.num_environments), to_indices(positions)
    )
    stored = storage.is_stored(ids, steps)
    if not stored.all():
        env_id, step = ids[~stored][0], steps[~stored][0]
        raise ValueError(
            f"position {step} of environment {env_id} is not stored: the replay buffer "
            f"has positions {storage.begin[env_id]} to {storage.end[env_id] - 1} of it"
        )
    return ids, steps


class StoredSteps:
    """What is stored of every environment, to be looked at.

    Each step is stored once: what follows a step is the step at the next position. A
    position counts the steps of one environment since the buffer was made; it names one
    step for ever and is never used again.

    Args:
        storage: of the steps.

    Attributes:
        data_spec: nest of TensorSpecs of one step.
        num_environments: E.
        max_length: how many steps of one environment fit.
        device: where the steps are.
        num_bytes: the memory that the steps of a full buffer take.
    """

    def __init__(self, storage: RingStorage) -> None:
        self._storage = storage
        self._layout = storage.layout
        self.data_spec = storage.layout.data_spec
        self.num_environments = storage.num_environments
        self.max_length = storage.max_length
        self.device = storage.device
        self.num_bytes = storage.num_bytes
        self._episodes: EpisodeIndex | None = None

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
            ValueError: if a step is not stored any more or not yet. Where ``env_ids``
                and ``positions`` are with the steps on a GPU, nobody looks.
        """
        storage = self._storage
        storage.flush()
        if not env_ids.is_cpu and self.device.type != "cpu":
            rows = storage.row_indices(env_ids, positions)
            return storage.windows(env_ids, rows, length)
        to_stored_steps(storage, env_ids, positions + (length - 1))
        ids, first = to_stored_steps(storage, env_ids, positions)
        return storage.windows(ids, storage.row_indices(ids, first), length)

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
            leaf = self._layout.find("step_type")
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
        leaf = self._layout.find("step_type")
        self._storage.scatter_leaf(leaf, rows, int(StepType.LAST))

    def _distinct(self, env_ids: Tensor | np.ndarray) -> np.ndarray:
        return to_distinct_env_ids(env_ids, self.num_environments)
