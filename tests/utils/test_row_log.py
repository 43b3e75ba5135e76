"""Rows are in the file at once, and the table is like it."""

from __future__ import annotations

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from alf_lite.utils import row_log, summary
from alf_lite.utils.row_log import RowLog, read_rows, rewind_rows


@pytest.fixture
def log(tmp_path):
    log = RowLog(tmp_path / "x.jsonl", ("iteration",))
    yield log
    log.close()


def table(directory) -> list[dict[str, str]]:
    with (directory / "x.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def rows(directory) -> list[dict[str, float]]:
    return list(read_rows((directory / "x.jsonl").read_bytes().splitlines(True)))


def test_new_columns_and_late_numbers_find_their_place(log, tmp_path, monkeypatch):
    monkeypatch.setattr(row_log, "_REWRITE_SECONDS", 0.0)
    log.add({"iteration": 1, "b": 1.5})
    log.add({"iteration": 2, "b": float("nan")})
    log.add({"iteration": 2, "a,a": 10})
    log.add({"iteration": 3, "b": 1e-20, "a,a": float("inf")})
    assert rows(tmp_path)[1:3] == [
        {"iteration": 2, "b": None},
        {"iteration": 2, "a,a": 10},
    ]
    assert table(tmp_path) == [
        {"iteration": "1", "a,a": "", "b": "1.5"},
        {"iteration": "2", "a,a": "10", "b": ""},
        {"iteration": "3", "a,a": "", "b": "1e-20"},
    ]
    assert not list(tmp_path.glob(".tmp*"))


LATE = [
    {"iteration": 4, "x": 40},
    {"iteration": 6, "x": 60},
    {"iteration": 8, "x": 80},
    {"iteration": 6, "y": 0.6},  # of an evaluation in another process
    {"iteration": 6, "z": 6.0},
    {"iteration": 8, "y": 0.8},
    {"iteration": 5, "y": 0.5},  # nothing else was recorded there
    {"iteration": 10, "x": 100},
    {"iteration": 8, "z": 8.0},
]


@pytest.mark.parametrize("seconds", [0.0, 10.0])
def test_a_row_per_iteration_whenever_its_numbers_come(
    log, tmp_path, monkeypatch, seconds
):
    monkeypatch.setattr(row_log, "_REWRITE_SECONDS", seconds)
    for row in LATE:
        log.add(row)
    log.close()
    assert rows(tmp_path) == LATE
    expected = [
        {"iteration": "4", "x": "40", "y": "", "z": ""},
        {"iteration": "5", "x": "", "y": "0.5", "z": ""},
        {"iteration": "6", "x": "60", "y": "0.6", "z": "6.0"},
        {"iteration": "8", "x": "80", "y": "0.8", "z": "8.0"},
        {"iteration": "10", "x": "100", "y": "", "z": ""},
    ]
    assert table(tmp_path) == expected
    log = RowLog(tmp_path / "x.jsonl", ("iteration",))
    log.add({"iteration": 10, "z": 10.0})
    log.close()
    expected[-1]["z"] = "10.0"
    assert table(tmp_path) == expected


def test_late_rows_do_not_have_the_table_written_each_time(log, tmp_path, monkeypatch):
    clock = [0.0]
    seconds = []  # at which it was written
    original = row_log._Table.rewrite

    def rewrite(table, source):
        seconds.append(clock[0])
        clock[0] += 2.0  # it takes so long
        original(table, source)

    monkeypatch.setattr(row_log._Table, "rewrite", rewrite)
    monkeypatch.setattr(row_log.time, "monotonic", lambda: clock[0])
    for i in range(200):
        clock[0] += 1.0
        log.add({"iteration": i, "x": i, "y": None})
        log.add({"iteration": i - 5, "y": i})
    assert len(seconds) <= 1 + 200 / 40
    log.close()
    assert [row["y"] for row in table(tmp_path)][:-5] == [str(i) for i in range(200)]


def test_rows_of_somebody_else_do_no_harm(tmp_path):
    lines = '{"x": 1}\n{"iteration": 2}\n{"iteration": "two"}\n{"iteration": 1}\n'
    (tmp_path / "x.jsonl").write_text(lines)
    RowLog(tmp_path / "x.jsonl", ("iteration",)).close()
    assert [row["iteration"] for row in table(tmp_path)] == ["", "1", "2", "two"]


def test_many_new_columns_are_written_together(log, tmp_path, monkeypatch):
    calls = []
    original = row_log._Table.rewrite

    def count(table, source):
        calls.append(source)
        original(table, source)

    monkeypatch.setattr(row_log._Table, "rewrite", count)
    for i in range(50):
        log.add({"iteration": i, f"tag{i}": i})
    assert len(calls) == 1
    log.sync()
    assert len(calls) == 2
    assert len(table(tmp_path)) == len(table(tmp_path)[0]) - 1 == 50


def test_rows_of_a_killed_process_are_there(tmp_path):
    code = f"""
        import os, signal
        from pathlib import Path
        from alf_lite.utils.row_log import RowLog
        log = RowLog(Path({str(tmp_path / "x.jsonl")!r}), ("iteration",))
        for i in range(100):
            log.add({{"iteration": i, "x": i}})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    child = subprocess.run(command, timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    assert [row["x"] for row in rows(tmp_path)] == list(range(100))


def test_what_came_after_a_checkpoint_is_rewound_with_half_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    log = RowLog(path, ("iteration",))
    for i in range(5):
        log.add({"iteration": i, "x": i})
        if i == 2:
            size = path.stat().st_size
    log.close()
    with path.open("ab") as file:
        file.write(b'{"iteration": 5, "x"')
    assert [row["x"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]
    rewind_rows(path, size)
    log = RowLog(path, ("iteration",))
    assert [row["x"] for row in table(tmp_path)] == ["0", "1", "2"]
    log.add({"iteration": 3, "x": 30})
    log.close()
    assert [row["x"] for row in rows(tmp_path)] == [0, 1, 2, 30]
    assert [row["x"] for row in table(tmp_path)] == ["0", "1", "2", "30"]
    rewind_rows(path, size - 3)  # of a file that somebody has changed
    assert [row["x"] for row in rows(tmp_path)] == [0, 1]
    rewind_rows(tmp_path / "none", 0)


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_what_a_link_leads_to_stays_as_it_is(tmp_path, link):
    outside = tmp_path / "outside"
    outside.write_text('{"iteration": 1}\n')
    getattr(tmp_path / "x.jsonl", link)(outside)
    rewind_rows(tmp_path / "x.jsonl", 0)
    log = RowLog(tmp_path / "x.jsonl", ("iteration",))
    log.add({"iteration": 2})
    log.close()
    assert outside.read_text() == '{"iteration": 1}\n'
    assert rows(tmp_path) == [{"iteration": 2}]


def test_rows_go_on_after_a_full_disk(log, tmp_path, monkeypatch, caplog):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    log.add({"iteration": 0, "x": 0})
    log.sync()
    monkeypatch.setattr(os, "pwrite", fail)
    for i in range(1, 5):
        log.add({"iteration": i, "x": i})
    assert len(rows(tmp_path)) == 1
    monkeypatch.undo()
    log.add({"iteration": 5, "x": 5})
    log.close()
    assert [row["x"] for row in rows(tmp_path)] == list(range(6))
    assert [row["x"] for row in table(tmp_path)] == list("012345")
    assert "nothing was lost" in caplog.text


def test_nothing_is_written_into_the_directory_of_another_run(log, tmp_path):
    log.add({"iteration": 1, "x": 1})
    (tmp_path / "x.jsonl").unlink()
    (tmp_path / "x.jsonl").write_text('{"iteration": 7}\n')
    (tmp_path / "x.csv").unlink(missing_ok=True)
    log.add({"iteration": 2, "new": 1})
    log.close()
    assert rows(tmp_path) == [{"iteration": 7}]
    assert not (tmp_path / "x.csv").exists()


def test_a_row_has_what_was_recorded_where_the_run_is(tmp_path):
    seen = []
    with summary.writer_to(tmp_path / "train", log_directory=tmp_path):
        summary.listen(seen.append)
        for iteration in (1, 2, 3):
            summary.set_global_counter(iteration)
            with summary.record_if(iteration != 2):
                summary.scalar("loss", iteration / 2)
                summary.scalar_at("Metrics_vs_EnvironmentSteps/x", 1.0, 5)
                summary.set_position(iteration * 10, iteration * 20, iteration * 0.5)
            summary.scalar("eval/x", 7.0)  # waits until the next iteration begins
        summary.rows("evaluation_episodes", [{"episode": 0, "return": 1.0}])
    axes = [
        {"iteration": i, "env_steps": i * 10, "updates": i * 20, "seconds": i * 0.5}
        for i in (1, 2, 3)
    ]
    expected = [
        axes[0] | {"loss": 0.5},
        axes[0] | {"eval/x": 7.0},
        axes[1] | {"eval/x": 7.0},
        axes[2] | {"loss": 1.5},
        axes[2] | {"eval/x": 7.0},
    ]
    assert (
        list(read_rows((tmp_path / "metrics.jsonl").read_bytes().splitlines(True)))
        == seen
        == expected
    )
    (line,) = (tmp_path / "evaluation_episodes.jsonl").read_text().splitlines()
    assert json.loads(line) == axes[2] | {"episode": 0, "return": 1.0}
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 4
