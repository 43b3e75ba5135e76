"""The benchmarks of unrolls in other processes run, and their arithmetic is right."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from tests.source_code import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # measuring sets them; this puts them back
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def measure(*arguments: str) -> dict:
    """What our side prints."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "async_alf_lite.py", *arguments],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow  # of the programs, one in test_benchmarks.py runs by default
def test_steps_and_updates_in_other_processes_are_counted():
    record = measure("--work=cartpole", "--variant=async_2", "--num_env_steps=6144")
    # 16 updates for 8 times 128 steps, some of which begin an episode.
    assert 16 / 1024 <= record["updates_per_step"] < 1.1 * 16 / 1024
    assert record["steps_per_second"] > 0


@pytest.mark.slow
def test_workers_that_only_collect_are_rated():
    record = measure("--work=collect", "--variant=async_2", "--num_env_steps=1024")
    assert record["updates_per_step"] == 0
    assert 0.8 * 512 < record["env_steps"] <= 1024


@pytest.mark.parametrize("name", ["CART_POLE", "PENDULUM"])
def test_an_environment_takes_its_time(load, name):
    environments = load("delayed_environments")
    gym = load("gymnasium")
    sleeping = gym.make(getattr(environments, name), sleep_seconds=0.005)
    computing = gym.make(getattr(environments, name), busy_seconds=0.005)
    for env in (sleeping, computing):
        env.reset(seed=0)
    action = sleeping.action_space.sample()
    begin = time.perf_counter()
    sleeping.step(action)
    assert time.perf_counter() - begin >= 0.005
    begin = time.process_time()
    computing.step(action)
    assert time.process_time() - begin >= 0.005


def test_rates_leave_the_warm_up_out(load, monkeypatch):
    measuring = load("measuring")
    marks = measuring.IterationMarks()
    now = iter([0.0, 10.0, 20.0, 21.0, 22.0, 23.0, 24.0, 25.0])
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: next(now))
    for steps in (0, 1, 100, 150, 200, 250, 300, 350):
        marks.add(steps)
    record = marks.rates()
    assert record["env_steps"] == 250
    assert record["steps_per_second"] == 50
    assert record["updates_per_step"] == 0


def test_the_time_of_other_processes_counts(load):
    seconds = load("measuring").seconds_of_processes
    begin = seconds(os.getpid())
    work = "import time\nwhile time.process_time() < 0.3: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE) as child:
        while seconds(child.pid) < 0.2:
            time.sleep(0.01)
        assert seconds(os.getpid()) - begin > 0.19  # hundredths, rounded
        child.communicate(b"\n")
    assert seconds(os.getpid()) - begin >= 0.2


def test_a_ratio_is_taken_inside_of_a_round(load):
    table = load("async_training")._table(
        {"sync": [1.0, 10.0, 2.0], "async_1": [2.0, 15.0, 6.0]},
        {"sync": 0.5, "async_1": 0.25},
    )
    assert table.splitlines()[2:] == [
        "| sync | 1 / 2 / 10 | 1.00 | 0.5000 |",
        "| async_1 | 2 / 6 / 15 | 2.00 | 0.2500 |",
    ]


def test_what_is_moved_is_timed(load):
    times = load("unroll_transfer").measure(num_workers=2, length=3, num_rounds=2)
    assert times.shape == (2, 4)
    assert (times >= 0).all()
    assert np.isfinite(times).all()


def test_the_trainer_reads_what_a_worker_of_the_benchmark_wrote(load):
    worker = load("unroll_transfer").Worker(batch_size=2, length=3)
    worker.write_slot(1)
    experience = worker.read(1).experience
    written = torch.stack([step.observation for step in worker._time_steps])
    assert torch.equal(experience.time_step.observation, written)


def test_rows_of_both_cores_have_medians_and_quartiles(load):
    rates = {"sync": [100.0, 200.0, 400.0], "async_2": [200.0, 600.0, 400.0]}
    rows = load("async_training").core_rows("sac_slow", rates, load=3.0)
    assert rows == [
        "| sac_slow | sync | 200 | 1.00 (1.00 to 1.00) | 3 | 3.0 |",
        "| sac_slow | async_2 | 400 | 2.00 (1.50 to 2.50) | 3 | 3.0 |",
    ]
