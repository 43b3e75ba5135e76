"""Things that happen once in a fixed number of gradient updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class UpdateCounter(nn.Module):
    """Counts gradient updates and tells which of them are due.

    A module without parameters: as a part of an algorithm it is in its checkpoint.

    Args:
        period: updates from one that is due to the next; the first one that is due is
            the one with this number.
        name: of the period in messages.
    """

    def __init__(self, period: int = 1, *, name: str = "period") -> None:
        super().__init__()
        if not isinstance(period, int) or isinstance(period, bool) or period < 1:
            raise ValueError(f"{name} must be a positive integer, got {period!r}")
        self._period = period
        self._count = 0
        # A flag beside the count: a compiled function that asks for it is compiled
        # anew for each of two values, not for every count.
        self.is_due = period == 1

    @property
    def count(self) -> int:
        """How many updates have been counted."""
        return self._count

    def advance(self) -> bool:
        """Counts one update and returns whether it was due.

        ``is_due`` told so before, and now tells it of the next update.
        """
        was_due = self.is_due
        self._set(self._count + 1)
        return was_due

    def _set(self, count: int) -> None:
        # Not through the module's own, which looks for parameters first.
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "is_due", (count + 1) % self._period == 0)

    def get_extra_state(self) -> Tensor:
        """[] int64, for ``state_dict``."""
        return torch.tensor(self._count)

    def set_extra_state(self, state: Tensor) -> None:
        """Takes over what ``get_extra_state`` returned."""
        self._set(int(state))

    def extra_repr(self) -> str:
        return f"period={self._period}, count={self._count}"
