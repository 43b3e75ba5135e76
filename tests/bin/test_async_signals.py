"""Signals to a run with unroll workers: one message, a checkpoint, no leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reliability.trainer_process import living

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc"
)

SETTINGS = [
    "TrainerConfig.num_env_steps = 100_000_000",
    "TrainerConfig.evaluate = False",
    "TrainerConfig.num_checkpoints = 0",
]


def parent_of(pid: int) -> int:
    text = Path("/proc", str(pid), "stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


def wait_until(condition, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def run(tmp_path):
    """A run that trains with two workers; killed with the test."""
    command = [sys.executable, "-m", "alf_lite.bin.train", "--conf=impala_cart_pole"]
    command += [f"--root_dir={tmp_path / 'run'}", "--seed=0"]
    command += [f"--gin_param={setting}" for setting in SETTINGS]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A test run started in the background ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    summaries = tmp_path / "run" / "train"

    def trains() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return any(file.stat().st_size > 10_000 for file in summaries.glob("*"))

    try:
        wait_until(trains, 120, "the run does not train")
        assert len(living(process.pid)) >= 3
        yield process
    finally:
        for pid in living(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("number", "to_all", "hangs", "code"),
    [
        pytest.param(signal.SIGINT, True, False, 130, marks=pytest.mark.slow),
        (signal.SIGTERM, False, False, 143),
        (signal.SIGHUP, True, True, 129),
        (signal.SIGKILL, False, False, -signal.SIGKILL),
    ],
)
def test_a_signal_ends_the_run_and_its_workers(
    run, tmp_path, number, to_all, hangs, code
):
    shared_memory = sorted(os.listdir("/dev/shm"))
    if hangs:
        for pid in living(run.pid):
            if parent_of(pid) not in (os.getpid(), run.pid):  # a worker
                os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)  # until the run waits
    if to_all:
        os.killpg(run.pid, number)
    else:
        run.send_signal(number)
    run.wait(timeout=60)
    assert run.returncode == code
    wait_until(lambda: not living(run.pid), 30, "a process is left")
    assert sorted(os.listdir("/dev/shm")) == shared_memory
    if number != signal.SIGKILL:
        assert list((tmp_path / "run" / "checkpoints").glob("ckpt-*"))
        output = run.stdout.read()
        assert "Traceback" not in output
        assert f"Stopped by {number.name}" in output


def test_a_second_ctrl_c_ends_the_run_at_once(run):
    os.killpg(run.pid, signal.SIGINT)
    time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    run.wait(timeout=10)
    assert run.returncode == 130
    wait_until(lambda: not living(run.pid), 30, "a process is left")
