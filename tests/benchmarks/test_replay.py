"""The benchmark of replay buffers runs, and its arithmetic is right."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

from tests.source_code import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def replay(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("replay")


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "replay.py", *arguments],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_workload_is_measured():
    rates = json.loads(run("--measure=alf_lite", "--shrink=1000", "--seconds=0.01"))
    assert set(rates) == {
        "add_1",
        "add_1_tensors",
        "add_8",
        "add_8_tensors",
        "add_64",
        "add_64_tensors",
        "add_unroll_8",
        "sample_256",
        "windows_256x1",
        "windows_256x2",
        "windows_256x8",
        "windows_32x8",
        "windows_32x64",
        "prioritized_256",
        "n_step_256",
        "frames_256",
    }
    assert all(rate > 0 for rate in rates.values())


@pytest.mark.slow
def test_a_library_that_is_not_installed_is_left_out():
    output = run(
        "--libraries",
        "alf_lite",
        "cpprb",
        "--kinds=sample",
        "--rounds=1",
        "--shrink=1000",
        "--seconds=0.01",
    )
    assert output.splitlines()[-1].startswith("| sample_256 | ")


def test_the_lead_is_the_median_of_the_rounds(replay):
    rates = {
        "sample_256": {
            "alf_lite": [30.0, 20.0, 90.0],
            "sb3": [10.0] * 3,
            "cpprb": [15.0] * 3,
        },
        "add_unroll_8": {"alf_lite": [5000.0]},
    }
    assert replay.table(rates, ["alf_lite", "sb3", "cpprb"]).splitlines()[2:] == [
        "| sample_256 | 30 | 10 | 15 | 2.00 |",
        "| add_unroll_8 | 5,000 | - | - | - |",
    ]
