"""Tests of alf_lite.utils.output_streams; more with programs in test_messages."""

from __future__ import annotations

import io
import sys

import pytest

from alf_lite.utils.output_streams import BestEffortStream, best_effort_output


class Broken(io.StringIO):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write(self, text):
        raise self._error

    def flush(self):
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left"),
        BrokenPipeError(),
        ValueError("I/O operation on closed file"),
        RuntimeError("reentrant call"),
    ],
)
def test_errors_of_the_stream_are_only_noted(monkeypatch, error):
    monkeypatch.setattr(sys, "stdout", Broken(error))
    monkeypatch.setattr(sys, "stderr", None)
    with best_effort_output():
        sys.stdout.write("a" * 10)
        sys.stderr.write("b")
        assert sys.stdout.error is (error if isinstance(error, OSError) else None)
        with best_effort_output():
            sys.stdout.flush()
    assert isinstance(sys.stdout, Broken)
    assert sys.stderr is None


def test_what_the_encoding_lacks_is_escaped():
    file = io.BytesIO()
    stream = BestEffortStream(io.TextIOWrapper(file, encoding="ascii"))
    stream.writelines(["95 %: γ=0.9", " \udcc3\n"])
    stream.flush()
    assert file.getvalue() == b"95 %: \\u03b3=0.9 \\udcc3\n"
    assert stream.encoding == "ascii"
    assert not stream.isatty()
