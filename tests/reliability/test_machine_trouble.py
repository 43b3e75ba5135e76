"""Rights, descriptors, memory, reading errors, full disks: trouble passes, work stays.

None of it is damage of the checkpoint, so nothing may be renamed, deleted or begun
anew, and the run goes on as soon as the cause is gone.
"""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.errors import AlfLiteError
from tests.reliability.disturbance import environ, fill
from tests.reliability.trainer_process import newest_step, steps_of
from tests.trainers.run_comparison import (
    assert_same_run,
    differences,
    final_state,
    points,
)

NOBODY = 65534


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, straight):
    """Builds (the finished run, the same killed after 42 of 50 iterations)."""
    made: list[Path] = []

    def build(launcher, conf) -> tuple[Path, Path]:
        if not made:
            directory = tmp_path_factory.mktemp("runs")
            arguments = [f"--conf={conf['sac']}"]
            killing = environ(signals=[(43, "SIGKILL", 0)])
            killed = launcher.start(directory / "killed", arguments, environ=killing)
            assert killed.wait() == -9
            made.extend([straight(conf["sac"]), directory / "killed"])
        return made[0], made[1]

    return build


@pytest.fixture
def killed(runs, launcher, conf, tmp_path) -> Path:
    """A copy of the killed run."""
    root_dir = tmp_path / "run"
    shutil.copytree(runs(launcher, conf)[1], root_dir)
    return root_dir


def contents(root_dir: Path) -> dict[str, bytes]:
    checkpoints = root_dir / "checkpoints"
    return {
        str(path.relative_to(checkpoints)): path.read_bytes()
        for path in sorted(checkpoints.rglob("*"))
        if path.is_file()
    }


