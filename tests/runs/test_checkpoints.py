"""The event files of a run at its checkpoints, and the id that they end with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.utils import event_writer, summary

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"


def points(directory: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def write(steps: range) -> None:
    for step in steps:
        summary.set_global_counter(step)
        summary.scalar("by_iteration", float(step))
        summary.scalar_at("by_env_step", float(step), step * 1000)
    summary.flush()


def write_file(directory: Path, run_id: str = RUN) -> Path:
    before = set(directory.iterdir()) if directory.exists() else set()
    with summary.writer_to(directory, owner=run_id):
        write(range(3))
    (path,) = set(directory.iterdir()) - before
    return path


@pytest.mark.parametrize("clock", [0, 4e9])
def test_repeated_iterations_appear_once_on_every_axis(tmp_path, monkeypatch, clock):
    with summary.writer_to(tmp_path, owner=RUN):
        write(range(10))
        recorded = event_writer.event_file_sizes(tmp_path, RUN)
        write(range(10, 15))  # lost when the run dies
    # The clock says nothing about what was first.
    monkeypatch.setattr("alf_lite.utils.event_writer.time.time", lambda: clock)
    with summary.writer_to(tmp_path, owner=RUN):
        write(range(10, 12))  # a resumed run that died before its checkpoint
    event_writer.rewind_event_files(tmp_path, RUN, recorded)
    assert event_writer.event_file_sizes(tmp_path, RUN) == recorded
    with summary.writer_to(tmp_path, owner=RUN):
        write(range(10, 20))
    assert points(tmp_path) == {
        "by_iteration": [(step, float(step)) for step in range(20)],
        "by_env_step": [(step * 1000, float(step)) for step in range(20)],
    }


def test_half_a_record_at_the_end_is_dropped(tmp_path):
    path = write_file(tmp_path)
    recorded = event_writer.event_file_sizes(tmp_path, RUN)
    with path.open("ab") as file:
        file.write(b"\x05\x00")
    event_writer.rewind_event_files(tmp_path, RUN, recorded)
    assert event_writer.event_file_sizes(tmp_path, RUN) == recorded


def test_other_files_and_missing_directories_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    event_writer.rewind_event_files(tmp_path, RUN, {})
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert event_writer.event_file_sizes(tmp_path / "none", RUN) == {}
    event_writer.rewind_event_files(tmp_path / "none", RUN, {})


def test_files_of_other_runs_and_other_programs_stay(tmp_path):
    copied = write_file(tmp_path, OTHER)
    foreign = tmp_path / "events.out.tfevents.1700000000.host.1.0"
    foreign.write_bytes(b"of another program")
    own = write_file(tmp_path)
    assert list(event_writer.event_file_sizes(tmp_path, RUN)) == [own.name]
    sizes = {copied.name: 0, foreign.name: 0}
    event_writer.rewind_event_files(tmp_path, RUN, sizes)
    assert {path.name for path in tmp_path.iterdir()} == {copied.name, foreign.name}
    assert foreign.read_bytes() == b"of another program"
    assert copied.stat().st_size > 0


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe"])
@pytest.mark.parametrize("recorded", [False, True])
def test_what_a_link_leads_to_stays_as_it_is(tmp_path, kind, recorded):
    outside = tmp_path / "outside"
    outside.write_bytes(b"not of this run")
    path = tmp_path / "train" / f"events.out.tfevents.1700000000.host.1.{RUN}"
    path.parent.mkdir()
    if kind == "symlink":
        path.symlink_to(outside)
    elif kind == "hard link":
        os.link(outside, path)
    else:
        os.mkfifo(path)
    event_writer.rewind_event_files(
        path.parent, RUN, {path.name: 0} if recorded else {}
    )
    assert outside.read_bytes() == b"not of this run"
    assert event_writer.event_file_sizes(path.parent, RUN) == {}


def test_nothing_is_rewound_in_a_directory_that_is_a_link(tmp_path):
    path = write_file(tmp_path / "others")
    (tmp_path / "train").symlink_to(tmp_path / "others")
    event_writer.rewind_event_files(tmp_path / "train", RUN, {})
    assert path.exists()
