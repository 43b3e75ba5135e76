"""Environments and workers that die or hang at random moments of a real training run.

Whatever happens to them: the run ends soon with its exit code, or replaces them; no
process is left; and every step that is trained on is counted once.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments import create_environment
from tests.reliability.trainer_process import living
from tests.source_code import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]

ENV_NAME = "tests.reliability.stamped_environment:Stamped-v0"
CONF = """
create_environment.env_name = "tests.reliability.stamped_environment:Stamped-v0"
create_environment.env_kwargs = {{"state_dir": "{state_dir}"}}
create_environment.num_parallel_environments = 2
TrainerConfig:
  algorithm_ctor = @DqnAlgorithm
  num_env_steps = {num_env_steps}
  mini_batch_size = 8
  mini_batch_length = 2
  initial_collect_steps = 20
  num_checkpoints = 4
  checkpoint_replay_buffer = True
  random_seed = 0
DqnAlgorithm.optimizer = @Adam()
QNetwork.fc_layer_params = (8,)
"""
PROCESSES = """
create_environment.vectorization_mode = "async"
create_environment.env_timeout_seconds = {timeout}
TrainerConfig.unroll_length = 4
"""
WORKERS = """
TrainerConfig.async_unroll = True
TrainerConfig.num_unroll_workers = 2
TrainerConfig.unroll_length = 4
TrainerConfig.max_worker_restarts = {restarts}
TrainerConfig.worker_timeout_seconds = {timeout}
"""

TIMEOUT_SECONDS = 12.0  # of what hangs; building an environment must take less
START_SECONDS = 60.0  # of a worker that hangs before it is ready to step
PROMPT_SECONDS = 20.0  # generous: the machine may be busy
# What is done from outside, and what the environment does itself.
SIGNALS = {
    "SIGKILL": signal.SIGKILL,
    "SIGSTOP": signal.SIGSTOP,
    "SIGSEGV": signal.SIGSEGV,
    "SIGABRT": signal.SIGABRT,
}
FAULTS = ("raise", "exit", "system_exit", "segmentation_fault", "hang", "spin")
ALL_FAULTS = (*SIGNALS, *FAULTS)


class Run:
    """A training process, started again and again in one directory."""

    def __init__(
        self, directory: Path, text: str, num_env_steps: int, **values
    ) -> None:
        self.directory = directory
        self.state_dir = directory / "state"
        self.root_dir = directory / "run"
        self.state_dir.mkdir()
        self._conf = directory / "conf.gin"
        self._conf.write_text(
            (CONF + text).format(
                state_dir=self.state_dir,
                num_env_steps=num_env_steps,
                timeout=TIMEOUT_SECONDS,
                **values,
            )
        )
        self._random = random.Random(0)
        self._process: subprocess.Popen | None = None

    @contextlib.contextmanager
    def process(self) -> Iterator[subprocess.Popen]:
        """The training, killed with everything that belongs to it at the end."""
        command = [sys.executable, "-m", "alf_lite.bin.train", f"--conf={self._conf}"]
        with (self.directory / "log").open("a") as log:
            process = subprocess.Popen(
                [*command, f"--root_dir={self.root_dir}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )
        self._process = process
        try:
            yield process
        finally:
            for pid in living(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def num_steps(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self.state_dir / "steps").stat().st_size
        return 0

    def wait_for_steps(self, at_least: int) -> None:
        """Until that many more steps were taken."""
        goal = self.num_steps + at_least
        wait_until(lambda: self.num_steps >= goal or self.has_ended, 90, "no steps")
        assert not self.has_ended, self.log

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def cause(self, fault: str) -> float:
        """At a random moment. Returns after how many seconds it has been noticed."""
        self.wait_for_steps(self._random.randrange(20, 150))
        time.sleep(self._random.random() * 0.01)
        if fault in SIGNALS:
            pid = self._random.choice(self.pids_of_environments())
            os.kill(pid, SIGNALS[fault])
            if not (self.state_dir / "begun" / str(pid)).exists():
                return START_SECONDS
        else:
            (self.state_dir / "new").write_text(fault)
            (self.state_dir / "new").rename(self.state_dir / "fault")
        return TIMEOUT_SECONDS

    def pids_of_environments(self) -> list[int]:
        pids = {int(f.read_text() or 0) for f in (self.state_dir / "pids").iterdir()}
        return sorted(pids & set(living(self._process.pid)) - {self._process.pid})

    def check_that_each_step_counts_once(self) -> int:
        """Returns how many steps there are in the replay buffer."""
        loaded = Checkpointer(self.root_dir / "checkpoints").load(parts=())
        with create_environment(
            ENV_NAME, env_kwargs={"state_dir": str(self.state_dir)}
        ) as env:
            buffer = load_replay_buffer(str(loaded.path), env)
        rows = [
            buffer.get_windows(
                torch.tensor([row]), buffer.begin_positions[row : row + 1], int(size)
            ).time_step.observation[0]
            for row, size in enumerate(buffer.sizes)
            if size > 0
        ]
        stamps = torch.cat(rows).numpy()
        stamps = stamps[stamps[:, 2] > 0, :2]  # not those of resets
        assert len(np.unique(stamps, axis=0)) == len(stamps)
        # The newest step of an environment has been seen, but is stored with the next
        # unroll, or lost with the process that has it.
        num_seen = loaded.metadata["env_steps"]
        num_lives = len(list((self.state_dir / "pids").iterdir()))
        assert 0 <= num_seen - len(stamps) <= num_lives
        assert num_seen <= self.num_steps
        return len(stamps)


def named_shared_memory(pids: list[int]) -> set[str]:
    """What the processes map that would outlive them."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text()
            found |= set(re.findall(r"/dev/shm/\S+$", maps, re.MULTILINE))
    return found


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def wait_until_gone(session: int) -> None:
    """Until nothing is left of a run; those that end by themselves need a moment."""
    deadline = time.monotonic() + PROMPT_SECONDS
    while left := living(session):
        shown = []
        for pid in left:
            with contextlib.suppress(OSError):
                shown.append(
                    Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                )
        assert time.monotonic() < deadline, shown
        time.sleep(0.02)