def check_goes_on(launcher, conf, root_dir: Path, straight: Path, **options) -> None:
    """Without the cause the run ends as if there had been none."""
    launcher.start(root_dir, [f"--conf={conf['sac']}"], **options).finish()
    assert_same_run(straight, root_dir)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Where other users may look, which pytest's own directories are not for."""
    closed = [
        path
        for place in (Path(__file__), Path(sys.executable))
        for path in place.parents
        if path.stat().st_mode & 0o005 != 0o005
    ]
    if closed:
        pytest.skip(f"others cannot run what lies in {closed[0]}")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.parametrize(
    "what",
    [
        pytest.param("file", marks=pytest.mark.slow),
        pytest.param("checkpoint", marks=pytest.mark.slow),
        pytest.param("checkpoints", marks=pytest.mark.slow),
    ],
)
def test_what_may_not_be_read_is_not_damaged(
    launcher, conf, runs, killed, open_directory, what
):
    killed = Path(shutil.move(killed, open_directory / "run"))
    for path in [killed, *killed.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    conf = {"sac": Path(shutil.copy(conf["sac"], open_directory))}
    newest = killed / "checkpoints" / "ckpt-40"
    forbidden = {
        "file": newest / "training.pt",
        "checkpoint": newest,
        "checkpoints": killed / "checkpoints",
    }[what]
    before = contents(killed)
    forbidden.chmod(0)
    refused = launcher.start(killed, [f"--conf={conf['sac']}"], user=NOBODY)
    refused.finish(expected=3)
    assert "ermission denied" in refused.error
    forbidden.chmod(0o700 if forbidden.is_dir() else 0o600)
    assert contents(killed) == before
    straight, _ = runs(launcher, conf)
    check_goes_on(launcher, conf, killed, straight, user=NOBODY)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("limit", "values"),
    [
        ("RLIMIT_NOFILE", (3, 7, 12)),
        # Above what the interpreter has before it reads the first file.
        pytest.param(
            "RLIMIT_DATA",
            tuple(x * 2**20 for x in (-20, 10, 30)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_too_few_descriptors_or_too_little_memory_rename_nothing(
    launcher, conf, runs, killed, limit, values
):
    straight, _ = runs(launcher, conf)
    before = contents(killed)
    base = launcher.data_bytes if limit == "RLIMIT_DATA" else 0
    codes = []
    for value in values:
        copy = killed.with_name(f"run{value}")
        shutil.copytree(killed, copy)
        limited = launcher.start(
            copy, [f"--conf={conf['sac']}"], limits={limit: base + value}
        )
        codes.append(limited.wait())
        if codes[-1] == 0:
            assert_same_run(straight, copy)
        else:
            assert contents(copy) == before, (value, limited.error)
    assert any(codes), "no limit was too low"
    check_goes_on(launcher, conf, killed, straight)


ERRORS = [
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError(errno.ESTALE, "Stale file handle"),
    MemoryError(),
]


@pytest.mark.parametrize(
    "place",
    [
        (os, "open"),
        (io, "open"),
        (os, "fdopen"),
        (hashlib, "file_digest"),
        (torch, "load"),
    ],
    ids=lambda place: place[1],
)
def test_an_error_while_reading_renames_nothing(killed, monkeypatch, place):
    module, name = place
    working = getattr(module, name)
    before = contents(killed)
    checkpointer = Checkpointer(killed / "checkpoints")
    failures = 0
    for error, fails_at in itertools.product(ERRORS, (1, 2, 5)):
        calls = itertools.count(1)

        def fail(*args, error=error, fails_at=fails_at, calls=calls, **kwargs):
            if next(calls) >= fails_at:
                raise error
            return working(*args, **kwargs)

        monkeypatch.setattr(module, name, fail)
        try:
            checkpointer.load(resumable=True)
        except (AlfLiteError, MemoryError):
            failures += 1
        monkeypatch.setattr(module, name, working)
        assert contents(killed) == before, (error, fails_at)
        assert checkpointer.load(resumable=True).step == 40
    assert failures or name == "open"  # not all of these are how files are opened


# A disk that is full


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["replay_saver", pytest.param("ppo", marks=pytest.mark.slow)]
)
def test_a_disk_that_is_full_for_a_while_costs_nothing_but_what_it_had_no_room_for(
    launcher, straight, conf, disk, name
):
    arguments = [f"--conf={conf[name]}"]
    # Two checkpoints fall into that time, with three the run would give up.
    filling = environ(fill=(str(disk / "filling"), 22, 32))
    run = launcher.start(disk / "run", arguments, environ=filling)
    run.finish()
    assert run.error.count("No space left") >= 2
    assert "Trying again at the next checkpoint" in run.error
    expected, got = points(straight(conf[name])), points(disk / "run")
    for tag, curve in got.items():
        assert set(curve) <= set(expected[tag])
    curve = got["Metrics/EnvironmentSteps"]
    assert curve[-1] == expected["Metrics/EnvironmentSteps"][-1]
    assert len(curve) >= len(expected["Metrics/EnvironmentSteps"]) - 5
    states = [final_state(root) for root in (straight(conf[name]), disk / "run")]
    assert differences(*states, "") == []


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_run_with_what_it_had_saved(
    launcher, conf, disk
):
    filling = environ(fill=(str(disk / "filling"), 22, 1000))
    run = launcher.start(disk / "run", [f"--conf={conf['ppo']}"], environ=filling)
    run.finish(expected=3)
    assert "No space left" in run.error
    assert newest_step(disk / "run") == 20
    (disk / "filling").unlink()
    launcher.start(disk / "run", [f"--conf={conf['ppo']}"]).finish()
    assert newest_step(disk / "run") == 50


@pytest.mark.ci
def test_a_run_does_not_begin_on_a_full_disk_and_says_why(launcher, conf, disk):
    fill(disk / "filling")
    refused = launcher.start(disk / "run", [f"--conf={conf['ppo']}"])
    code = refused.wait()
    assert code in (2, 3), (code, refused.error)
    assert "No space left" in refused.error
    assert "Traceback" not in refused.error
    (disk / "filling").unlink()
    launcher.start(disk / "run", [f"--conf={conf['ppo']}"]).finish()
    assert steps_of(disk / "run")[-1] == 50
