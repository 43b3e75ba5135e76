"""Diagnostics of losses, which are computed where somebody will look at them.

Most updates are made between two summaries. For them, the means and errors that
``LossInfo.extra`` holds would be computed and thrown away:

    LossInfo(loss, extra=diagnostic(lambda: MyLossInfo(q=info.q.mean(-1))))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Nest = Any

_diagnostics_are_due = True  # in this process, also for all who know nothing of this


class diagnostics_if:  # noqa: N801 - used like a function
    """In the block, diagnostics are computed only if ``condition``."""

    __slots__ = ("_condition", "_outer")

    def __init__(self, condition: bool) -> None:
        self._condition = condition

    def __enter__(self) -> None:
        global _diagnostics_are_due
        self._outer, _diagnostics_are_due = _diagnostics_are_due, self._condition

    def __exit__(self, *error: object) -> None:
        global _diagnostics_are_due
        _diagnostics_are_due = self._outer


def diagnostics_are_due() -> bool:
    """Whether somebody will look at diagnostics."""
    return _diagnostics_are_due


def diagnostic(compute: Callable[[], Nest]) -> Nest:
    """What ``compute`` returns; () if nobody will look at it."""
    return compute() if _diagnostics_are_due else ()
