"""Ranges of positions, one per environment, and uniform draws from them.

Random numbers come from torch's global generator on the CPU.
"""

from __future__ import annotations

import functools

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
        self.size = self._sums.item(-1)

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The environments and the positions that have these numbers, all [N]."""
        if len(self._sums) == 1:
            return np.zeros(len(numbers), np.int64), numbers + self.first[0]
        env_ids = self._sums.searchsorted(numbers, "right")
        return env_ids, numbers + (self.last - self._sums).take(env_ids)

    def numbers(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """The numbers [N] of these positions, which are in the ranges."""
        return positions - (self.last - self._sums).take(env_ids)

    def have(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Which of these positions [N] are in the range of their environment [N]."""
        is_below_last = positions < self.last.take(env_ids)
        return is_below_last & (positions >= self.first.take(env_ids))

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
    """``batch_size`` different numbers below ``size``, spread evenly and shuffled.

    The circle of all numbers is turned by a random angle and cut into ``batch_size``
    strata as equal as integers allow; each gives one number. Every number is drawn
    with the same probability.
    """
    bounds = np.arange(batch_size + 1) * size // batch_size
    inside, order = _draw_in_strata(batch_size)
    drawn = bounds[:-1] + (inside * np.diff(bounds)).astype(np.int64)
    turn = int(torch.randint(size, ()))
    return ((drawn + turn) % size).take(order)


def draw_others(drawn: np.ndarray, size: int, batch_size: int) -> np.ndarray:
    """As :func:`draw_without_replacement`, none of the different numbers ``drawn``."""
    if not batch_size:
        return drawn[:0]
    numbers = draw_without_replacement(size - len(drawn), batch_size)
    # How many were left out before each: number i of those left is i + that.
    left_before = np.sort(drawn) - np.arange(len(drawn))
    return numbers + left_before.searchsorted(numbers, "right")


def draw_stratified(total: float, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws one mass from each of ``batch_size`` equal parts of [0, total).

    Returns:
        The masses [batch_size], sorted, and a permutation to shuffle what is found
        there.
    """
    inside, order = _draw_in_strata(batch_size)
    return (_strata(batch_size)[0] + inside) * (total / max(1, batch_size)), order


def _draw_in_strata(batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """A number in [0, 1) for each stratum, and an order to shuffle the strata.

    The order is a fixed shuffle turned by a random angle, which is cheaper than a new
    one: any part of the batch is spread over all strata, and any stratum may be first.
    """
    random = torch.rand(batch_size + 1, dtype=torch.float64).numpy()
    turn = int(random[-1] * batch_size)
    shuffled_twice = _strata(batch_size)[1]
    return random[:-1], shuffled_twice[turn : turn + batch_size]


@functools.lru_cache(maxsize=32)
def _strata(batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the strata, in order and shuffled twice in a row; read-only."""
    shuffled = np.random.default_rng(seed=0).permutation(batch_size)
    return np.arange(batch_size, dtype=np.float64), np.tile(shuffled, 2)
