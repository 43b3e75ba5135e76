"""The examples of docs/adding_an_algorithm.md work as they stand there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

from tests.source_code import ROOT

DOCUMENT = (ROOT / "docs/adding_an_algorithm.md").read_text(encoding="utf-8")


def test_the_documented_algorithms_pass_their_own_tests(tmp_path):
    files = re.findall(
        r"^## [^\n]*`([\w.]+)`$.*?^```\w+\n(.*?)^```$",
        DOCUMENT,
        re.MULTILINE | re.DOTALL,
    )
    assert [name for name, _ in files] == [
        "reinforce_algorithm.py",
        "reinforce_cart_pole.gin",
        "test_reinforce_algorithm.py",
        "droq_algorithm.py",
        "droq_pendulum.gin",
        "test_droq_algorithm.py",
    ]
    droq = dict(files)["droq_algorithm.py"]
    assert len(droq.splitlines()) <= 40
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    options = ["-q", "-W", "error", "-p", "no:cacheprovider"]
    some = "not TestDroq or learns_continuous_actions"  # the others take minutes
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", some],
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
