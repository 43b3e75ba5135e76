"""What every format of recorded steps looks like to the loader.

The fields of a step are named by their paths, with slashes: ``step_type``, ``reward``,
``discount``, ``observation`` or ``observation/arm/0``, ``action/…``, ``prev_action/…``
and ``env_info/…``. They mean what they mean in ``TimeStep``.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

# Together with the observation these make a step; actions may come in two ways.
REQUIRED_FIELDS = ("step_type", "reward", "discount")


class Field(NamedTuple):
    """One field of a step, as it was recorded."""

    shape: tuple[int, ...]  # without the time dimension
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


class Sequence(NamedTuple):
    """Steps of one environment that follow each other, oldest first.

    What comes next from the same environment does not continue it.
    """

    env_id: int
    fields: dict[str, np.ndarray]
    # ↑ [T, ...]; ``action``, between the steps, is [T - 1, ...]


class Source(abc.ABC):
    """Recorded steps in some format.

    Attributes:
        name: for messages, the path.
        is_in_environment_units: whether observations and actions are those of the
            environment itself; if not, an agent's.
        fields: of a step. There is either ``action``, what was chosen between two
            steps of a sequence, or ``prev_action``, what led to a step.
        lengths: [E], how many steps there are of each environment.
    """

    name: str
    is_in_environment_units: bool
    fields: Mapping[str, Field]
    lengths: list[int]

    @abc.abstractmethod
    def sequences(self) -> Iterator[Sequence]:
        """All steps, those of one environment in the order of time."""


def join_path(*parts: str) -> str:
    """The name of the field that these keys lead to."""
    return "/".join(parts)


def field_kind(name: str) -> str:
    """What a field is a part of: ``observation`` of ``observation/last_action``."""
    return name.split("/", 1)[0]


def flatten(name: str, value: Any) -> dict[str, Any]:
    """The leaves of nested dicts and tuples by their paths."""
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, tuple | list):
        children = dict(enumerate(value)).items()
    else:
        return {name: value}
    leaves = {}
    for key, child in children:
        leaves.update(flatten(join_path(name, str(key)), child))
    return leaves
