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

from alf_lite.border import RefusalError
from alf_lite.data_structures import StepType
from alf_lite.environments.environment import Environment
from alf_lite.utils.free_memory import free_ram

# Together with the observation these make a step; actions may come in two ways.
REQUIRED_FIELDS = ("step_type", "reward", "discount")
# These belong to the actions of an episode in a data set: how each of them went.
OUTCOMES = ("terminated", "truncated")
# Likewise, and need not be there: where the recording ended, and the episode did not.
CUT_OFF = "cut_off"
FLAGS = (*OUTCOMES, CUT_OFF)  # what says whether an episode has ended

Arrays = dict[str, np.ndarray]

_SMALL_BYTES = 2**27


class RecordedField(NamedTuple):
    """One field of a step, as it was recorded."""

    shape: tuple[int, ...]  # without the time dimension
    dtype: np.dtype

    @classmethod
    def of(cls, array: np.ndarray) -> RecordedField:
        """Of an array [T, ...]."""
        return cls(tuple(array.shape[1:]), array.dtype)

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}"


class StepSequence(NamedTuple):
    """Steps of one environment that follow each other, oldest first.

    What comes next from the same environment does not continue it.
    """

    env_id: int
    fields: Arrays
    # ↑ [T, ...]; ``action``, between the steps, is [T - 1, ...]


class Source(abc.ABC):
    """Recorded steps in some format.

    Attributes:
        name: for messages, the path.
        is_in_environment_units: whether observations and actions are those of the
            environment itself; if not, an agent's.
        fields: of a step. There is either ``action``, what was chosen between two
            steps of a sequence, or ``prev_action``, what led to a step. Who reads it
            may leave out what need not be there, or sound.
        lengths: [E], how many steps there are of each environment.
    """

    name: str
    is_in_environment_units: bool
    fields: Mapping[str, RecordedField]
    lengths: list[int]

    @abc.abstractmethod
    def sequences(self) -> Iterator[StepSequence]:
        """All steps, those of one environment in the order of time."""

    def warn_of_units(self, env: Environment) -> None:  # noqa: B027 - few know any
        """Warns of what was something else where it was recorded than in ``env``."""


def check_fits(what: str, num_bytes: int) -> None:
    """Raises RefusalError if something does not fit into the memory that is free."""
    if num_bytes < _SMALL_BYTES:
        return  # what is free is not worth asking for
    free = free_ram()
    if free is not None and num_bytes > free:
        raise RefusalError(
            f"{what} needs {num_bytes / 1e9:.1f} GB of memory, of which "
            f"{free / 1e9:.1f} GB are free"
        )


def join_path(*parts: str) -> str:
    """The name of the field that these keys lead to."""
    return "/".join(parts)


def field_kind(name: str) -> str:
    """What a field is a part of: ``observation`` of ``observation/last_action``."""
    return name.split("/", 1)[0]


def is_of_steps(name: str) -> bool:
    """Whether an episode has one more of it than actions."""
    return field_kind(name) in ("observation", "env_info")


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


class Segments(NamedTuple):
    """Runs of steps that belong to one episode each, in the order of time.

    The first and the last one may be parts of episodes, and so may any that a seam cut.
    """

    begins: np.ndarray  # [N], the first step of each
    ends: np.ndarray  # [N], the step after its last one
    is_complete: np.ndarray  # [N] bool, whether it goes from FIRST to LAST

    @classmethod
    def of(cls, step_type: np.ndarray) -> Segments:
        """Of the steps [T] of one sequence."""
        begins = np.flatnonzero(are_begins(step_type))
        ends = np.append(begins[1:], len(step_type)) if len(begins) else begins
        is_complete = (step_type[begins] == StepType.FIRST) & (
            step_type[ends - 1] == StepType.LAST
        )
        return cls(begins, ends, is_complete)


def are_begins(step_type: np.ndarray) -> np.ndarray:
    """[T] whether a step is the first that is there of its episode."""
    begins = step_type == StepType.FIRST
    begins[:1] = True
    begins[1:] |= step_type[:-1] == StepType.LAST
    return begins


def seams(step_type: np.ndarray) -> np.ndarray:
    """The steps [N] that do not continue the one before, though it was not LAST.

    Also those that are not FIRST though the one before was LAST.
    """
    was_last = step_type[:-1] == StepType.LAST
    is_first = step_type[1:] == StepType.FIRST
    return np.flatnonzero(was_last != is_first) + 1


NO_FIRST = "expected 0 (FIRST), because the step before is LAST"


def inner_firsts(step_type: np.ndarray) -> np.ndarray:
    """The steps [N] that are FIRST though the one before was not LAST."""
    is_first = step_type[1:] == StepType.FIRST
    return np.flatnonzero(is_first & (step_type[:-1] != StepType.LAST)) + 1


def cut_firsts(step_type: np.ndarray) -> np.ndarray:
    """The steps [N] that are LAST though the one before was LAST, too.

    The run was interrupted at the FIRST of an episode. No reward leads to such a step.
    """
    is_last = step_type == StepType.LAST
    return np.flatnonzero(is_last[1:] & is_last[:-1]) + 1


def contradiction(step_type: np.ndarray) -> tuple[int, str] | None:
    """The first of the steps [T] whose type cannot be, and why; None if there is none.

    A FIRST after a step that was not LAST may be: the run was interrupted there. So may
    a LAST after another one, see :func:`cut_firsts`.
    """
    is_unknown = (step_type < StepType.FIRST) | (step_type > StepType.LAST)
    if is_unknown.any():
        return int(is_unknown.argmax()), "expected 0, 1 or 2"
    goes_on = (step_type[:-1] == StepType.LAST) & (step_type[1:] == StepType.MID)
    if goes_on.any():
        return int(goes_on.argmax()) + 1, NO_FIRST
    return None


def episode_fields(fields: Mapping[str, RecordedField]) -> dict[str, RecordedField]:
    """The fields of a step, given those of an episode."""
    steps = {name: field for name, field in fields.items() if name not in FLAGS}
    return {
        **steps,
        "step_type": RecordedField((), np.dtype(np.int32)),
        "discount": RecordedField((), np.dtype(np.float32)),
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
            "terminated, truncated or cut_off has other values than true and false"
        )
    return array.astype(bool)


def episode_sequence(arrays: Mapping[str, np.ndarray]) -> StepSequence:
    """The T + 1 steps of one episode, FIRST to LAST; not LAST where it was cut off.

    Args:
        arrays: ``reward``, ``terminated`` and ``truncated`` [T] and ``action`` [T, ...]
            of the actions; ``observation`` [T + 1, ...] and others of the steps. Maybe
            ``cut_off`` [T].
    """
    reward, terminated = arrays["reward"], as_flags(arrays["terminated"])
    as_flags(arrays["truncated"])
    num_actions = len(reward)
    step_type = np.full(num_actions + 1, StepType.MID, np.int32)
    step_type[0] = StepType.FIRST
    if num_actions and not (CUT_OFF in arrays and as_flags(arrays[CUT_OFF])[-1]):
        step_type[-1] = StepType.LAST
    discount = np.ones(num_actions + 1, np.float32)
    discount[1:] = ~terminated
    # What led to the first step earned nothing.
    first = np.zeros((1, *reward.shape[1:]), reward.dtype)
    steps = {name: array for name, array in arrays.items() if name not in FLAGS}
    steps |= {
        "step_type": step_type,
        "discount": discount,
        "reward": np.concatenate([first, reward]),
    }
    return StepSequence(env_id=0, fields=steps)
