"""Windows drawn by the weight of their start: priorities, use counts and age."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from alf_lite.replay_buffers.device_priority_sampler import DevicePrioritySampler
from alf_lite.replay_buffers.priority_options import PriorityOptions, check_options
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.sampling_weights import SampleLimits, SamplingWeights
from alf_lite.replay_buffers.window_sampler import (
    PositionRanges,
    SamplingOptions,
    UniformSampler,
    WindowStarts,
    check_size,
)


def make_sampler(
    storage: RingStorage,
    options: SamplingOptions,
    num_ignored: int,
    priority: PriorityOptions | None,
    iteration: int = 0,
) -> UniformSampler:
    """The sampler that these options need; for the arguments, see WeightedSampler."""
    check_options(options, priority)
    if options.has_limits:
        return WeightedSampler(storage, options, num_ignored, priority, iteration)
    if priority is None:
        return UniformSampler(storage, options, num_ignored)
    is_elsewhere = storage.device.type != "cpu"
    if is_elsewhere if priority.on_device is None else priority.on_device:
        return DevicePrioritySampler(storage, options, num_ignored, priority)
    return WeightedSampler(storage, options, num_ignored, priority, iteration)


class _Drawn(NamedTuple):
    """Starts, and how probable they were."""

    rows: np.ndarray  # [B]
    weights: np.ndarray  # [B], in proportion to the probabilities
    mean_weight: float  # of all that could be drawn
    least_weight: float  # of all that could be drawn, if anybody asks for it


def _joined(rounds: list[_Drawn]) -> _Drawn:
    """What was drawn from fewer and fewer starts, relative to each round's mean."""
    return _Drawn(
        np.concatenate([drawn.rows for drawn in rounds]),
        np.concatenate([drawn.weights / drawn.mean_weight for drawn in rounds]),
        1.0,
        min(drawn.least_weight / drawn.mean_weight for drawn in rounds),
    )


def _occurrences(rows: np.ndarray) -> np.ndarray:
    """[N], how often the same row stands before each of ``rows`` [N]."""
    order = rows.argsort(kind="stable")
    in_order = rows[order]
    counts = np.empty_like(rows)
    counts[order] = np.arange(len(rows)) - in_order.searchsorted(in_order, "left")
    return counts


