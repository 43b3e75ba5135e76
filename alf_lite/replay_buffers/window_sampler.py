"""Which windows of consecutive steps a batch consists of.

A window of T steps is named by its first step, its start. It may begin at any stored
step that T - 1 stored steps follow. Random numbers come from torch's global generator
on the CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from alf_lite.config import configurable
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.utils.checks import check_unit_interval


@configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Which windows may be drawn, and how often.

    Args:
        with_replacement: whether a batch may hold a window twice. Without, the starts
            are also spread evenly over the buffer.
        recent_data_ratio: at least this fraction of a batch starts at one of the newest
            steps; these windows come first in the batch. Not before the newest ones
            are a smaller part of the buffer than that.
        recent_data_steps: how many starts per environment count as the newest.
        max_use: a step is a start so often and no more.
        max_staleness: a step is dropped as a start once it was collected more than so
            many iterations ago.
    """

    with_replacement: bool = True
    recent_data_ratio: float = 0.0
    recent_data_steps: int = 1
    max_use: int | None = None
    max_staleness: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("recent_data_steps", 1),
            ("max_use", 1),
            ("max_staleness", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        check_unit_interval(recent_data_ratio=self.recent_data_ratio)
        if not self.recent_data_ratio and self.recent_data_steps != 1:
            raise ValueError(
                f"recent_data_steps={self.recent_data_steps} has no effect: "
                "recent_data_ratio is 0. Set both, or leave it out"
            )
        if self.has_limits and self.recent_data_ratio:
            raise ValueError(
                "recent_data_ratio cannot be combined with max_use or max_staleness"
            )

    @property
    def has_limits(self) -> bool:
        """Whether steps are dropped before they are overwritten."""
        return self.max_use is not None or self.max_staleness is not None


def all_windows() -> SamplingOptions:
    """Every window, however often, whatever a conf says about a run's own buffer."""
    return SamplingOptions(
        with_replacement=True,
        recent_data_ratio=0.0,
        recent_data_steps=1,
        max_use=None,
        max_staleness=None,
    )


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


class WindowStarts(NamedTuple):
    """The starts of the windows of one batch.

    Arrays; tensors, if they were drawn on a device.
    """

    env_ids: Any  # [B] int64
    positions: Any  # [B] int64
    rows: Any  # [B] int64, where the starts are in the storage
    importance_weights: Any = ()  # [B] float32


class UniformSampler:
    """Every window with the same probability.

    Args:
        storage: of the buffer; flushed before every call.
        options: which windows may be drawn.
        num_ignored: how many of the oldest steps of an environment are no starts.
    """

    is_on_device: ClassVar[bool] = False  # whether the host does not see what is drawn

    def __init__(
        self, storage: RingStorage, options: SamplingOptions, num_ignored: int
    ) -> None:
        self._storage = storage
        self._options = options
        self._num_ignored = num_ignored
        # (size, batch_size) → so many numbers below the size, in random order.
        self._draw_numbers = (
            draw_with_replacement
            if options.with_replacement
            else draw_without_replacement
        )
        self._starts_key = (-1, 0)
        self._starts = PositionRanges(storage.begin, storage.begin)

    def draw(self, batch_size: int, batch_length: int) -> WindowStarts:
        """Draws ``batch_size`` windows of ``batch_length`` steps.

        Raises:
            ValueError: if there are too few.
        """
        starts = self._get_starts(batch_length)
        num_recent = self._num_recent(starts, batch_size)
        if num_recent:
            recent = self._draw_from(self._recent(starts), num_recent)
            others = self._draw_more(starts, recent, batch_size - num_recent)
            env_ids, positions = map(np.concatenate, zip(recent, others, strict=True))
        else:
            env_ids, positions = self._draw_from(starts, batch_size)
        rows = self._storage.row_indices(env_ids, positions)
        return WindowStarts(env_ids, positions, rows)

    def num_windows(self, batch_length: int) -> int:
        """How many windows of so many steps may be drawn."""
        return self._find_starts(batch_length).size

    def can_draw(self, batch_size: int, batch_length: int, num_batches: int) -> bool:
        """Whether so many batches can be drawn, one after the other."""
        starts = self._find_starts(batch_length)
        if self._options.with_replacement:
            return starts.size > 0
        num_recent = self._num_recent(starts, batch_size)
        return starts.size >= batch_size and self._recent(starts).size >= num_recent

    def update_priorities(self, env_ids: Any, positions: Any, priorities: Any) -> None:
        """Sets the priorities of starts [N].

        Arrays; tensors on the device of the storage, if :attr:`is_on_device`.
        """
        raise ValueError(
            "this replay buffer has no priorities: prioritized_sampling=False"
        )

    def num_uses(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[N], how often steps were drawn as starts."""
        raise ValueError("uses are counted only if SamplingOptions.max_use is set")

    # Uniform sampling keeps no account of single steps.

    def set_iteration(self, iteration: int) -> None:
        """Says in which iteration what comes now is collected."""

    def sync(self, collected_in: int | None = None) -> None:
        """Takes in what was written."""

    def export(self) -> dict[str, float]:
        """Brings :meth:`step_arrays` up to date; returns what is known in general."""
        return {}

    def step_arrays(self) -> dict[str, np.ndarray]:
        """What is known about the step in each of the storage's rows.

        The sampler's own arrays: after :meth:`export` they may be copied, before
        :meth:`restore` they are to be overwritten.
        """
        return {}

    def is_like(
        self, numbers: Mapping[str, float], step_arrays: Mapping[str, np.ndarray]
    ) -> bool:
        """Whether these numbers and arrays are of a sampler that draws as this one."""
        return _kinds(self.export(), self.step_arrays()) == _kinds(numbers, step_arrays)

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Continues from what :meth:`export` gave, after the storage was replaced.

        Args:
            numbers: what is known in general.
        """

    def raise_late_errors(self) -> None:
        """Waits for the device and raises what was wrong there."""

    def check_valid(self) -> None:
        """Raises AssertionError if the account contradicts itself."""

    def _get_starts(self, batch_length: int) -> PositionRanges:
        """All possible starts of windows of ``batch_length`` steps.

        Raises:
            ValueError: if there are none.
        """
        starts = self._find_starts(batch_length)
        if not starts.size:
            raise ValueError(self._explain_too_few(batch_length))
        return starts

    def _find_starts(self, batch_length: int) -> PositionRanges:
        """All possible starts; found anew only after something was written."""
        storage = self._storage
        key = (storage.num_writes, batch_length)
        if key != self._starts_key:
            self._starts_key = key
            self._starts = PositionRanges(
                storage.begin + self._num_ignored, storage.end - (batch_length - 1)
            )
        return self._starts

    def _draw_from(
        self, starts: PositionRanges, batch_size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Environments and positions [batch_size] of uniformly drawn starts."""
        return starts.locate(self._draw_numbers(starts.size, batch_size))

    def _draw_more(
        self, starts: PositionRanges, drawn: tuple, batch_size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`_draw_from`, none that is ``drawn`` if no window may come twice."""
        if self._options.with_replacement:
            return self._draw_from(starts, batch_size)
        check_size(starts.size, batch_size + len(drawn[0]))
        numbers = draw_others(starts.numbers(*drawn), starts.size, batch_size)
        return starts.locate(numbers)

    def _num_recent(self, starts: PositionRanges, batch_size: int) -> int:
        """How many windows of a batch have to be from the newest steps.

        Zero as long as they are that large a part of the buffer anyway.
        """
        ratio = self._options.recent_data_ratio
        if not ratio or ratio * starts.size <= self._recent(starts).size:
            return 0
        return math.ceil(batch_size * ratio)

    def _recent(self, starts: PositionRanges) -> PositionRanges:
        return starts.newest(self._options.recent_data_steps)

    def _explain_too_few(self, batch_length: int) -> str:
        storage = self._storage
        sizes = storage.end - storage.begin
        ignored = self._num_ignored
        needed = f"{batch_length}"
        if ignored:
            needed = f"{batch_length} + {ignored} ignored ones"
        advice = (
            f"Raise max_length, which is {storage.max_length}."
            if storage.max_length < batch_length + ignored
            else "Collect more steps first (initial_collect_steps)."
        )
        return (
            f"the replay buffer has {sizes.max()} steps of one environment at most, "
            f"but a window needs {needed}. {advice}"
        )


def draw_with_replacement(size: int, batch_size: int) -> np.ndarray:
    """``batch_size`` independent uniform numbers below ``size``."""
    return torch.randint(size, (batch_size,)).numpy()


def draw_without_replacement(size: int, batch_size: int) -> np.ndarray:
    """``batch_size`` different numbers below ``size``, spread evenly and shuffled.

    The circle of all numbers is turned by a random angle and cut into ``batch_size``
    strata as equal as integers allow; each gives one number. Every number is drawn
    with the same probability.

    Raises:
        ValueError: if there are fewer.
    """
    check_size(size, batch_size)
    bounds = np.arange(batch_size + 1) * size // batch_size
    inside, order = draw_in_strata(batch_size)
    drawn = bounds[:-1] + (inside * np.diff(bounds)).astype(np.int64)
    turn = int(torch.randint(size, ()))
    return ((drawn + turn) % size).take(order)


def check_size(size: int, batch_size: int) -> None:
    """Raises ValueError if there are fewer than ``batch_size`` windows."""
    if batch_size > size:
        raise ValueError(
            f"cannot draw {batch_size} different windows: there are only {size}. "
            "Draw fewer at once, or with replacement."
        )


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
    inside, order = draw_in_strata(batch_size)
    return (np.arange(batch_size) + inside) * (total / max(1, batch_size)), order


def draw_in_strata(batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """A number in [0, 1) for each stratum, and an order to shuffle the strata.

    The order is a fixed shuffle turned by a random angle, which is cheaper than a new
    one: any part of the batch is spread over all strata, and any stratum may be first.
    """
    random, shuffled_twice = draw_random(batch_size)
    turn = int(random[-1] * batch_size)
    return random[:-1], shuffled_twice[turn : turn + batch_size]


def draw_random(batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """What :func:`draw_in_strata` makes its results of.

    Returns:
        Numbers in [0, 1) for each stratum and, at the end, for the turn; they are there
        until the next call of this thread. And the numbers of the strata, shuffled,
        twice in a row.
    """
    tensor, array, shuffled_twice = _strata(batch_size, threading.get_ident())
    tensor.uniform_()  # as torch.rand, in a third of its time
    return array, shuffled_twice


@functools.lru_cache(maxsize=32)
def _strata(
    batch_size: int, thread: int
) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Memory of a thread for random numbers, twice; and a shuffle, twice in a row."""
    shuffled = np.random.default_rng(seed=0).permutation(batch_size)
    with torch.inference_mode(False):  # it is written by all who draw later
        random = torch.empty(batch_size + 1, dtype=torch.float64, device="cpu")
    return random, random.numpy(), np.tile(shuffled, 2)


def _kinds(
    numbers: Mapping[str, float], step_arrays: Mapping[str, np.ndarray]
) -> dict[str, str]:
    """What a sampler keeps. Weights may be priorities, or all 1."""
    kinds = {name: type(number).__name__ for name, number in numbers.items()}
    kinds["is_prioritized"] = str(numbers.get("is_prioritized", 0))
    return kinds | {name: str(array.dtype) for name, array in step_arrays.items()}
