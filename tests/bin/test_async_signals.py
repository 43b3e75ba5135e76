"""Signals to a run with unroll workers: one message, a checkpoint, no leftovers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.other_process import shared_memory_left
from tests.reliability.trainer_process import Launcher, Trainer, living

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc"
)

SETTINGS = [
    "TrainerConfig.num_env_steps = 100_000_000",
    "TrainerConfig.evaluate = False",
    "TrainerConfig.num_checkpoints = 0",
    "TrainerConfig.summary_interval = 1",
    "TrainerConfig.summaries_flush_secs = 0.1",
]


def parent_of(pid: int) -> int:
    text = Path("/proc", str(pid), "stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


@pytest.fixture
def run(launcher: Launcher, tmp_path: Path) -> Trainer:
    """A run that trains with two workers; killed with the test."""
    arguments = ["--conf=impala_cart_pole", "--seed=0"]
    trainer = launcher.start(tmp_path / "run", arguments, settings=SETTINGS)
    summaries = tmp_path / "run" / "train"
    trainer.wait_for(
        lambda: any(file.stat().st_size > 10_000 for file in summaries.glob("*")),
        "the run does not train",
    )
    assert len(living(trainer.pid)) >= 3
    return trainer


@pytest.mark.ci
@pytest.mark.parametrize(
    ("number", "to_all", "hangs", "code"),
    [
        pytest.param(signal.SIGINT, True, False, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, False, False, 143, marks=pytest.mark.slow),
        # tests/trainers/test_prompt_stop.py has others that hang
        pytest.param(signal.SIGHUP, True, True, 129, marks=pytest.mark.slow),
        (signal.SIGKILL, False, False, -signal.SIGKILL),
    ],
)
def test_a_signal_ends_the_run_and_its_workers(
    run, tmp_path, number, to_all, hangs, code
):
    shared_memory = set(os.listdir("/dev/shm"))
    if hangs:
        for pid in living(run.pid):
            if run.pid not in (pid, parent_of(pid)):  # a worker
                os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)  # until the run waits
    if to_all:
        os.killpg(run.pid, number)
    else:
        run.send(number)
    assert run.wait() == code
    assert not shared_memory_left(shared_memory)
    if number != signal.SIGKILL:
        assert list((tmp_path / "run" / "checkpoints").glob("ckpt-*"))
        assert "Traceback" not in run.output + run.error
        assert f"Stopped by {number.name}" in run.output


@pytest.mark.ci
def test_a_second_ctrl_c_ends_the_run_at_once(run):
    os.killpg(run.pid, signal.SIGINT)
    time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait() == 130


@pytest.mark.ci
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_workers_that_start_are_broken_off(launcher, tmp_path, number, code):
    # The server that workers are forked from imports for ever.
    slow = tmp_path / "sitecustomize.py"
    slow.write_text(
        "import pathlib, sys, time\n"
        "if any('forkserver' in argument for argument in sys.orig_argv):\n"
        f"    pathlib.Path({str(tmp_path / 'imports')!r}).touch()\n"
        "    time.sleep(1000)\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    run = launcher.start(
        tmp_path / "run",
        ["--conf=impala_cart_pole"],
        settings=SETTINGS,
        environ={"PYTHONPATH": path},
    )
    is_waiting = (tmp_path / "run/run.json").exists  # for the workers
    run.wait_for((tmp_path / "imports").exists, "nothing is imported")
    run.wait_for(is_waiting, "nothing is built")
    time.sleep(1.0)
    begin = time.monotonic()
    run.send(number)
    assert run.wait(10) == code
    assert time.monotonic() - begin < 10  # those that are left over, too
    assert "Traceback" not in run.output + run.error
