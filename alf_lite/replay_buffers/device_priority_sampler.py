"""Windows drawn by the priority of their start, on the device that stores the steps.

On a GPU a sum tree on the host would be waited for twice in every update: the new
priorities go to the host, and what is drawn by them comes back. Here the weights are a
tensor beside the steps. Each draw adds all of them up, which takes a GPU less time than
a transfer, and the host is told nothing. It knows without asking which steps can be
drawn: that follows from where it has written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from alf_lite.replay_buffers.priority_options import PriorityOptions
from alf_lite.replay_buffers.ring_storage import RingStorage
from alf_lite.replay_buffers.window_sampler import (
    PositionRanges,
    SamplingOptions,
    UniformSampler,
    WindowStarts,
    draw_stratified,
)
from alf_lite.utils.devices import DeviceFlag, moved_tensor

# All weights together count so many units at most, in bits: sums of int64 are exact.
_TOTAL_BITS = 62


class DevicePrioritySampler(UniformSampler):
    """Draws as ``WeightedSampler`` does by priorities, with the same random numbers.

    Schaul et al. 2016 (arXiv:1511.05952), with the weights w of the R rows, 0 where no
    window may start. They are counted in whole units of u = max_j w_j / U, so that the
    running sums do not depend on the order in which a device adds:

        n_i = max(1, ⌈w_i / u⌉)   N_i = n_0 + … + n_i   P(i) = n_i / N_{R-1}
        row k of B: the i with N_{i-1} <= (k + ξ_k) / B · N_{R-1} < N_i,   ξ_k in [0, 1)

    A start of priority 0 weighs one unit even without ``eps``: the host does not learn
    that all of them weigh nothing.

    Args:
        storage: of the buffer; flushed before every call.
        options: which windows may be drawn; without limits.
        num_ignored: how many of the oldest steps of an environment are no starts.
        priority: how priorities become probabilities.
    """

    is_on_device: ClassVar[bool] = True

    def __init__(
        self,
        storage: RingStorage,
        options: SamplingOptions,
        num_ignored: int,
        priority: PriorityOptions,
    ) -> None:
        super().__init__(storage, options, num_ignored)
        assert not options.has_limits, "uses and ages are on the host"
        self._priority = priority
        self._device = storage.device
        self._num_rows = len(storage.rows)
        self._max_units = 2.0 ** (_TOTAL_BITS - (self._num_rows - 1).bit_length())
        with torch.inference_mode(False):
            # Of every row, and of nowhere: there goes what is not to be kept.
            shape = (self._num_rows + 1,)
            self._weights = torch.zeros(shape, dtype=torch.float64, device=self._device)
            self._slots = torch.arange(storage.max_length, device=self._device)
            self._is_wrong = DeviceFlag(self._device)
        # That of the last batch: as many steps have to follow a start.
        self._batch_length = 1
        self._synced_with = (-1, -1)
        empty = np.zeros(storage.num_environments, np.int64)
        self._known_end = empty  # steps before have a weight
        self._drawable = PositionRanges(empty, empty)
        self._is_drawable = self._rows_of(self._drawable)  # [R] bool
        self._stored = self._moved(np.stack((empty, empty)))  # [2, E], begin and end

    def draw(self, batch_size: int, batch_length: int) -> WindowStarts:
        starts = self._get_starts(batch_length)
        self._batch_length = batch_length
        self.sync()
        units = self._units()
        num_recent = self._num_recent(starts, batch_size)
        rows, total = self._find(units, batch_size - num_recent)
        least = self._least(units)
        if num_recent:
            # The whole batch is a mixture of two ways to draw.
            recent = self._recent(starts)
            newest = self._storage.row_indices(*self._draw_from(recent, num_recent))
            rows = torch.cat((self._moved(newest), rows))
            share = num_recent / batch_size
            is_recent = self._rows_of(recent)[rows]
            weights = (1.0 - share) * units[rows].double()
            weights = weights + is_recent * (share * total / recent.size)
            least = (1.0 - share) * least if share < 1.0 else weights.amin()
        else:
            weights = units[rows].double()
        corrections = self._priority.importance_weights(
            weights, total / starts.size, least
        )
        return self._located(rows, corrections)

    def update_priorities(
        self, env_ids: Tensor, positions: Tensor, priorities: Tensor
    ) -> None:
        """Sets the priorities of starts; steps that are gone are left out.

        Of two for one step the last one stays.

        Raises:
            ValueError: if a priority was invalid, at a later call: the host learns of
                it when the device gets there. Until then nothing is set any more.
        """
        self.sync()
        weights = self._priority.powers(priorities.double())
        is_valid = (priorities >= 0) & (weights < torch.inf)
        has_failed = self._is_wrong.add(is_valid.all().logical_not())
        begin, end = self._stored[:, env_ids]
        is_lost = (positions < begin) | (positions >= end) | (has_failed != 0)
        nowhere = self._num_rows
        rows = self._storage.row_indices(env_ids, positions)
        in_order, order = rows.masked_fill(is_lost, nowhere).sort(stable=True)
        comes_again = in_order.diff(append=in_order.new_full((1,), -1)) == 0
        rows = in_order.masked_fill(comes_again, nowhere)
        self._weights.index_copy_(0, rows, weights[order])
        if self._is_wrong.glance():
            self._raise()

    def raise_late_errors(self) -> None:
        if self._is_wrong.look():
            self._raise()

    def _raise(self) -> NoReturn:
        self._is_wrong.clear()  # whoever goes on all the same shall be able to
        raise ValueError(
            "priorities must be finite and not negative: in one of the last updates "
            "they were not, since when none was changed. Use |δ|, and look for a loss "
            "that diverges. PriorityOptions.on_device=False says at once which."
        )

    def sync(self, collected_in: int | None = None) -> None:
        """Gives what was written since the last call its first weight."""
        storage = self._storage
        key = (storage.num_writes, self._batch_length)
        if key == self._synced_with:
            return
        self._synced_with = key
        before, starts = self._drawable, self._find_starts(self._batch_length)
        new = PositionRanges(np.maximum(self._known_end, storage.begin), storage.end)
        if new.size:
            still = PositionRanges(
                np.maximum(before.first, starts.first),
                np.minimum(before.last, starts.last),
            )
            weights = self._weights[:-1]
            initial = self._initial_weight(still)
            # Not by masked_fill: it would have the host read the value.
            weights.copy_(torch.where(self._rows_of(new), initial, weights))
        self._known_end = storage.end.copy()
        self._drawable, self._is_drawable = starts, self._rows_of(starts)
        self._stored = self._moved(np.stack((storage.begin, storage.end)))

    # In a checkpoint it is as what WeightedSampler keeps without limits: a run may be
    # continued on another device.

    def export(self) -> dict[str, float]:
        self.sync()
        self._weights_here[:] = self._weights[:-1].numpy(force=True)
        return {
            "is_prioritized": 1,
            "batch_length": self._batch_length,
            "iteration": 0,
            "weight_unit": 0.0,
        }

    def step_arrays(self) -> dict[str, np.ndarray]:
        return {"weights": self._weights_here, "dropped": self._dropped_here}

    @functools.cached_property
    def _weights_here(self) -> np.ndarray:
        return np.zeros(self._num_rows)

    @functools.cached_property
    def _dropped_here(self) -> np.ndarray:
        return np.zeros(self._num_rows, bool)

    def restore(self, numbers: Mapping[str, float]) -> None:
        self._weights[:-1].copy_(torch.from_numpy(self._weights_here))
        self._is_wrong.clear()
        self._batch_length = int(numbers["batch_length"])
        self._known_end = self._storage.end.copy()
        self._synced_with = (-1, -1)
        self.sync()

    def check_valid(self) -> None:
        self.sync()
        starts, storage = self._drawable, self._storage
        expected = np.zeros(self._num_rows, bool)
        expected[storage.rows_between(starts.first, starts.last)] = True
        found = self._is_drawable.numpy(force=True)
        assert (found == expected).all(), "what can be drawn"
        weights = self._weights[:-1].numpy(force=True)
        assert (weights >= 0).all(), weights.min()
        assert (weights < np.inf).all(), weights.max()

    # On the device

    def _initial_weight(self, drawable: PositionRanges) -> Tensor:
        """That of new steps [], beside those that can be drawn."""
        initial = self._priority.initial_weight()
        if initial is None:
            return self._masked(self._rows_of(drawable)).amax().clamp(min=1.0)
        return self._weights.new_full((), initial)

    def _units(self) -> Tensor:
        """[R] int64, n_i of the class's docstring."""
        weights = self._masked(self._is_drawable)
        largest = weights.amax().clamp(min=torch.finfo(torch.float64).tiny)
        units = (weights / largest * self._max_units).ceil().long().clamp(min=1)
        return units.masked_fill(~self._is_drawable, 0)

    def _find(self, units: Tensor, num: int) -> tuple[Tensor, Tensor]:
        """``num`` rows in random order, in proportion to ``units``, and N_{R-1} []."""
        sums = units.cumsum(0)
        total = sums[-1]
        masses, order = draw_stratified(1.0, num)
        rounded = (self._moved(masses.take(order)) * total).long()
        # A mass close to 1 may be rounded up to all of them.
        rows = torch.searchsorted(sums, torch.minimum(rounded, total - 1), right=True)
        return rows, total.double()

    def _least(self, units: Tensor) -> Tensor:
        """The smallest n_i [], if the importance weights depend on it."""
        if self._priority.normalization != "buffer":
            return units.new_zeros((), dtype=torch.float64)
        most = torch.iinfo(torch.int64).max
        return units.masked_fill(~self._is_drawable, most).amin().double()

    def _masked(self, rows: Tensor) -> Tensor:
        """[R], the weights of these rows [R] bool, 0 elsewhere."""
        return self._weights[:-1].masked_fill(~rows, 0.0)

    def _rows_of(self, ranges: PositionRanges) -> Tensor:
        """[R] bool, which rows have the steps of these ranges."""
        bounds = self._moved(np.stack((ranges.first, ranges.last)))
        first, last = bounds.unsqueeze(-1)  # [E, 1] each
        num_before = (self._slots - first) % self._storage.max_length  # [E, L]
        return (num_before < last - first).flatten()

    def _located(self, rows: Tensor, corrections: Tensor) -> WindowStarts:
        """The starts in these rows [B]."""
        max_length = self._storage.max_length
        env_ids = rows // max_length
        newest = self._stored[1, env_ids] - 1
        positions = newest - (newest - rows) % max_length
        starts = WindowStarts(env_ids, positions, rows, corrections)
        if self._device.type == "cpu":
            return WindowStarts(*(each.numpy() for each in starts))
        return starts

    def _moved(self, array: np.ndarray) -> Tensor:
        return moved_tensor(torch.from_numpy(array), self._device)
