"""Tests of alf_lite.runs.directory."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.policies.trained_policy import load_policy
from alf_lite.runs.directory import RunDirectory, changed_lines


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


# Without what else a run imports, which takes seconds.
TAKE_LOCK = (
    "import ctypes, os, sys, time; from pathlib import Path; "
    "from alf_lite.runs.lock import RunLock; lock = RunLock(Path(sys.argv[1]))"
)


def test_lock_of_a_killed_process_does_not_stay(tmp_path):
    code = f"{TAKE_LOCK}\nlock.acquire(); print('locked', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} on"):
            RunDirectory(tmp_path).acquire()
        holder.kill()
    with RunDirectory(tmp_path):
        pass


def hold_and_be_killed(tmp_path, fork: str) -> int:
    """A process that locks, forks a child that sleeps, and is killed; its number."""
    code = (
        f"{TAKE_LOCK}\n"
        "lock.acquire()\n"
        # The child says so itself: it has let the lock go then, if it does.
        f"if {fork} == 0: print(os.getpid(), flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        child = int(holder.stdout.readline())
        with pytest.raises(ConfigError, match=f"process {holder.pid} on"):
            RunDirectory(tmp_path).acquire()
        holder.kill()
        holder.wait()
    return child


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.CDLL(None).fork()"])
def test_forked_child_of_a_killed_run_does_not_keep_the_directory(
    tmp_path, fork, caplog
):
    child = hold_and_be_killed(tmp_path, fork)
    try:
        with RunDirectory(tmp_path) as run:
            run.lock.check()
            with pytest.raises(ConfigError, match=f"process {os.getpid()} on"):
                RunDirectory(tmp_path).acquire()
        assert ("is dead" in caplog.text) == (fork != "os.fork()")
        # The lock that was taken over is one as any other.
        with RunDirectory(tmp_path), pytest.raises(ConfigError, match="another run"):
            RunDirectory(tmp_path).acquire()
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock"]
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.ci
def test_two_cannot_take_the_same_lock_over(tmp_path):
    child = hold_and_be_killed(tmp_path, "ctypes.CDLL(None).fork()")
    code = (
        f"{TAKE_LOCK}\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try: lock.acquire()\n"
        "except Exception as error: print(error)\n"
        "else: print('mine')\n"
        "sys.stdout.flush(); sys.stdin.readline()"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    rivals = [subprocess.Popen(arguments, **pipes) for _ in range(2)]
    try:
        assert [rival.stdout.readline() for rival in rivals] == ["ready\n"] * 2
        for rival in rivals:
            rival.stdin.write("\n")
            rival.stdin.flush()
        answers = [rival.stdout.readline() for rival in rivals]
        assert answers.count("mine\n") == 1, answers
        assert sum("another run is training" in answer for answer in answers) == 1
    finally:
        for rival in rivals:
            rival.communicate("\n")
        os.kill(child, signal.SIGKILL)


def test_lock_without_a_word_about_its_holder_is_respected(tmp_path):
    with RunDirectory(tmp_path):
        (tmp_path / ".lock").write_text("process 4194304 on elsewhere\n{}\n")
        with pytest.raises(ConfigError, match="process 4194304 on elsewhere"):
            RunDirectory(tmp_path).acquire()


def test_what_a_killed_run_had_begun_to_write_is_deleted(tmp_path):
    names = [".tmp-123-run.json", ".tmp-9-metrics.csv", ".tmp-77-operative.gin"]
    others = [".tmp-123-plot.png", ".tmp-12-my.csv", "run.json"]
    for name in names + others:
        (tmp_path / name).touch()
    with RunDirectory(tmp_path):
        assert {file.name for file in tmp_path.iterdir()} == {*others, ".lock"}


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made anew"])
def test_directory_that_is_no_longer_the_runs_is_noticed(tmp_path, again):
    root = tmp_path / "run"
    with RunDirectory(root) as run, contextlib.ExitStack() as stack:
        run.lock.check()
        shutil.rmtree(root)
        if again:
            stack.enter_context(RunDirectory(root))
        with pytest.raises(CheckpointError, match="no longer the directory of this"):
            run.lock.check()
        assert run.lock.is_lost()


def test_path_is_absolute_from_the_first_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RunDirectory("runs/../run")
    monkeypatch.chdir("/")
    assert run.path == tmp_path / "run"


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


def test_the_runs_nearby_are_named(tmp_path):
    for name in "bcda":
        RunDirectory(tmp_path / name).acquire()
        (tmp_path / name / "user.gin").touch()
    for load in (lambda run: RunDirectory(run).read_user_config(), load_policy):
        with pytest.raises(ConfigError, match=r"one of the runs in it: a, b, c, …$"):
            load(tmp_path)
        with pytest.raises(ConfigError, match=rf"Give the run, {tmp_path}/a$"):
            load(tmp_path / "a" / "checkpoints")
        with pytest.raises(ConfigError, match=r"holds no run: there is no user\.gin$"):
            load(tmp_path / "none")
    with pytest.raises(CheckpointError, match="there is none"):
        load_policy(tmp_path / "a", "best")


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
        run.write_run_file('{"seed": 3}')
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
        run.write_run_file('{"seed": 3}')
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
    with pytest.raises(ConfigError, match=r"user\.gin: .* found a pipe"):
        RunDirectory(tmp_path).read_user_config()
