"""What is recorded is in the event files, once; what is not recorded costs nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.errors import ConfigError
from alf_lite.utils import summary


class Untouchable:
    """A number that must not be read."""

    def __float__(self):
        raise AssertionError("was read")


def events(directory):
    accumulator = EventAccumulator(
        str(directory), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0}
    )
    accumulator.Reload()
    return accumulator


def points(directory):
    """{tag: [(step, value)]} in the order of the file."""
    accumulator = events(directory)
    return {
        tag: [(e.step, pytest.approx(e.value)) for e in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_scalars_are_recorded_at_the_global_counter_below_their_scopes(tmp_path):
    with summary.writer_to(tmp_path / "new" / "directory"):
        assert summary.should_record()
        summary.scalar("a", 1)
        summary.set_global_counter(1)
        with summary.scope("outer"):
            summary.scalar("a", torch.tensor(2.0, requires_grad=True))
            with summary.scope("inner"):
                summary.scalar("a", np.float32(3.0))
            summary.scalar("b", torch.tensor([[4]]))
        summary.set_global_counter(7)
        summary.scalar("a", True)
    assert not summary.should_record()
    assert points(tmp_path / "new" / "directory") == {
        "a": [(0, 1.0), (7, 1.0)],
        "outer/a": [(1, 2.0)],
        "outer/inner/a": [(1, 3.0)],
        "outer/b": [(1, 4.0)],
    }


def test_scopes_end_when_their_block_raises(tmp_path):
    with summary.writer_to(tmp_path):
        with pytest.raises(KeyError), summary.scope("a"):
            raise KeyError
        summary.scalar("x", 1)
    assert list(points(tmp_path)) == ["x"]


def test_scalar_at_has_an_axis_of_its_own(tmp_path):
    with summary.writer_to(tmp_path):
        for iteration in range(3):
            summary.set_global_counter(iteration)
            summary.scalar_at("vs_env_steps", iteration, 1000 * iteration)
            summary.scalar("vs_iterations", iteration)
    assert points(tmp_path) == {
        "vs_env_steps": [(0, 0.0), (1000, 1.0), (2000, 2.0)],
        "vs_iterations": [(0, 0.0), (1, 1.0), (2, 2.0)],
    }


def test_a_tag_has_one_point_per_step_the_last_one(tmp_path):
    with summary.writer_to(tmp_path):
        for iteration in range(2):
            summary.set_global_counter(iteration)
            with summary.record_if(True):
                for mini_batch in range(4):
                    summary.scalar("loss", 10 * iteration + mini_batch)
    assert points(tmp_path) == {"loss": [(0, 3.0), (1, 13.0)]}


def test_earlier_steps_do_not_wait_for_a_block_to_end(tmp_path):
    with summary.writer_to(tmp_path):
        for iteration in range(10):
            summary.set_global_counter(iteration)
            summary.scalar("x", iteration)
        summary._recorder._writer.flush()
        assert [step for step, _ in points(tmp_path)["x"]] == list(range(9))


def test_numbers_are_taken_when_they_are_given(tmp_path):
    with summary.writer_to(tmp_path):
        x = torch.tensor(1.0)
        summary.scalar("x", x)
        x.fill_(9.0)
    assert points(tmp_path) == {"x": [(0, 1.0)]}


@pytest.mark.parametrize("has_writer", [False, True])
def test_what_is_not_recorded_is_not_read(tmp_path, has_writer):
    writer = summary.writer_to(tmp_path) if has_writer else contextlib.nullcontext()
    with writer, summary.record_if(not has_writer):
        assert not summary.should_record()
        if not has_writer:
            summary.scalar("x", Untouchable(), average_over_summary_interval=True)
            summary.flush()
        summary.scalar("x", Untouchable())
        summary.scalar_at("x", Untouchable(), 3)
        summary.histogram("x", Untouchable())
        summary.text("x", "text")
        summary.image("x", Untouchable())
    assert points(tmp_path) == {}


def test_innermost_condition_decides_and_the_outer_one_returns(tmp_path):
    with summary.writer_to(tmp_path):
        with summary.record_if(False):
            with summary.record_if(True):
                summary.scalar("inner", 1)
            summary.scalar("outer", Untouchable())
        with pytest.raises(KeyError), summary.record_if(False):
            raise KeyError
        assert summary.should_record()
    assert list(points(tmp_path)) == ["inner"]


def test_mean_over_the_summary_interval(tmp_path):
    with summary.writer_to(tmp_path):
        for iteration in range(1, 7):
            summary.set_global_counter(iteration)
            with summary.record_if(iteration % 3 == 0), summary.scope("s"):
                for _ in range(2):  # mini-batches
                    summary.scalar(
                        "number", iteration, average_over_summary_interval=True
                    )
                    summary.scalar(
                        "tensor",
                        torch.tensor(float(iteration), requires_grad=True),
                        average_over_summary_interval=True,
                    )
    expected = [(3, (1 + 2 + 3) / 3), (6, (4 + 5 + 6) / 3)]
    assert points(tmp_path) == {"s/number": expected, "s/tensor": expected}


def test_mean_is_not_changed_by_what_happens_to_the_tensors_and_keeps_no_graph(
    tmp_path,
):
    with summary.writer_to(tmp_path), summary.record_if(True):
        parameter = torch.tensor(2.0, requires_grad=True)
        loss = parameter * 1
        for _ in range(3):
            summary.scalar("loss", loss, average_over_summary_interval=True)
        with torch.no_grad():
            loss.fill_(100.0)
        total, _ = summary._recorder._sums["loss"]
        assert not total.requires_grad
    assert points(tmp_path) == {"loss": [(0, 2.0)]}


def test_mean_of_an_unfinished_interval_is_written_at_the_end(tmp_path):
    with summary.writer_to(tmp_path):
        with summary.record_if(False):
            summary.scalar("x", 1.0, average_over_summary_interval=True)
            summary.scalar("x", 2.0, average_over_summary_interval=True)
        summary.flush()
        assert points(tmp_path) == {}
    assert points(tmp_path) == {"x": [(0, 1.5)]}


def test_nothing_is_recorded_nor_averaged_while_disabled(tmp_path):
    with summary.writer_to(tmp_path):
        with summary.scope("a"), summary.disabled():
            assert not summary.should_record()
            summary.scalar("x", Untouchable())
            summary.scalar("x", Untouchable(), average_over_summary_interval=True)
        summary.scalar("y", 1)
    assert list(points(tmp_path)) == ["y"]


def test_writers_nest(tmp_path):
    with summary.writer_to(tmp_path / "train"), summary.scope("a"):
        with summary.writer_to(tmp_path / "eval"):
            summary.scalar("x", 1)
        summary.scalar("y", 2)
    assert points(tmp_path / "eval") == {"x": [(0, 1.0)]}
    assert points(tmp_path / "train") == {"a/y": [(0, 2.0)]}


def test_flush_brings_everything_to_the_file_in_whole_records(tmp_path):
    with summary.writer_to(tmp_path, flush_secs=1000):
        for iteration in range(50):
            summary.set_global_counter(iteration)
            summary.scalar("x", iteration)
        summary.flush()
        (path,) = tmp_path.iterdir()
        size = path.stat().st_size
        assert [step for step, _ in points(tmp_path)["x"]] == list(range(50))
        summary.set_global_counter(50)
        summary.scalar("x", 50)
    # A checkpoint remembers the size, and a resumed run starts over from there.
    os.truncate(path, size)
    with summary.writer_to(tmp_path):
        summary.scalar("x", -1)
    assert points(tmp_path)["x"] == [*((i, i) for i in range(50)), (50, -1.0)]


@pytest.mark.ci
def test_import_is_lazy_and_what_was_flushed_survives_a_kill(tmp_path):
    code = f"""
        import os, signal, sys
        from alf_lite.utils import summary
        assert "tensorboard" not in sys.modules
        with summary.writer_to({str(tmp_path)!r}):
            assert "tensorboard" in sys.modules
            for i in range(500):
                summary.set_global_counter(i)
                summary.scalar("x", i)
            summary.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], timeout=120, check=False
    )
    assert child.returncode == -signal.SIGKILL
    assert [step for step, _ in points(tmp_path)["x"]] == list(range(500))


