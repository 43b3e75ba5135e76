"""Tests of alf_lite.trainers.event_files."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from alf_lite.trainers import event_files


def points(directory: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def write(writer: SummaryWriter, steps: range) -> None:
    for step in steps:
        writer.add_scalar("by_iteration", float(step), step)
        writer.add_scalar("by_env_step", float(step), step * 1000)


def test_repeated_iterations_appear_once_on_every_axis(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        write(writer, range(10))
        writer.flush()
        recorded = event_files.sizes(tmp_path)
        write(writer, range(10, 15))  # lost when the run dies
    with SummaryWriter(str(tmp_path), filename_suffix=".later") as writer:
        write(writer, range(10, 12))  # a resumed run that died before its checkpoint
    event_files.rewind(tmp_path, recorded)
    assert event_files.sizes(tmp_path) == recorded
    with SummaryWriter(str(tmp_path), filename_suffix=".resumed") as writer:
        write(writer, range(10, 20))
    assert points(tmp_path) == {
        "by_iteration": [(step, float(step)) for step in range(20)],
        "by_env_step": [(step * 1000, float(step)) for step in range(20)],
    }


def test_half_a_record_at_the_end_is_dropped(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        write(writer, range(3))
    recorded = event_files.sizes(tmp_path)
    (name,) = recorded
    with (tmp_path / name).open("ab") as file:
        file.write(b"\x05\x00")
    event_files.rewind(tmp_path, recorded)
    assert event_files.sizes(tmp_path) == recorded


def test_other_files_and_missing_directories_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    event_files.rewind(tmp_path, {})
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert event_files.sizes(tmp_path / "none") == {}
    event_files.rewind(tmp_path / "none", {})
