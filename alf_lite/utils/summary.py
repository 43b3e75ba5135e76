"""Numbers, histograms and texts about a run, for TensorBoard.

Any code may call :func:`scalar` and its siblings. They go to the writer that is open,
and cost next to nothing if there is none or if the moment is not recorded:

    with summary.writer_to(directory):
        with summary.record_if(iteration % 50 == 0):
            with summary.scope("actor"):
                summary.scalar("loss", loss)  # read from the device only if recorded

The x-axis is the global counter, which ``RLAlgorithm.train_iter`` sets to that of its
run, or the environment steps where :func:`set_position` tells them, except for
:func:`scalar_at`. A tag that is given several numbers at one step keeps the last. What
is recorded in a ``record_if`` block reaches the writer at the end of the block, and the
disk after ``flush_secs`` or by :func:`flush`. The numbers go to rows of a log, too.

A function that is compiled with ``torch.compile`` records nothing: reading a number
would split it. Return the number instead, as ``LossInfo.extra`` does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from alf_lite.utils.event_writer import EventWriter
from alf_lite.utils.row_log import KEYS, METRICS, Row, RowLog

Nest = Any
Axis = Literal["env_steps", "iterations"]
Position = dict[str, float]  # of a run: row_log.AXES

# Shows the shape of a distribution; TensorBoard's default of 1500 takes far longer.
_HISTOGRAM_BINS = 64


class Recorder:
    """Collects numbers by tag and step, and writes them to one directory.

    Args:
        directory: for TensorBoard's event files; None for nothing at all.
        flush_secs: see :func:`writer_to`, as for the others.
        owner: see there.
        log_directory: see there.
        axis: see there.

    Attributes:
        is_open: whether there is a directory to write to.
        is_recording: whether numbers are wanted now.
        step: the global counter, of what is recorded now.
        prefix: of all tags; ends in "/" unless it is empty.
        listeners: get every row of the log.
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
        self.is_open = self._writer is not None
        self.is_recording = self.is_open
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
        if self._writer is not None:
            self._add_other(self._protos.histogram(tag, values, _HISTOGRAM_BINS))

    def add_text(self, tag: str, markdown: str) -> None:
        """Keeps a text."""
        if self._writer is not None:
            self._add_other(self._protos.text(tag, markdown))

    def add_image(self, tag: str, pixels: Tensor | np.ndarray) -> None:
        """Keeps an image [H, W, C]."""
        if self._writer is not None:
            self._add_other(self._protos.image(tag, pixels, dataformats="HWC"))

    def add_hparams(self, settings: Row, metrics: Iterable[str]) -> None:
        """Keeps what TensorBoard shows as HPARAMS."""
        if self._writer is not None:
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
        if self._writer is not None:
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


# One per process, replaced by writer_to and disabled.
_recorder = Recorder()


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


