"""What a run draws from its replay buffer, in numbers.

They are computed only where summaries are recorded; in between two integers are
counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from alf_lite.data_structures import BatchInfo
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.utils import summary


class ReplayMonitor:
    """Writes the numbers below ``replay/``; see docs/logged_metrics.md."""

    def __init__(self) -> None:
        # Since the run began.
        self._num_added = 0  # own steps
        self._num_own_windows = 0
        self._num_drawn = 0  # steps of windows of all sources
        self._at_last: tuple[float, int, int] | None = None
        self._drawn: list[tuple[bool, BatchInfo]] = []
        self._priority: Tensor | tuple = ()

    def add(self, num_steps: int) -> None:
        """Counts own steps that are stored."""
        self._num_added += num_steps

    def draw(self, drawn: Sequence[tuple[bool, BatchInfo]], length: int) -> None:
        """Takes note of windows that were drawn at once.

        Args:
            drawn: of every source, whether it is the run's own buffer, and [B].
            length: steps of a window.
        """
        self._drawn = list(drawn)
        for is_own, info in self._drawn:
            num_windows = len(info.env_ids)
            self._num_drawn += num_windows * length
            if is_own:
                self._num_own_windows += num_windows

    def prioritize(self, priority: Tensor) -> None:
        """Takes note of the priorities that an update gives [B]."""
        self._priority = priority

    def write(self, buffer: ReplayBuffer | None) -> None:
        """Writes what is known, of the own ``buffer`` and the last windows drawn."""
        if not summary.should_record():
            return
        with summary.scope("replay"):
            summary.scalar("size", 0 if buffer is None else buffer.total_size)
            if self._num_added:
                times_drawn = self._num_own_windows / self._num_added
                summary.scalar("times_drawn", times_drawn)
            self._write_speeds()
            self._write_drawn(buffer)
            if isinstance(self._priority, Tensor):
                _write("priority", self._priority)
        self._drawn = []
        self._priority = ()

    def _write_speeds(self) -> None:
        now = time.monotonic()
        if self._at_last is not None:
            then, added, drawn = self._at_last
            seconds = max(now - then, 1e-9)
            added, drawn = self._num_added - added, self._num_drawn - drawn
            summary.scalar("steps_added_per_second", added / seconds)
            summary.scalar("steps_drawn_per_second", drawn / seconds)
        self._at_last = now, self._num_added, self._num_drawn

    def _write_drawn(self, buffer: ReplayBuffer | None) -> None:
        total = sum(len(info.env_ids) for _, info in self._drawn)
        weights = []
        for is_own, info in self._drawn:
            if is_own:
                assert buffer is not None, "something was drawn from it"
                newest = buffer.end_positions[info.env_ids] - 1
                _write("age", newest - info.positions)
            source = 0 if is_own else int(info.source[0])
            name = f"offline_{source}" if source else "own"
            summary.scalar(f"share/{name}", len(info.env_ids) / total)
            if isinstance(info.importance_weights, Tensor):
                weights.append(info.importance_weights)
        if weights:
            _write("importance_weight", torch.cat(weights))

    def state_dict(self) -> dict[str, Any]:
        """What is counted since the run began."""
        return {
            "num_added": self._num_added,
            "num_own_windows": self._num_own_windows,
            "num_drawn": self._num_drawn,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what ``state_dict`` returned."""
        self._num_added = state["num_added"]
        self._num_own_windows = state["num_own_windows"]
        self._num_drawn = state["num_drawn"]


def _write(name: str, values: Tensor) -> None:
    values = values.detach().float()
    summary.scalar(f"{name}/mean", values.mean())
    summary.scalar(f"{name}/max", values.max())
