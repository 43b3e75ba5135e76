"""The example of docs/adding_an_algorithm.md works as it stands there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

from tests.source_code import ROOT

DOCUMENT = (ROOT / "docs/adding_an_algorithm.md").read_text(encoding="utf-8")


def test_the_documented_algorithm_passes_its_own_test(tmp_path):
    files = re.findall(
        r"^## [^\n]*`([\w.]+)`$.*?^```\w+\n(.*?)^```$",
        DOCUMENT,
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


def test_the_documented_use_of_the_contract_learns(tmp_path):
    *_, block = re.findall(
        r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL
    )
    path = tmp_path / "test_dqn.py"
    path.write_text(block, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("documented_contract", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test = module.TestDqn()
    test.test_learns_a_discounted_value()
    test.test_learns_from_what_another_policy_did()
