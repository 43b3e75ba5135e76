"""Whole episodes, as data sets hold them: T actions between T + 1 observations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from alf_lite.checkpoints.data_files import RefusalError
from alf_lite.data_structures import StepType
from alf_lite.datasets.source import Field, Sequence

OUTCOMES = ("terminated", "truncated")


def episode_fields(fields: Mapping[str, Field]) -> dict[str, Field]:
    """The fields of a step, given those of an episode."""
    steps = {name: field for name, field in fields.items() if name not in OUTCOMES}
    return {
        **steps,
        "step_type": Field((), np.dtype(np.int32)),
        "discount": Field((), np.dtype(np.float32)),
    }


def as_flags(array: np.ndarray) -> np.ndarray:
    """Booleans, in whatever type they were written.

    Raises:
        RefusalError: if there are other values than true and false.
    """
    if array.dtype == bool:
        return array
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise RefusalError(
            "terminated or truncated has other values than true and false"
        )
    return array.astype(bool)


def episode_sequence(arrays: Mapping[str, np.ndarray]) -> Sequence:
    """The T + 1 steps of one episode, FIRST to LAST.

    Args:
        arrays: ``reward``, ``terminated`` and ``truncated`` [T] and ``action`` [T, ...]
            of the actions; ``observation`` [T + 1, ...] and others of the steps.
    """
    reward, terminated = arrays["reward"], as_flags(arrays["terminated"])
    as_flags(arrays["truncated"])
    num_actions = len(reward)
    step_type = np.full(num_actions + 1, StepType.MID, np.int32)
    step_type[0] = StepType.FIRST
    if num_actions:
        step_type[-1] = StepType.LAST
    discount = np.ones(num_actions + 1, np.float32)
    discount[1:] = ~terminated
    # What led to the first step earned nothing.
    first = np.zeros((1, *reward.shape[1:]), reward.dtype)
    steps = {name: array for name, array in arrays.items() if name not in OUTCOMES}
    steps |= {
        "step_type": step_type,
        "discount": discount,
        "reward": np.concatenate([first, reward]),
    }
    return Sequence(env_id=0, fields=steps)
