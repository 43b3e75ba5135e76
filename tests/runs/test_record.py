"""Tests of alf_lite.runs.record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import alf_lite
from alf_lite.runs import record
from alf_lite.runs.directory import RunDirectory
from alf_lite.runs.record import RunRecord
from tests.trainers.test_trainer import At, fail


def read(root: Path) -> dict:
    return json.loads((root / "run.json").read_text(encoding="utf-8"))


def test_record_tells_with_what_and_how_a_run_was_trained(train, tmp_path):
    seen = []
    hook = At(4, lambda t: seen.append(read(tmp_path / "run")))
    result = train(hooks=[hook])
    (begin,), end = seen, read(tmp_path / "run")
    assert "ended" not in begin
    assert all(end[key] == begin[key] for key in begin if key != "packages")
    assert end["pid"] == os.getpid()
    assert end["seed"] == 3
    assert end["command"][0] == sys.executable
    assert end["alf_lite"]["version"] == alf_lite.__version__
    assert end["packages"]["torch"] == torch.__version__
    assert end["packages"]["gymnasium"]
    assert end["machine"]["device"] == "cpu"
    assert end["machine"]["cpus"] == os.cpu_count()
    assert end["started"] <= end["ended"]
    assert (end["iterations"], end["stop_reason"]) == (8, "finished")
    assert (end["exit_code"], end["error"]) == (0, None)
    assert end["env_steps"] == result.env_steps
    assert end["checkpoint"] == str(result.checkpoint)
    assert list(end)[-1] == "earlier"
    assert end["earlier"] == []


def test_record_tells_what_ended_a_run_and_keeps_the_earlier_ends(train, tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(hooks=[At(4, fail)])
    record = read(tmp_path / "run")
    assert (record["stop_reason"], record["exit_code"]) == ("ZeroDivisionError", 1)
    assert "Kept: " in record["note"]
    assert train().iterations == 8
    record = read(tmp_path / "run")
    (earlier,) = record["earlier"]
    assert (earlier["stop_reason"], earlier["iterations"]) == ("ZeroDivisionError", 4)
    assert record["resumed_iterations"] == 4
    assert "earlier" not in earlier


def test_a_wrong_entry_of_the_past_is_left_out_alone(tmp_path, caplog):
    (tmp_path / "run.json").write_text('{"earlier": 3, "conf": "ppo", "run_id": 5}')
    assert RunDirectory(tmp_path).earlier_record == {"conf": "ppo"}
    assert "earlier is 3, expected list" in caplog.text
    assert "run_id is 5" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 9999, None])
def test_damaged_record_of_the_past_is_left_out_with_a_word(text, tmp_path, caplog):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    assert RunDirectory(tmp_path).earlier_record == {}
    assert (str(tmp_path / "run.json") in caplog.text) == (text is not None)
    assert record.earlier_processes({}) == []


def begun(root: Path) -> dict:
    """What there is at the begin."""
    RunRecord(RunDirectory(root), "cpu").begin()
    return read(root)


def test_no_environment_variable_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    begun(tmp_path)
    assert "hunter2" not in (tmp_path / "run.json").read_text()


def test_not_a_number_is_null():
    assert json.loads(record.to_text({"a": [float("nan"), 1.5]})) == {"a": [None, 1.5]}


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_repository_of_the_command_is_recorded_and_whether_it_was_changed(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "run"
    assert begun(root)["repository"] is None
    git(tmp_path, "init")
    (tmp_path / "mine.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    repository = begun(root)["repository"]
    assert repository == {
        "path": str(tmp_path),
        "commit": git(tmp_path, "rev-parse", "HEAD"),
        "changed": False,
    }
    (tmp_path / "mine.py").write_text("x = 2\n")
    assert begun(root)["repository"]["changed"] is True


def test_commit_of_the_library_is_recorded_from_its_checkout(tmp_path, monkeypatch):
    package = Path(alf_lite.__file__).parent
    if not (package.parent / ".git").exists():
        pytest.skip("not a checkout")
    monkeypatch.chdir(package.parent)
    record = begun(tmp_path)
    assert record["alf_lite"]["commit"] == git(package, "rev-parse", "HEAD")
    assert record["repository"] is None


def test_library_inside_of_another_repository_is_not_taken_for_it(tmp_path):
    git(tmp_path, "init")
    package = tmp_path / "site-packages" / "alf_lite"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert record._library(package)["commit"] is None
