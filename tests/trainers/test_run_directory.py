"""Tests of alf_lite.trainers.run_directory."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from alf_lite.errors import ConfigError
from alf_lite.trainers.run_directory import RunDirectory, changed_lines
from alf_lite.utils.checkpoint import Checkpointer


def test_second_run_is_refused_and_names_the_holder(tmp_path):
    with RunDirectory(tmp_path / "run"):
        with pytest.raises(
            ConfigError, match=f"another run is training in .*process {os.getpid()} on"
        ):
            RunDirectory(tmp_path / "run").acquire()
        # The refused one has not taken the holder's name away.
        with pytest.raises(ConfigError, match=f"process {os.getpid()} on"):
            RunDirectory(tmp_path / "run").acquire()
    with RunDirectory(tmp_path / "run"):
        pass


def test_lock_of_a_killed_process_does_not_stay(tmp_path):
    code = (
        "import sys, time; from alf_lite.trainers.run_directory import RunDirectory; "
        "run = RunDirectory(sys.argv[1]); run.acquire(); print('locked', flush=True); "
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} on"):
            RunDirectory(tmp_path).acquire()
        holder.kill()
    with RunDirectory(tmp_path):
        pass


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file", "File exists|Not a directory"),
        ("file/below", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("null\0byte", "null"),
    ],
)
def test_unusable_root_dir_names_path_and_reason(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=reason):
        RunDirectory(tmp_path / name).acquire()


def test_empty_root_dir_is_refused():
    with pytest.raises(ConfigError, match="no root_dir"):
        RunDirectory("")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_root_dir_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="Permission denied"):
            RunDirectory(tmp_path).acquire()
        with pytest.raises(ConfigError, match="Permission denied"):
            RunDirectory(tmp_path / "new").acquire()
    finally:
        tmp_path.chmod(0o700)


def test_run_file_tells_who_runs_here(tmp_path):
    run = RunDirectory(tmp_path)
    run.write_run_file(seed=3)
    record = json.loads(run.run_file.read_text())
    assert record["pid"] == os.getpid()
    assert record["seed"] == 3
    assert record["host"]
    assert record["command"] == sys.argv


def test_changed_configuration_is_logged_as_difference(tmp_path, caplog):
    run = RunDirectory(tmp_path)
    with caplog.at_level(logging.WARNING):
        run.write_config_texts({"user.gin": "a = 1\nb = 2\n"})
        run.write_config_texts({"user.gin": "# comment\n\na = 1\nb = 2\n"})
    assert not caplog.records
    run.write_config_texts({"user.gin": "a = 1\nb = 3\n", "operative.gin": "x\n"})
    assert "- b = 2\n  + b = 3" in caplog.text
    assert "a = 1" not in caplog.text
    assert run.read_user_config() == "a = 1\nb = 3\n"


def test_directory_without_a_run_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no run.*user\.gin"):
        RunDirectory(tmp_path).read_user_config()


def test_changed_lines_lists_only_what_differs():
    assert changed_lines("a=1\nb=2\nc=3\n", "a=1\nc=3\nd=4\n") == ["  - b=2", "  + d=4"]
    assert changed_lines("a=1\n", "# new\na=1  \n") == []


# What others have put there


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside.txt"
    path.write_text("not of this run")
    return path


def plant(kind: str, path, target) -> None:
    if kind == "symlink":
        path.symlink_to(target)
    elif kind == "hard link":
        os.link(target, path)
    elif kind == "pipe":
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe"])
def test_lock_that_is_no_file_of_its_own_is_refused(tmp_path, outside, kind):
    root = tmp_path / "run"
    root.mkdir()
    plant(kind, root / ".lock", outside)
    with pytest.raises(ConfigError, match=r"\.lock is a link.*Remove it"):
        RunDirectory(root).acquire()
    assert outside.read_text() == "not of this run"


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe"])
def test_what_is_written_never_reaches_what_a_link_leads_to(tmp_path, outside, kind):
    root = tmp_path / "run"
    root.mkdir()
    for name in ("run.json", "user.gin", "operative.gin"):
        for planted in (name, f".{name}.tmp", f".tmp-{os.getpid()}-{name}"):
            plant(kind, root / planted, outside)
    with RunDirectory(root) as run:
        run.write_run_file(seed=3)
        run.write_config_texts({"user.gin": "a = 1\n", "operative.gin": "b = 2\n"})
    assert outside.read_text() == "not of this run"
    assert json.loads((root / "run.json").read_text())["seed"] == 3
    assert run.read_user_config() == "a = 1\n"


def test_linked_checkpoints_are_refused(tmp_path):
    (tmp_path / "others").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "others")
    for _ in range(2):  # the lock has been given back
        with pytest.raises(ConfigError, match=r"checkpoints is a link"):
            RunDirectory(tmp_path / "run").acquire()


def test_a_full_disk_is_one_message_at_the_start_and_a_log_line_later(
    tmp_path, monkeypatch, caplog
):
    run = RunDirectory(tmp_path)

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(ConfigError, match=r"run\.json cannot be written: No space"):
        run.write_run_file(seed=3)
    with pytest.raises(ConfigError, match="No space left"):
        run.write_config_texts({"user.gin": "a = 1\n"})
    run.write_config_texts({"user.gin": "a = 1\n"}, required=False)
    assert "user.gin cannot be written: No space left" in caplog.text


# user.gin that a crash has cost


@pytest.mark.parametrize("content", [None, b"", b"\0" * 40])
def test_lost_user_config_is_restored_from_the_newest_checkpoint(
    tmp_path, caplog, content
):
    run = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        Checkpointer(run.checkpoints).save(step, {}, {"user.gin": f"step = {step}\n"})
    (run.checkpoints / "ckpt-3" / "user.gin").write_bytes(b"flipped!")
    if content is not None:
        (tmp_path / "user.gin").write_bytes(content)
    assert run.read_user_config() == "step = 2\n"
    assert (tmp_path / "user.gin").read_text() == "step = 2\n"
    assert "restored from" in caplog.text
    caplog.clear()
    assert run.read_user_config() == "step = 2\n"
    assert not caplog.records


def test_user_config_that_is_there_is_not_replaced(tmp_path):
    run = RunDirectory(tmp_path)
    Checkpointer(run.checkpoints).save(1, {}, {"user.gin": "a = 1\n"})
    (tmp_path / "user.gin").write_text("a = 2\n")
    assert run.read_user_config() == "a = 2\n"


def test_user_config_that_is_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "user.gin")
    with pytest.raises(ConfigError, match=r"user\.gin is not a file"):
        RunDirectory(tmp_path).read_user_config()
