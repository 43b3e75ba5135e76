"""Tests of alf_lite.trainers.run_directory."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from alf_lite.errors import ConfigError
from alf_lite.trainers.run_directory import RunDirectory, changed_lines


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
