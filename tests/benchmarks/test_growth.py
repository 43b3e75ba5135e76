"""The benchmark of growth runs."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.source_code import ROOT


def test_every_kind_is_measured():
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "benchmarks" / "growth.py",
            "--kinds",
            *("leaves", "length", "n", "actions", "parameters"),
            *("--most=4", "--seconds=0.01"),
        ],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
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
