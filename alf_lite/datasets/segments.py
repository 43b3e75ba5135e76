"""Where in a sequence of steps one episode ends and the next one begins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from alf_lite.data_structures import StepType


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
        is_begin = step_type == StepType.FIRST
        is_begin[:1] = True
        is_begin[1:] |= step_type[:-1] == StepType.LAST
        begins = np.flatnonzero(is_begin)
        ends = np.append(begins[1:], len(step_type)) if len(begins) else begins
        is_complete = (step_type[begins] == StepType.FIRST) & (
            step_type[ends - 1] == StepType.LAST
        )
        return cls(begins, ends, is_complete)


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
