"""Events reach the file in whole records, in order, also after the disk was full."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.utils import appended_file, event_writer, summary


def points(directory) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars("x")]


def record(steps) -> None:
    for step in steps:
        summary.set_global_counter(step)
        summary.scalar("x", step)
    summary.flush()


def full_disk(monkeypatch, after: int = 0) -> None:
    """Every write gets ``after`` bytes to the disk, then fails."""
    original = os.pwrite

    def fail(descriptor, data, offset):
        if after and len(data) > after:
            return original(descriptor, data[:after], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(event_writer.os, "pwrite", fail)


@pytest.mark.parametrize("after", [0, 1, 30])
def test_summaries_go_on_after_a_full_disk(tmp_path, monkeypatch, caplog, after):
    with summary.writer_to(tmp_path, flush_secs=1000):
        record(range(10))
        full_disk(monkeypatch, after)
        record(range(10, 20))
        record(range(20, 25))
        assert summary.should_record()
        (path,) = tmp_path.iterdir()
        assert points(tmp_path) == [(i, i) for i in range(10)]
        size = path.stat().st_size
        monkeypatch.undo()
        record(range(25, 30))
        assert path.stat().st_size > size
    assert points(tmp_path) == [(i, i) for i in range(30)]
    first, second = caplog.records
    assert first.levelno == logging.ERROR
    assert f"{tmp_path}: summaries cannot be written now (No space" in first.message
    assert "written again; nothing was lost" in second.message


def test_what_waits_is_limited_and_the_loss_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(appended_file, "_MAX_WAITING_BYTES", 500)
    with summary.writer_to(tmp_path, flush_secs=1000):
        record(range(10))
        full_disk(monkeypatch)
        record(range(10, 100))
        monkeypatch.undo()
        record([100])
    steps = [step for step, _ in points(tmp_path)]
    num_lost = 101 - len(steps)
    assert 0 < num_lost < 90
    assert steps == [*range(10), *range(10 + num_lost, 101)]
    assert f"written again; {num_lost} points were lost" in caplog.text


def test_a_disk_that_stays_full_costs_the_end_and_says_so(
    tmp_path, monkeypatch, caplog
):
    with summary.writer_to(tmp_path):
        record(range(10))
        full_disk(monkeypatch)
        record(range(10, 13))
    assert points(tmp_path) == [(i, i) for i in range(10)]
    assert "the last 3 points of the summaries were lost" in caplog.text


def test_no_space_for_the_file_itself_is_waited_for_too(tmp_path, monkeypatch, caplog):
    original = os.open

    def fail(path, *args, **kwargs):
        if "tfevents" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, *args, **kwargs)

    monkeypatch.setattr(event_writer.os, "open", fail)
    with summary.writer_to(tmp_path):
        record(range(3))
        assert not list(tmp_path.iterdir())
        monkeypatch.undo()
        record(range(3, 5))
    assert points(tmp_path) == [(i, i) for i in range(5)]
    assert len(caplog.records) == 2


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few pages."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)]
    try:
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("file systems cannot be mounted here")
    except OSError:
        pytest.skip("there is no mount")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_disk_that_is_really_full_and_then_is_not(small_disk, caplog):
    filler = small_disk / "filler"
    with summary.writer_to(small_disk / "train", flush_secs=1000):
        record(range(10))
        with (
            filler.open("wb", buffering=0) as file,
            pytest.raises(OSError, match="space"),
        ):
            while True:
                file.write(b"x" * 512)
        record(range(10, 500))
        assert len(points(small_disk / "train")) < 500
        filler.unlink()
        record(range(500, 510))
    assert points(small_disk / "train") == [(i, i) for i in range(510)]
    assert "nothing was lost" in caplog.text


def test_events_reach_the_file_after_flush_secs_without_being_asked(tmp_path):
    with summary.writer_to(tmp_path, flush_secs=0.02):
        with summary.record_if(True):
            summary.scalar("x", 0)
        (path,) = tmp_path.iterdir()
        deadline = time.monotonic() + 60
        while path.stat().st_size < 60:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert points(tmp_path) == [(0, 0.0)]


def test_files_are_read_in_the_order_they_were_begun_in(tmp_path, monkeypatch):
    for number, now in enumerate([2e9, 1e9, 2e9, 0, 3e9]):  # a clock that is set back
        monkeypatch.setattr(event_writer.time, "time", lambda now=now: now)
        with summary.writer_to(tmp_path):
            record(range(10 * number, 10 * number + 10))
    assert points(tmp_path) == [(i, i) for i in range(50)]


def test_what_was_put_in_the_place_of_the_file_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "events.out.tfevents.9999999998.other").write_text("not ours")
    with summary.writer_to(tmp_path, owner="me"):
        record([1])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[1].startswith("events.out.tfevents.9999999999.")
    assert names[1].endswith(".me")
    assert (tmp_path / names[0]).read_text() == "not ours"
