"""Where the messages of a run go never matters to the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.reliability.trainer_process import SECONDS, newest_step

# It says something in each of two intervals.
SHORT = ["TrainerConfig.num_iterations = 10", "TrainerConfig.num_checkpoints = 2"]


def read_lines(path: Path, count: int | None) -> threading.Thread:
    """Reads that many lines of a FIFO, as ``head`` does; None for all."""

    def read() -> None:
        with path.open() as file:
            for number, _ in enumerate(file, start=1):
                if number == count:
                    return

    thread = threading.Thread(target=read)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "where",
    [pytest.param(["output"], marks=pytest.mark.slow), ["output", "error"]],
    ids=len,
)
def test_a_log_on_a_full_disk(launcher, conf, tmp_path, where):
    full = dict.fromkeys(where, Path("/dev/full"))
    arguments = [f"--conf={conf['ppo']}"]
    run = launcher.start(tmp_path / "run", arguments, settings=SHORT, **full)
    assert run.wait() == 0, run.error
    assert "Traceback" not in run.output + run.error
    assert newest_step(tmp_path / "run") == 10


@pytest.mark.ci
@pytest.mark.parametrize(
    ("output_lines", "error_lines"),
    [
        (1, None),
        pytest.param(None, 3, marks=pytest.mark.slow),
        pytest.param(0, 0, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_reader_that_goes_away(launcher, conf, tmp_path, output_lines, error_lines):
    """``| head -1``, ``2>&1 | head -3``, and a ``tee`` that died."""
    pipes = {name: tmp_path / name for name in ("output", "error")}
    for path in pipes.values():
        os.mkfifo(path)
    arguments = [f"--conf={conf['ppo']}"]
    run = launcher.start(tmp_path / "run", arguments, settings=SHORT, **pipes)
    readers = [
        read_lines(pipes["output"], output_lines),
        read_lines(pipes["error"], error_lines),
    ]
    assert run.wait() == 0
    for reader in readers:
        reader.join(SECONDS)
    assert newest_step(tmp_path / "run") == 10


@pytest.mark.ci
def test_no_output_at_all(conf, tmp_path):
    """``>&- 2>&-``, as some that start programs in the background do."""
    command = (
        f"exec {sys.executable} -m alf_lite.bin.train --conf={conf['ppo']} "
        f"--root_dir={tmp_path / 'run'} --gin_param=TrainerConfig.num_iterations=4 "
        "<&- >&- 2>&-"
    )
    code = subprocess.run(
        ["sh", "-c", command], timeout=SECONDS, check=False
    ).returncode
    assert code == 0
    assert newest_step(tmp_path / "run") == 4
