"""The examples of docs/adding_an_algorithm.md work as they stand there."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from tests.source_code import ROOT

DOCUMENT = (ROOT / "docs/adding_an_algorithm.md").read_text(encoding="utf-8")
FILES = [
    "reinforce_algorithm.py",
    "reinforce_cart_pole.gin",
    "test_reinforce_algorithm.py",
    "droq_algorithm.py",
    "droq_pendulum.gin",
    "test_droq_algorithm.py",
]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Imports a module from the folder of a reader, which is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.ci
def test_the_documented_algorithms_pass_their_own_tests(tmp_path, load):
    files = re.findall(
        r"^## [^\n]*`([\w.]+)`$.*?^```\w+\n(.*?)^```$",
        DOCUMENT,
        re.MULTILINE | re.DOTALL,
    )
    assert [name for name, _ in files] == FILES
    assert len(dict(files)["droq_algorithm.py"].splitlines()) <= 40
    for name, text in files:
        (tmp_path / name).write_text(text, encoding="utf-8")
    reinforce = load("test_reinforce_algorithm")
    reinforce.test_the_pole_is_balanced(tmp_path / "reinforce")
    droq = load("test_droq_algorithm")
    droq.test_every_step_is_followed_by_twenty_updates(tmp_path / "droq")
    # The other tests of its contract take minutes.
    droq.TestDroq().test_learns_continuous_actions()


def test_the_documented_use_of_the_contract_learns(tmp_path, load):
    *_, block = re.findall(
        r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL
    )
    (tmp_path / "test_dqn.py").write_text(block, encoding="utf-8")
    test = load("test_dqn").TestDqn()
    test.test_learns_a_discounted_value()
    test.test_learns_from_what_another_policy_did()