@contextlib.contextmanager
def writer_to(
    directory: Path | str,
    flush_secs: float = 10.0,
    owner: str = "",
    log_directory: Path | None = None,
    axis: Axis = "iterations",
) -> Iterator[None]:
    """Writes the summaries of the block into ``directory``, which is created.

    Training is worth more than its summaries: while the disk is full they wait in
    memory, and the log says what was lost.

    Args:
        directory: for TensorBoard's event files; earlier ones are kept.
        flush_secs: what is lost at most, in seconds, if the process is killed.
        owner: of the event file, which has it at the end of its name.
        log_directory: for the rows of numbers, see :class:`RowLog`; None for none.
        axis: the steps in the event files, as far as :func:`set_position` tells them.

    Raises:
        ConfigError: if there is something else than a directory.
    """
    recorder = Recorder(directory, flush_secs, owner, log_directory, axis)
    try:
        with _use(recorder):
            yield
    finally:
        recorder.close()


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Nothing in the block is recorded, nor counted in a mean."""
    with _use(Recorder()):
        yield


@contextlib.contextmanager
def _use(recorder: Recorder) -> Iterator[None]:
    global _recorder
    outer, _recorder = _recorder, recorder
    recorder.step = outer.step
    try:
        yield
    finally:
        outer.step = recorder.step
        _recorder = outer


class record_if:  # noqa: N801 - used like a function
    """Records what is in the block only if ``condition``. The innermost one decides.

    Without any, everything is recorded.
    """

    __slots__ = ("_condition", "_outer", "_recorder")

    def __init__(self, condition: bool) -> None:
        self._condition = bool(condition)

    def __enter__(self) -> None:
        self._recorder = _recorder
        self._outer = _recorder.is_recording
        _recorder.is_recording = self._condition and _recorder.is_open

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        recorder = self._recorder
        if recorder.is_recording:
            recorder.write_collected()
        recorder.is_recording = self._outer and recorder.is_open


class scope:  # noqa: N801 - used like a function
    """Puts ``name/`` before the tags of the block."""

    __slots__ = ("_name", "_outer", "_recorder")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._recorder = _recorder
        self._outer = _recorder.prefix
        _recorder.prefix = f"{self._outer}{self._name}/"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recorder.prefix = self._outer


def should_record() -> bool:
    """Whether what is given now is recorded; to skip what is expensive to compute."""
    return _recorder.is_recording and not torch.compiler.is_compiling()


def scalar(
    name: str, value: float | Tensor, average_over_summary_interval: bool = False
) -> None:
    """One number at the current global counter.

    Args:
        name: of the tag, below the current scopes.
        value: a number or a tensor with one element, on any device.
        average_over_summary_interval: record the mean of all values since the last
            recorded one, not only the latest. They stay on their device.

    Raises:
        ValueError, TypeError: if it is recorded and not one number.
    """
    if average_over_summary_interval:
        if _recorder.is_open and not torch.compiler.is_compiling():
            _recorder.add_to_mean(_recorder.prefix + name, value)
    elif should_record():
        _recorder.add_number(_recorder.prefix + name, value)


class timed:  # noqa: N801 - used like a function
    """Records the seconds that the block takes, unless it raises."""

    __slots__ = ("_begin", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            scalar(self._name, time.perf_counter() - self._begin)


def scalar_at(name: str, value: float | Tensor, step: int) -> None:
    """One number at ``step`` of an axis of its own, such as environment steps."""
    if should_record():
        _recorder.add_number(_recorder.prefix + name, value, int(step))


def histogram(name: str, values: Tensor | np.ndarray) -> None:
    """The distribution of the finite ``values``, of any shape."""
    if not should_record():
        return
    if isinstance(values, Tensor):
        values = values.detach().double().cpu().numpy()
    finite = np.asarray(values, dtype=np.float64)[np.isfinite(values)]
    if finite.size > 0:
        _recorder.add_histogram(_recorder.prefix + name, finite)


def text(name: str, markdown: str) -> None:
    """A text, shown as Markdown."""
    if should_record():
        _recorder.add_text(_recorder.prefix + name, markdown)


def image(name: str, pixels: Tensor | np.ndarray) -> None:
    """An image [H, W, C] of uint8, or of floats in [0, 1]."""
    if should_record():
        _recorder.add_image(_recorder.prefix + name, pixels)


def gif(name: str, animation: bytes, size: tuple[int, int]) -> None:
    """An animation in the format GIF, of this height and width."""
    if should_record():
        _recorder.add_gif(_recorder.prefix + name, animation, size)


def hparams(settings: Mapping[str, Any], metrics: Iterable[str]) -> None:
    """The settings of a run, for TensorBoard's table of runs.

    Args:
        settings: numbers; others become texts.
        metrics: tags whose last values are shown beside them.
    """
    if should_record():
        plain = {
            name: value if type(value) in (int, float) else str(value)
            for name, value in settings.items()
        }
        _recorder.add_hparams(plain, metrics)


def rows(name: str, values: Iterable[Mapping[str, Any]]) -> None:
    """Rows for a log of the run, see ``row_log.KEYS``; they are written at once."""
    if should_record():
        _recorder.add_rows(name, values)


def listen(listener: Callable[[Row], object]) -> None:
    """Calls ``listener`` with every row of metrics, until the writer is closed."""
    _recorder.listeners.append(listener)


def flush() -> None:
    """Returns when all that was recorded is in the event file."""
    _recorder.flush()


def set_global_counter(value: int) -> None:
    """Moves the x-axis of what is recorded from now on."""
    _recorder.step = value


def set_position(env_steps: int, updates: int, seconds: float) -> None:
    """Says where the run is after the iteration of the global counter.

    What is recorded until it is said of another iteration belongs here.
    """
    _recorder.set_position(
        {"env_steps": env_steps, "updates": updates, "seconds": seconds}
    )


def position() -> Position:
    """Where the run is, as far as it was said."""
    return _recorder.position


def at(earlier: Position) -> contextlib.AbstractContextManager[None]:
    """What is recorded in the block belongs to where the run was."""
    return _recorder.moved_to(earlier)


# Diagnostics of losses

# Most updates are made between two summaries. For them, the means and errors that
# ``LossInfo.extra`` holds would be computed and thrown away:
#
#     LossInfo(loss, extra=diagnostic(lambda: MyLossInfo(q=info.q.mean(-1))))

_diagnostics_are_due = True  # in this process, also for all who know nothing of this


class diagnostics_if:  # noqa: N801 - used like a function
    """In the block, diagnostics are computed only if ``condition``."""

    __slots__ = ("_condition", "_outer")

    def __init__(self, condition: bool) -> None:
        self._condition = condition

    def __enter__(self) -> None:
        global _diagnostics_are_due
        self._outer, _diagnostics_are_due = _diagnostics_are_due, self._condition

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _diagnostics_are_due
        _diagnostics_are_due = self._outer


def diagnostics_are_due() -> bool:
    """Whether somebody will look at diagnostics."""
    return _diagnostics_are_due


def diagnostic(compute: Callable[[], Nest]) -> Nest:
    """What ``compute`` returns; () if nobody will look at it."""
    return compute() if _diagnostics_are_due else ()
