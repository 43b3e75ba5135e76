"""Collects the numbers of a run, and writes them to event files and logs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from alf_lite.utils.event_writer import EventWriter
from alf_lite.utils.row_log import KEYS, METRICS, Row, RowLog

Axis = Literal["env_steps", "iterations"]
Position = dict[str, float]  # of a run: row_log.AXES

# Shows the shape of a distribution; TensorBoard's default of 1500 takes far longer.
_HISTOGRAM_BINS = 64


class Recorder:
    """Collects numbers by tag and step, and writes them to one directory.

    What is no number is given only while ``is_recording``.

    Args:
        directory: for TensorBoard's event files; None for nothing at all.
        flush_secs: see ``summary.writer_to``, as for the others.
        owner: see there.
        log_directory: see there.
        axis: see there.

    Attributes:
        is_open: whether there is a directory to write to.
        is_recording: whether numbers are wanted now.
        is_due: whether they are where there is a directory, as on one of several ranks.
        step: the global counter, of what is recorded now.
        prefix: of all tags; ends in "/" unless it is empty.
        listeners: get every row of the log.
        histogram_listeners: get the tag and the values of every histogram.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        flush_secs: float = 10.0,
        owner: str = "",
        log_directory: Path | None = None,
        axis: Axis = "iterations",
    ) -> None:
        self._writer: EventWriter | None = None
        if directory is not None:
            # It takes a moment, and many processes never write a summary.
            from torch.utils.tensorboard import summary as protos

            self._protos = protos
            self._writer = EventWriter(directory, flush_secs, owner)
        self._logs: dict[str, RowLog] = {}
        if log_directory is not None:
            self._logs = {
                name: RowLog(log_directory / f"{name}.jsonl", keys)
                for name, keys in KEYS.items()
            }
        self.listeners: list[Callable[[Row], object]] = []
        self.histogram_listeners: list[Callable[[str, np.ndarray], object]] = []
        self.is_open = self._writer is not None
        self.is_recording = self.is_open
        self.is_due = False
        self.step = 0
        self.prefix = ""
        self._axis = axis
        self._position: Position = {}
        # What waits for the end of its iteration; a number without a step is of it.
        self._numbers: dict[tuple[str, int | None], float] = {}
        self._others: list[Any] = []
        self._waiting_step = 0
        self._sums: dict[str, tuple[float | Tensor, int]] = {}  # of how many numbers

    def set_position(self, position: Position) -> None:
        """Takes where the run is after iteration ``step``."""
        if self._waiting_step != self.step:
            self._write_waiting()
        self._position = position

    @property
    def position(self) -> Position:
        return {"iteration": self.step, **self._position}

    @contextlib.contextmanager
    def moved_to(self, position: Position) -> Iterator[None]:
        """See :func:`at`."""
        self._write_waiting()
        outer = self.step, self._position
        self.step = int(position["iteration"])
        self._position = {k: v for k, v in position.items() if k != "iteration"}
        try:
            yield
        finally:
            self._write_waiting()
            self.step, self._position = outer

    def add_number(
        self, tag: str, value: float | Tensor, step: int | None = None
    ) -> None:
        """Keeps the number; a later one of the same tag and step replaces it."""
        self._begin_step()
        self._numbers[tag, step] = float(_one_number(tag, value))

    def add_to_mean(self, tag: str, value: float | Tensor) -> None:
        """Counts the number in the mean that is written next.

        A tensor is not read now, so that nothing waits for its device.
        """
        total, count = self._sums.get(tag, (0.0, 0))
        # Not in place: the tensor is the caller's.
        self._sums[tag] = total + _one_number(tag, value), count + 1

    def add_histogram(self, tag: str, values: np.ndarray) -> None:
        """Keeps the distribution of finite numbers."""
        for listener in self.histogram_listeners:
            listener(tag, values)
        self._add_other(self._protos.histogram(tag, values, _HISTOGRAM_BINS))

    def add_text(self, tag: str, markdown: str) -> None:
        """Keeps a text."""
        self._add_other(self._protos.text(tag, markdown))

    def add_image(self, tag: str, pixels: Tensor | np.ndarray) -> None:
        """Keeps an image [H, W, C]."""
        self._add_other(self._protos.image(tag, pixels, dataformats="HWC"))

    def add_hparams(self, settings: Row, metrics: Iterable[str]) -> None:
        """Keeps what TensorBoard shows as HPARAMS."""
        results = dict.fromkeys(metrics, 0.0)
        for part in self._protos.hparams(settings, results):
            self._add_other(part)

    def add_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes rows to a log of the run, if there is one."""
        if name in self._logs:
            for row in rows:
                self._logs[name].add({**self.position, **row})

    def add_gif(self, tag: str, gif: bytes, size: tuple[int, int]) -> None:
        """Keeps an animation of this height and width."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        image = Summary.Image(
            height=size[0], width=size[1], colorspace=3, encoded_image_string=gif
        )
        self._add_other(Summary(value=[Summary.Value(tag=tag, image=image)]))

    def write_collected(self) -> None:
        """Hands all numbers and means to the writer."""
        for tag, (total, count) in self._sums.items():
            self.add_number(tag, total / count)
        self._sums.clear()
        self._write_waiting()

    def flush(self) -> None:
        """Brings all numbers to the disk, but not the means: they are not complete."""
        self._write_waiting()
        if self._writer is not None:
            self._writer.sync()
        for log in self._logs.values():
            log.sync()

    def close(self) -> None:
        self.write_collected()
        if self._writer is not None:
            self._writer.close()
        for log in self._logs.values():
            log.close()

    def _begin_step(self) -> None:
        if self._waiting_step != self.step:
            self._write_waiting()
            self._waiting_step = self.step

    def _add_other(self, proto: Any) -> None:
        self._begin_step()
        self._others.append(proto)

    def _write_waiting(self) -> None:
        """Writes the numbers of one iteration."""
        if self._writer is not None and (self._numbers or self._others):
            position: Position = {"iteration": self._waiting_step, **self._position}
            x = self._waiting_step
            if self._axis == "env_steps":
                x = int(position.get("env_steps", x))
            for proto in self._others:
                self._writer.write(proto, x)
            for (tag, step), value in self._numbers.items():
                at = x if step is None else step
                self._writer.write(self._protos.scalar(tag, value), at)
            self._log_row(position)
        self._others.clear()
        self._numbers.clear()

    def _log_row(self, position: Position) -> None:
        # The same numbers over another axis are in the row already.
        row: Row = {
            tag: value
            for (tag, _), value in self._numbers.items()
            if "_vs_" not in tag.partition("/")[0]
        }
        if row:
            row = position | row
            if METRICS in self._logs:
                self._logs[METRICS].add(row)
            for listener in self.listeners:
                listener(row)


def _one_number(tag: str, value: float | Tensor) -> float | Tensor:
    """``value`` without gradient; an error if it is not one number."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"summary {tag!r}: expected one number, got a tensor "
                f"{list(value.shape)}. Reduce it first, or use summary.histogram."
            )
        return value.detach()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"summary {tag!r}: expected a number, got {type(value).__name__}"
        ) from None
