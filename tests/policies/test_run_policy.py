"""The policy of a run, built from its conf and a checkpoint."""

from __future__ import annotations

import json
import re
import shutil

import pytest

import alf_lite
from alf_lite.bin import train
from alf_lite.config import files as config_files
from alf_lite.errors import CheckpointError
from tests.runs.test_stored_runs import RUNS

SETTINGS = (
    "TrainerConfig.num_iterations = 4",
    "TrainerConfig.num_env_steps = 0",
    "TrainerConfig.num_checkpoints = 2",
    "TrainerConfig.evaluate = False",
    "TreeSearch.num_simulations = 2",
    "AlphaZeroAlgorithm.gamma = @LinearScheduler()",
    "LinearScheduler.schedule = [(0, 1.0), (END, 0.6)]",
)


@pytest.mark.parametrize(("counter", "end"), [("percent", 1), ("global_counter", 4)])
def test_schedules_of_a_search_are_where_they_were(tmp_path, counter, end):
    config_files.reset()
    settings = [*SETTINGS, f"LinearScheduler.progress_type = '{counter}'"]
    flags = [f"--gin_param={one}".replace("END", str(end)) for one in settings]
    conf = "--conf=alphazero_tic_tac_toe"
    assert train.main([conf, f"--root_dir={tmp_path}", *flags]) == 0
    for which, gamma in ((2, 0.8), ("latest", 0.6)):
        config_files.reset()
        policy = alf_lite.load_policy(tmp_path, which)
        assert policy.algorithm._gamma == pytest.approx(gamma)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("env_steps", "many", "env_steps is 'many', expected int"),
        ("environment", {}, "damaged or truncated ('observation_space')"),
        (
            "environment",
            {"observation_space": {"Ball": []}, "action_space": {}, "name": "a"},
            "damaged or truncated (",
        ),
    ],
)
def test_what_somebody_else_may_have_written_is_refused(tmp_path, key, value, message):
    shutil.copytree(RUNS / "ppo", tmp_path / "ppo")
    manifest = tmp_path / "ppo/checkpoints/ckpt-6/manifest.json"
    told = json.loads(manifest.read_text())
    told["metadata"][key] = value
    manifest.write_text(json.dumps(told))
    config_files.reset()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        alf_lite.load_policy(tmp_path / "ppo")
