"""What :mod:`alf_lite.utils.summary` collects, and how it gets into event files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from alf_lite.utils.event_writer import EventWriter

# Shows the shape of a distribution; TensorBoard's default of 1500 takes far longer.
_HISTOGRAM_BINS = 64


class Recorder:
    """Collects numbers by tag and step, and writes them to one directory.

    Attributes:
        is_open: whether there is a directory to write to.
        is_recording: whether numbers are wanted now.
        step: on the x-axis, of what is recorded now.
        prefix: of all tags; ends in "/" unless it is empty.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        flush_secs: float = 10.0,
        owner: str = "",
    ) -> None:
        self._writer: EventWriter | None = None
        if directory is not None:
            # It takes a moment, and many processes never write a summary.
            from torch.utils.tensorboard import summary as protos

            self._protos = protos
            self._writer = EventWriter(directory, flush_secs, owner)
        self.is_open = self._writer is not None
        self.is_recording = self.is_open
        self.step = 0
        self.prefix = ""
        self._numbers: dict[tuple[str, int], float] = {}
        self._counter_of_numbers = 0
        self._sums: dict[str, tuple[float | Tensor, int]] = {}  # of how many numbers

    def add_number(self, tag: str, value: float | Tensor, step: int) -> None:
        """Keeps the number; a later one of the same tag and step replaces it."""
        if self._counter_of_numbers != self.step:
            self._write_numbers()
            self._counter_of_numbers = self.step
        self._numbers[tag, step] = float(_one_number(tag, value))

    def add_to_mean(self, tag: str, value: float | Tensor) -> None:
        """Counts the number in the mean that is written next.

        A tensor is not read now, so that nothing waits for its device.
        """
        total, count = self._sums.get(tag, (0.0, 0))
        # Not in place: the tensor is the caller's.
        self._sums[tag] = total + _one_number(tag, value), count + 1

    def add_histogram(self, tag: str, values: np.ndarray, step: int) -> None:
        """Writes the distribution of finite numbers."""
        if self._writer is not None:
            summary = self._protos.histogram(tag, values, _HISTOGRAM_BINS)
            self._writer.write(summary, step)

    def add_text(self, tag: str, markdown: str, step: int) -> None:
        """Writes a text."""
        if self._writer is not None:
            self._writer.write(self._protos.text(tag, markdown), step)

    def add_image(self, tag: str, pixels: Tensor | np.ndarray, step: int) -> None:
        """Writes an image [H, W, C]."""
        if self._writer is not None:
            summary = self._protos.image(tag, pixels, dataformats="HWC")
            self._writer.write(summary, step)

    def write_collected(self) -> None:
        """Hands all numbers and means to the writer."""
        for tag, (total, count) in self._sums.items():
            self.add_number(tag, total / count, self.step)
        self._sums.clear()
        self._write_numbers()

    def flush(self) -> None:
        """Brings all numbers to the disk, but not the means: they are not complete."""
        self._write_numbers()
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        self.write_collected()
        if self._writer is not None:
            self._writer.close()

    def _write_numbers(self) -> None:
        if self._writer is not None:
            for (tag, step), value in self._numbers.items():
                self._writer.write(self._protos.scalar(tag, value), step)
        self._numbers.clear()


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
