"""The policies that come with the source play as their cards say."""

from __future__ import annotations

import re

import pytest

import alf_lite
from alf_lite.tools.player import play
from tests.source_code import ROOT

FOLDERS = sorted(path.parent for path in (ROOT / "policies").glob("*/run.json"))


def test_the_readme_names_them_all():
    rows = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "policies/README.md").read_text(), re.MULTILINE
    )
    assert rows == [folder.name for folder in FOLDERS]
    assert len(rows) >= 4


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_shipped_policy_is_loaded_and_small(folder):
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 500_000
    text = (folder / "README.md").read_text()
    assert f'load_policy("policies/{folder.name}")' in text
    assert alf_lite.load_policy(folder).algorithm.action_spec is not None


@pytest.mark.ci
def test_it_reaches_its_score():
    policy = alf_lite.load_policy(ROOT / "policies/dqn_cart_pole")
    assert alf_lite.evaluate(policy, "CartPole-v1", num_episodes=3).mean == 500
    result = play(ROOT / "policies/ppo_tic_tac_toe", 10).evaluation
    assert result.score == 0
    assert {game.opponent for game in result.games} == {"perfect"}
