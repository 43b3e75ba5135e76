"""The example of docs/adding_an_algorithm.md works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.source_code import ROOT


def test_the_documented_algorithm_passes_its_own_test(tmp_path):
    document = (ROOT / "docs/adding_an_algorithm.md").read_text(encoding="utf-8")
    files = re.findall(
        r"^## [^\n]*`([\w.]+)`$.*?^```\w+\n(.*?)^```$",
        document,
        re.MULTILINE | re.DOTALL,
    )
    assert [name for name, _ in files] == [
        "reinforce_algorithm.py",
        "reinforce_cart_pole.gin",
        "test_reinforce_algorithm.py",
    ]
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
