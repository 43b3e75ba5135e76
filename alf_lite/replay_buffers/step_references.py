"""Checks of what callers say about environments and positions."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from alf_lite.replay_buffers.ring_storage import RingStorage


def to_indices(numbers: Tensor | np.ndarray) -> np.ndarray:
    """The integers of a tensor or an array as int64 on the CPU.

    Raises:
        TypeError: if they are not integers.
    """
    array = numbers.numpy(force=True) if isinstance(numbers, Tensor) else numbers
    if array.dtype.kind != "i":
        raise TypeError(f"expected a tensor of integers, got {numbers.dtype}")
    return array.astype(np.int64, copy=False)


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