class WeightedSampler(UniformSampler):
    """Windows in proportion to the weight of their start.

    A start that has been dropped, because of its uses or its age, weighs nothing.

    Args:
        storage: of the buffer; flushed before every call.
        options: which windows may be drawn.
        num_ignored: how many of the oldest steps of an environment are no starts.
        priority: None gives every start that was not dropped the same weight.
        iteration: in which what is stored counts as collected.
    """

    def __init__(
        self,
        storage: RingStorage,
        options: SamplingOptions,
        num_ignored: int,
        priority: PriorityOptions | None,
        iteration: int = 0,
    ) -> None:
        super().__init__(storage, options, num_ignored)
        self._priority = priority
        self._weights = SamplingWeights(storage)
        self._limits: SampleLimits | None = None
        if options.has_limits:
            self._limits = SampleLimits(
                len(storage.rows), options.max_use, options.max_staleness
            )
        # That of the last batch: as many steps have to follow a start.
        self._batch_length = 1
        self._synced_with = (-1, -1)
        self._iteration = iteration
        self._is_scan_due = False
        is_simple = not options.has_limits and not options.recent_data_ratio
        self._is_by_priority_alone = is_simple and priority is not None

    def draw(self, batch_size: int, batch_length: int) -> WindowStarts:
        starts = self._get_starts(batch_length)
        if not self.num_windows(batch_length):
            raise ValueError(
                f"none of the {starts.size} windows can be drawn: all were used "
                "max_use times, are older than max_staleness or have priority 0"
            )
        if self._is_by_priority_alone:
            env_ids, positions, rows, weights = self._weights.draw(batch_size)
            corrections = self._corrections(self._relative(rows, weights))
            return WindowStarts(env_ids, positions, rows, corrections)
        if self._options.max_use is None:
            drawn = self._draw_some(starts, batch_size)
            if self._limits is not None:
                self._limits.count_use(drawn.rows)
        else:
            drawn = self._draw_sparingly(starts, batch_size)
        env_ids, positions = self._weights.locate(drawn.rows)
        if self._priority is None:
            return WindowStarts(env_ids, positions, drawn.rows)
        return WindowStarts(env_ids, positions, drawn.rows, self._corrections(drawn))

    def can_draw(self, batch_size: int, batch_length: int, num_batches: int) -> bool:
        num_live = self.num_windows(batch_length)
        num_drawn = batch_size * num_batches
        if not num_live or self._options.max_use is None:
            return num_live >= (1 if self._options.with_replacement else batch_size)
        # Later batches lack what earlier ones have used up.
        return num_live >= num_drawn or (
            self._options.with_replacement and self._num_uses_left() >= num_drawn
        )

    def _num_uses_left(self) -> int:
        assert self._limits is not None
        return int(self._limits.num_left(self._weights.live_rows()).sum())

    def num_windows(self, batch_length: int) -> int:
        self._batch_length = batch_length
        self.sync()
        self._drop_stale()
        return self._weights.num_live if self._weights.tree.total > 0 else 0

    def update_priorities(
        self, env_ids: np.ndarray, positions: np.ndarray, priorities: np.ndarray
    ) -> None:
        """Sets the priorities of starts; steps that are gone are left out.

        Raises:
            ValueError: if sampling is not prioritized, or a priority is invalid.
        """
        if self._priority is None:
            super().update_priorities(env_ids, positions, priorities)
        else:
            priorities = priorities.astype(np.float64)
            self.sync()
            rows = self._weights.rows_of_valid(env_ids, positions, priorities)
            if rows is not None:
                self._weights.tree.set(rows, self._priority.powers(priorities))
                return
            weights = self._priority.weights(priorities)
            self._weights.update(env_ids, positions, weights)

    def set_iteration(self, iteration: int) -> None:
        self.sync()
        self._iteration = iteration
        self._is_scan_due = True

    def sync(self, collected_in: int | None = None) -> None:
        """Takes in what was written since the last call.

        Args:
            collected_in: the iteration it was collected in; None for the current one.
        """
        key = (self._storage.num_writes, self._batch_length)
        if key == self._synced_with:
            return
        self._synced_with = key
        new_rows = self._weights.sync(
            self._find_starts(self._batch_length),
            None if self._priority is None else self._priority.initial_weight(),
        )
        if self._limits is not None:
            iteration = self._iteration if collected_in is None else collected_in
            self._limits.register(new_rows, iteration)

    def num_uses(self, env_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        if self._limits is None:
            return super().num_uses(env_ids, positions)
        self.sync()
        return self._limits.num_uses(self._storage.row_indices(env_ids, positions))

    def export(self) -> dict[str, float]:
        self.sync()
        self._weights.export()
        return {
            "is_prioritized": int(self._priority is not None),
            "batch_length": self._batch_length,
            "iteration": self._iteration,
            "weight_unit": self._weights.tree.unit,
        }

    def step_arrays(self) -> dict[str, np.ndarray]:
        step_arrays = self._weights.step_arrays()
        if self._limits is not None:
            step_arrays |= self._limits.step_arrays()
        return step_arrays

    def restore(self, numbers: Mapping[str, float]) -> None:
        self._weights.restore(numbers["weight_unit"])
        self._batch_length = int(numbers["batch_length"])
        self._iteration = int(numbers["iteration"])
        self._is_scan_due = True
        self._synced_with = (-1, -1)
        self.sync()

    def check_valid(self) -> None:
        self.sync()
        self._weights.check_valid()

    def _draw_sparingly(self, starts: PositionRanges, batch_size: int) -> _Drawn:
        """Draws none more often than it may be used.

        What came too often is drawn anew from what is left, until all is found.
        """
        limits, weights = self._limits, self._weights
        assert limits is not None
        if not self._options.with_replacement:
            check_size(weights.num_live, batch_size)
        elif weights.num_live < batch_size and self._num_uses_left() < batch_size:
            raise ValueError(
                f"cannot draw {batch_size} windows: the {weights.num_live} left "
                f"may be used {self._num_uses_left()} times more "
                f"(max_use={self._options.max_use})"
            )
        rounds: list[_Drawn] = []
        while batch_size:
            drawn = self._draw_some(starts, batch_size)
            kept = _occurrences(drawn.rows) < limits.num_left(drawn.rows)
            if not kept.all():
                drawn = drawn._replace(
                    rows=drawn.rows[kept], weights=drawn.weights[kept]
                )
            weights.drop(limits.count_use(drawn.rows))
            rounds.append(drawn)
            batch_size -= len(drawn.rows)
        return rounds[0] if len(rounds) == 1 else _joined(rounds)

    def _draw_some(self, starts: PositionRanges, batch_size: int) -> _Drawn:
        if self._priority is None:
            return self._draw_equally(batch_size)
        return self._draw_by_priority(starts, batch_size)

    def _draw_equally(self, batch_size: int) -> _Drawn:
        """Draws from the starts that are left; each weighs 1."""
        numbers = self._draw_numbers(self._weights.num_live, batch_size)
        rows = self._weights.tree.find(numbers + 0.5)
        return _Drawn(rows, np.ones(batch_size), 1.0, 1.0)

    def _draw_by_priority(self, starts: PositionRanges, batch_size: int) -> _Drawn:
        """Draws in proportion to the weights, the newest ones first if so asked."""
        num_recent = self._num_recent(starts, batch_size)
        *_, rows, weights = self._weights.draw(batch_size - num_recent)
        if not num_recent:
            return self._relative(rows, weights)
        # The whole batch is a mixture of two ways to draw.
        recent = self._recent(starts)
        newest = self._storage.row_indices(*self._draw_from(recent, num_recent))
        rows = np.concatenate((newest, rows))
        env_ids, positions = self._weights.locate(rows)
        share, total = num_recent / batch_size, self._weights.tree.total
        is_recent = positions >= recent.first[env_ids]
        weights = (1.0 - share) * self._weights.tree.get(rows)
        weights += is_recent * (share * total / recent.size)
        least_weight = (1.0 - share) * self._least_weight() or weights.min()
        return _Drawn(rows, weights, total / self._weights.num_live, least_weight)

    def _relative(self, rows: np.ndarray, weights: np.ndarray) -> _Drawn:
        """What was drawn in proportion to the weights of all."""
        mean_weight = self._weights.tree.total / self._weights.num_live
        return _Drawn(rows, weights, mean_weight, self._least_weight())

    def _corrections(self, drawn: _Drawn) -> np.ndarray:
        assert self._priority is not None
        return self._priority.importance_weights(*drawn[1:])

    def _least_weight(self) -> float:
        """That of all that can be drawn, if the importance weights depend on it."""
        assert self._priority is not None
        is_scale = self._priority.normalization == "buffer"
        return self._weights.tree.minimum if is_scale else 0.0

    def _drop_stale(self) -> None:
        """Drops what has become too old since the iteration was set."""
        if self._limits is None or not self._is_scan_due:
            return
        self._is_scan_due = False
        storage = self._storage
        stored = PositionRanges(storage.begin, storage.end)
        rows = storage.row_indices(*stored.all())
        self._weights.drop(self._limits.stale(rows, self._iteration))
