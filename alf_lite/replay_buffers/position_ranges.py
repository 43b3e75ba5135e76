"""Ranges of positions, one per environment, and uniform draws from them.

Random numbers come from torch's global generator on the CPU.
"""

from __future__ import annotations

import numpy as np
import torch


class PositionRanges:
    """One range of positions for every environment, numbered through.

    The numbers run through the positions of environment 0, then of environment 1, ….

    Args:
        first: [E] int64, the first position of every environment.
        last: [E] int64, one past the last one; without effect if below ``first``.
    """

    def __init__(self, first: np.ndarray, last: np.ndarray) -> None:
        self.first = first
        self.last = np.maximum(first, last)
        self._sums = (self.last - first).cumsum()
        self.size = int(self._sums[-1])

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The environments and the positions that have these numbers, all [N]."""
        if len(self._sums) == 1:
            return np.zeros(len(numbers), np.int64), numbers + self.first[0]
        env_ids = self._sums.searchsorted(numbers, "right")
        return env_ids, numbers + (self.last - self._sums).take(env_ids)

    def newest(self, num_positions: int) -> PositionRanges:
        """The newest ``num_positions`` of every environment."""
        first = np.maximum(self.first, self.last - num_positions)
        return PositionRanges(first, self.last)

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """The environments and the positions of all numbers."""
        return self.locate(np.arange(self.size))


def draw_with_replacement(size: int, batch_size: int) -> np.ndarray:
    """``batch_size`` independent uniform numbers below ``size``."""
    return torch.randint(size, (batch_size,)).numpy()


def draw_without_replacement(size: int, batch_size: int) -> np.ndarray:
    """Different numbers below ``size``, spread evenly, in random order.

    The circle of all numbers is turned by a random angle and cut into ``batch_size``
    strata as equal as integers allow; each gives one number. Every number is drawn
    with the same probability.
    """
    bounds = np.arange(batch_size + 1) * size // batch_size
    widths = np.diff(bounds)
    inside = torch.rand(batch_size, dtype=torch.float64).numpy() * widths
    drawn = bounds[:-1] + inside.astype(np.int64)
    turn = int(torch.randint(size, ()))
    drawn = (drawn + turn) % size
    return drawn.take(random_order(batch_size))


def stratified_masses(total: float, batch_size: int) -> np.ndarray:
    """One mass from each of ``batch_size`` equal parts of [0, total), sorted."""
    inside = torch.rand(batch_size, dtype=torch.float64).numpy()
    return (np.arange(batch_size) + inside) * total / batch_size


def random_order(size: int) -> np.ndarray:
    """A random permutation of the numbers below ``size``."""
    return torch.randperm(size).numpy()
