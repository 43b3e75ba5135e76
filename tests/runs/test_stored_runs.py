"""Runs of version 0.1.0, as it wrote them: they can be used and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from alf_lite.bin import train
from alf_lite.policies.trained_policy import load_policy

RUNS = Path(__file__).parent / "stored_runs"
# Of the greedy policy, as that version gave them.
ACTIONS = {
    "ppo": [([0.01, -0.02, 0.03, 0.04], 0), ([0.0, 0.0, 0.2, 1.0], 1)],
    "dqn": [([0.01, -0.02, 0.03, 0.04], 1), ([-0.01, 0.02, -0.03, -0.04], 0)],
    "sac": [([1.0, 0.0, 0.5], 0.03424907), ([-1.0, 0.0, -0.5], 0.03908759)],
}


@pytest.fixture(params=sorted(ACTIONS))
def run(request, tmp_path):
    return Path(shutil.copytree(RUNS / request.param, tmp_path / request.param))


def test_its_policy_acts_as_it_did(run):
    policy = load_policy(run)
    for observation, action in ACTIONS[run.name]:
        assert policy.predict(observation) == pytest.approx(action, abs=1e-6)


def test_it_is_resumed(run):
    before = json.loads((run / "run.json").read_text())["iterations"]
    longer = f"TrainerConfig.num_iterations={before + 5}"
    assert train.main([f"--root_dir={run}", f"--gin_param={longer}"]) == 0
    after = json.loads((run / "run.json").read_text())
    assert after["iterations"] == before + 5
    assert after["resumed_iterations"] == before
