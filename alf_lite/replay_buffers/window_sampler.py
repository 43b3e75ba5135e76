"""Which windows of consecutive steps a batch consists of.

A window of T steps is named by its first step, its start. It may begin at any stored
step that T - 1 stored steps follow.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from alf_lite.replay_buffers.position_ranges import (
    PositionRanges,
    draw_others,
    draw_with_replacement,
    draw_without_replacement,
)
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.sampling_options import SamplingOptions


class WindowStarts(NamedTuple):
    """The starts of the windows of one batch."""

    env_ids: np.ndarray  # [B] int64
    positions: np.ndarray  # [B] int64
    rows: np.ndarray  # [B] int64, where the starts are in the storage
    importance_weights: np.ndarray | tuple = ()  # [B] float32


class UniformSampler:
    """Every window with the same probability.

    Args:
        storage: of the buffer; flushed before every call.
        options: which windows may be drawn.
        num_ignored: how many of the oldest steps of an environment are no starts.
    """

    def __init__(
        self, storage: RingStorage, options: SamplingOptions, num_ignored: int
    ) -> None:
        self._storage = storage
        self._options = options
        self._num_ignored = num_ignored
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
        size = self.num_windows(batch_length)
        if self._options.with_replacement:
            return size > 0
        starts = self._find_starts(batch_length)
        num_recent = self._num_recent(starts, batch_size)
        return size >= batch_size and self._recent(starts).size >= num_recent

    def update_priorities(
        self, env_ids: np.ndarray, positions: np.ndarray, priorities: np.ndarray
    ) -> None:
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

    def restore(self, numbers: dict[str, float]) -> None:
        """Continues from what :meth:`export` gave, after the storage was replaced.

        Args:
            numbers: what is known in general.
        """

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
        self._check_size(starts.size, batch_size + len(drawn[0]))
        numbers = draw_others(starts.numbers(*drawn), starts.size, batch_size)
        return starts.locate(numbers)

    def _draw_numbers(self, size: int, batch_size: int) -> np.ndarray:
        """``batch_size`` uniform numbers below ``size``, in random order."""
        if self._options.with_replacement:
            return draw_with_replacement(size, batch_size)
        self._check_size(size, batch_size)
        return draw_without_replacement(size, batch_size)

    def _check_size(self, size: int, batch_size: int) -> None:
        if batch_size > size:
            raise ValueError(
                f"cannot draw {batch_size} different windows: there are only {size}. "
                "Draw fewer at once, or with replacement."
            )

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
