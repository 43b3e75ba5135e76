"""The benchmark of replay buffers runs, and its arithmetic is right."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys

import pytest

from tests.source_code import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def replay(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the module sets them; this puts them back
    monkeypatch.setenv("XLA_FLAGS", "")
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


@pytest.mark.ci
def test_every_workload_is_measured(replay, monkeypatch, capsys):
    options = ["--measure=alf_lite", "--shrink=1000", "--seconds=0.01"]
    monkeypatch.setattr(sys, "argv", ["replay.py", *options])
    replay.main()
    rates = json.loads(capsys.readouterr().out)
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


def test_a_workload_is_timed_when_it_is_named(replay, monkeypatch, capsys):
    calls = []
    workloads = iter([("a", 1, lambda: calls.append(1)), ("b", 1, lambda: None)])
    monkeypatch.setattr("sys.stdin", io.StringIO("a\nb\na\n"))
    replay.answer_turns(workloads)
    names, *seconds = capsys.readouterr().out.splitlines()
    assert json.loads(names) == ["a", "b"]
    assert len(seconds) == 3
    assert all(float(each) > 0 for each in seconds)
    assert len(calls) >= 40  # 20 of them to warm up


@pytest.mark.slow
def test_libraries_take_turns():
    output = run(
        "--libraries",
        "alf_lite",
        f"alf_lite@{ROOT}",
        "--kinds=sample",
        "--turns=4",
        "--shrink=1000",
        "--batch_size=32",
    )
    first, second = output.splitlines()
    assert first.startswith("sample_32 alf_lite: ")
    assert "1.00 times the first" in first
    assert second.startswith(f"sample_32 alf_lite@{ROOT}: ")


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
