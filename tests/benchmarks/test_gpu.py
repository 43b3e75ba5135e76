"""The command for a person with a GPU, rehearsed without one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.source_code import ROOT

GPU = ROOT / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_a_rehearsal_writes_a_page_though_a_part_fails(tmp_path):
    report = tmp_path / "report.md"
    done = subprocess.run(
        [
            *(sys.executable, GPU, "--device=cpu", "--quick", "--no_tests"),
            *("--works", "torch_pendulum", "--settings", "plain"),
            *("--num_envs=64", "--num_env_steps=12288", f"--report={report}"),
            "--rsl_python=/bin/false",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = report.read_text()
    assert "A rehearsal: none of it ran on a GPU." in page
    plain, peer = (
        next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        for name in ("plain", "rsl_rl")
    )
    assert "| 1.00 |" in plain
    assert plain.endswith("| 1 of 1 |")
    assert peer == "| rsl_rl | failed | | | 0 of 1 |"
    assert "torch_pendulum, rsl_rl:\n\n```\nexit code 1" in page


@pytest.mark.ci
def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, GPU, "--quick"],
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--device=cpu rehearses without one" in done.stderr
