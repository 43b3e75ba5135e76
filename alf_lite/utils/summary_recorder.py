"""What :mod:`alf_lite.utils.summary` collects, and how it gets into event files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from alf_lite.utils.progress import progress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_logger = logging.getLogger(__name__)

# Events that wait for the thread that writes them, before the next one blocks.
_MAX_QUEUE = 1000


class Recorder:
    """Collects numbers by tag and step, and writes them to one directory.

    Attributes:
        is_open: whether there is a directory to write to.
        is_recording: whether numbers are wanted now.
        prefix: of all tags; ends in "/" unless it is empty.
    """

    def __init__(
        self, directory: Path | str | None = None, flush_secs: float = 10.0
    ) -> None:
        self._writer: SummaryWriter | None = None
        if directory is not None:
            # It takes a moment, and many processes never write a summary.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(
                str(directory), max_queue=_MAX_QUEUE, flush_secs=flush_secs
            )
        self.is_open = self._writer is not None
        self.is_recording = self.is_open
        self.prefix = ""
        self._numbers: dict[tuple[str, int], float] = {}
        self._counter_of_numbers = 0
        self._sums: dict[str, tuple[float | Tensor, int]] = {}  # of how many numbers

    def add_number(self, tag: str, value: float | Tensor, step: int) -> None:
        """Keeps the number; a later one of the same tag and step replaces it."""
        if self._counter_of_numbers != progress.global_counter:
            self._write_numbers()
            self._counter_of_numbers = progress.global_counter
        self._numbers[tag, step] = float(_one_number(tag, value))

    def add_to_mean(self, tag: str, value: float | Tensor) -> None:
        """Counts the number in the mean that is written next.

        A tensor is not read now, so that nothing waits for its device.
        """
        total, count = self._sums.get(tag, (0.0, 0))
        # Not in place: the tensor is the caller's.
        self._sums[tag] = total + _one_number(tag, value), count + 1

    def write(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Calls a method of the writer. If the disk is full, it is the last call.

        Training is worth more than its summaries, so it goes on without them.
        """
        if self._writer is None:
            return
        try:
            getattr(self._writer, method)(*args, **kwargs)
        except OSError as error:
            _logger.error(
                "No more summaries are written to %s: %s", self._writer.log_dir, error
            )
            self._writer = None
            self.is_open = self.is_recording = False

    def write_collected(self) -> None:
        """Hands all numbers and means to the writer."""
        for tag, (total, count) in self._sums.items():
            self.add_number(tag, total / count, progress.global_counter)
        self._sums.clear()
        self._write_numbers()

    def flush(self) -> None:
        """Brings all numbers to the disk, but not the means: they are not complete."""
        self._write_numbers()
        self.write("flush")

    def close(self) -> None:
        self.write_collected()
        self.write("close")

    def _write_numbers(self) -> None:
        for (tag, step), value in self._numbers.items():
            self.write("add_scalar", tag, value, step)
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