def test_compiled_functions_stay_whole_and_record_nothing(tmp_path):
    def function(x):
        with summary.scope("a"):
            summary.scalar("x", x.sum())
            summary.scalar("x", x.sum(), average_over_summary_interval=True)
            summary.histogram("x", x)
        return x + 1

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    with summary.writer_to(tmp_path):
        for iteration in range(3):
            summary.set_global_counter(iteration)
            assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
        assert summary.should_record()
    assert points(tmp_path) == {}


def test_histogram_counts_the_finite_values(tmp_path):
    values = torch.tensor([[0.0, 1.0], [1.0, float("nan")], [3.0, float("inf")]])
    with summary.writer_to(tmp_path):
        summary.histogram("h", values.requires_grad_())
        summary.histogram("int", torch.arange(5))
        summary.histogram("array", np.ones(3, dtype=np.float16))
        summary.histogram("none", torch.full((2,), float("nan")))
        summary.histogram("empty", torch.zeros(0))
    accumulator = events(tmp_path)
    assert set(accumulator.Tags()["histograms"]) == {"h", "int", "array"}
    histogram = accumulator.Histograms("h")[0].histogram_value
    assert (histogram.num, histogram.min, histogram.max, histogram.sum) == (4, 0, 3, 5)
    assert sum(histogram.bucket) == 4


def test_texts_and_images(tmp_path):
    with summary.writer_to(tmp_path), summary.scope("a"):
        summary.text("config", "x = 1")
        summary.image("frame", np.zeros((4, 6, 3), dtype=np.uint8))
    accumulator = events(tmp_path)
    tensor = accumulator.Tensors("a/config/text_summary")[0].tensor_proto
    assert tensor.string_val[0] == b"x = 1"
    picture = accumulator.Images("a/frame")[0]
    assert (picture.height, picture.width) == (4, 6)


@pytest.mark.parametrize("average", [False, True])
def test_more_than_one_number_is_an_error_that_names_the_tag(tmp_path, average):
    with summary.writer_to(tmp_path), summary.scope("a"):
        with pytest.raises(ValueError, match=r"'a/loss'.*tensor \[2, 3\]"):
            summary.scalar("loss", torch.zeros(2, 3), average)
        with pytest.raises(ValueError, match=r"tensor \[0\]"):
            summary.scalar("loss", torch.zeros(0), average)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="file"), summary.writer_to(path):
            pass
    assert not summary.should_record()


def test_what_is_no_number_is_an_error_that_names_the_tag(tmp_path):
    with summary.writer_to(tmp_path):
        with pytest.raises(TypeError, match=r"'loss'.*got NoneType"):
            summary.scalar("loss", None)
        with pytest.raises(TypeError, match=r"'loss'.*got list"):
            summary.scalar("loss", [1.0], average_over_summary_interval=True)
