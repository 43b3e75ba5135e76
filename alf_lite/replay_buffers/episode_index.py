"""Where in its episode a stored step is."""

from __future__ import annotations

import numpy as np

from alf_lite.data_structures import StepType
from alf_lite.replay_buffers.position_ranges import PositionRanges
from alf_lite.replay_buffers.ring_storage import RingStorage


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
