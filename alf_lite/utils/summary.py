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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.utils.row_log import Row
from alf_lite.utils.summary_recorder import Axis, Position, Recorder

# One per process, replaced by writer_to and disabled.
_recorder = Recorder()


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
        self._outer = _recorder.is_recording, _recorder.is_due
        _recorder.is_recording = self._condition and _recorder.is_open
        _recorder.is_due = self._condition

    def __exit__(self, *error: object) -> None:
        recorder = self._recorder
        if recorder.is_recording:
            recorder.write_collected()
        was_recording, recorder.is_due = self._outer
        recorder.is_recording = was_recording and recorder.is_open


class scope:  # noqa: N801 - used like a function
    """Puts ``name/`` before the tags of the block."""

    __slots__ = ("_name", "_outer", "_recorder")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._recorder = _recorder
        self._outer = _recorder.prefix
        _recorder.prefix = f"{self._outer}{self._name}/"

    def __exit__(self, *error: object) -> None:
        self._recorder.prefix = self._outer


def should_record() -> bool:
    """Whether what is given now is recorded; to skip what is expensive to compute."""
    return _recorder.is_recording and not torch.compiler.is_compiling()


def is_due() -> bool:
    """Whether a ``record_if`` asks for numbers, wherever they are written.

    Of several ranks one writes; all of them have to know when it needs theirs.
    """
    return _recorder.is_due


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

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
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


def listen_to_histograms(listener: Callable[[str, np.ndarray], object]) -> None:
    """Calls ``listener`` with tag and values of each, before the row of its iteration.

    The values are read only, and may change afterwards.
    """
    _recorder.histogram_listeners.append(listener)


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