def test_processes_of_environments_may_fail_at_any_moment(tmp_path):
    run = Run(tmp_path, PROCESSES, num_env_steps=10_000_000)
    for fault in ALL_FAULTS:
        with run.process() as process:
            run.wait_for_steps(1)
            assert not named_shared_memory(living(process.pid))
            run.cause(fault)
            begin = time.monotonic()
            code = process.wait(TIMEOUT_SECONDS + PROMPT_SECONDS)
            assert code == 4, (fault, run.log)
            is_hanging = fault in ("SIGSTOP", "hang", "spin")
            allowed = PROMPT_SECONDS + (TIMEOUT_SECONDS if is_hanging else 0)
            assert time.monotonic() - begin < allowed, fault
            wait_until_gone(process.pid)
        assert run.log.count("The same command continues") >= 1
    assert run.check_that_each_step_counts_once() > 100
    assert "Traceback" not in run.log.split("raised RuntimeError")[0]


def test_unroll_workers_may_fail_at_any_moment(tmp_path):
    run = Run(tmp_path, WORKERS, num_env_steps=10_000_000, restarts=100)
    faults = 2 * ALL_FAULTS
    with run.process() as process:
        for number, fault in enumerate(faults, start=1):
            allowed = run.cause(fault)
            wait_until(
                lambda number=number: (
                    run.log.count("is replaced") >= number or run.has_ended
                ),
                allowed + PROMPT_SECONDS,
                f"{fault}: nobody is replaced\n{run.log}",
            )
            assert not named_shared_memory(living(process.pid))
        run.wait_for_steps(50)
        assert run.log.count("is replaced") == len(faults)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROMPT_SECONDS) == 143, run.log
        wait_until_gone(process.pid)
    assert run.check_that_each_step_counts_once() > 20 * len(faults)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("raise", 4), ("SIGKILL", 6), ("hang", 6)],
)
def test_a_worker_that_must_not_be_replaced_ends_the_run(tmp_path, fault, expected):
    run = Run(tmp_path, WORKERS, num_env_steps=10_000_000, restarts=0)
    with run.process() as process:
        run.cause(fault)
        code = process.wait(TIMEOUT_SECONDS + PROMPT_SECONDS)
        assert code == expected, run.log
        wait_until_gone(process.pid)
    run.check_that_each_step_counts_once()
