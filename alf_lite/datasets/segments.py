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


def contradiction(step_type: np.ndarray, came_by: np.ndarray) -> tuple[int, str] | None:
    """The first step whose type cannot be, and why; None if there is none.

    A FIRST after a step that was not LAST may be: the run was interrupted there.

    Args:
        step_type: [T], of one sequence.
        came_by: [T] bool, whether a reward or an action led to the step. None does to
            the first of an episode.
    """
    is_first = step_type == StepType.FIRST
    was_last = np.append(False, step_type[:-1] == StepType.LAST)
    is_seam = is_first & ~was_last
    is_seam[:1] = False
    for wrong, reason in (
        (~np.isin(step_type, [int(t) for t in StepType]), "expected 0, 1 or 2"),
        (was_last & ~is_first, "expected 0 (FIRST), because the step before is LAST"),
        (is_seam & came_by, "but its reward or prev_action says that it is no FIRST"),
    ):
        if wrong.any():
            return int(wrong.argmax()), reason
    return None
