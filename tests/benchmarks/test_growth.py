"""The benchmark of growth runs."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.source_code import ROOT


@pytest.mark.ci
def test_every_kind_is_measured(monkeypatch, capsys):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the module sets them; this puts them back
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    kinds = ["leaves", "length", "n", "actions", "parameters"]
    options = ["--kinds", *kinds, "--most=4", "--seconds=0.01"]
    monkeypatch.setattr(sys, "argv", ["growth.py", *options])
    importlib.import_module("growth").main()
    done = capsys.readouterr()
    rows = [line for line in done.out.splitlines() if line.startswith("| ")]
    assert [row.split(" |")[0].removeprefix("| ") for row in rows] == [
        "leaves",
        "draw 256, µs",
        "add arrays, µs",
        "add tensors, µs",
        "transitions, µs",
        "length",
        "draw 32 windows, µs",
        "n",
        "transitions, µs",
        "actions",
        "iteration of PPO, µs",
        "parameters",
        "iteration of DQN, µs",
    ]
