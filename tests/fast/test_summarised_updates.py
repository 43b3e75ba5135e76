"""Whether an update is summarised changes nothing of what it trains."""

from __future__ import annotations

import pytest
import torch

from alf_lite.checkpoints import data
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.trainers.trainer import Trainer
from tests.frozen import frozen
from tests.short_confs import CONFS, shortened
from tests.source_code import ROOT


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        *("ppo_pendulum", "sac_pendulum"),
        pytest.param("ac_cart_pole", marks=pytest.mark.slow),
        pytest.param("dqn_cart_pole", marks=pytest.mark.slow),
        pytest.param("gail_cart_pole", marks=pytest.mark.slow),
    ],
)
def test_what_is_trained_is_the_same(name, tmp_path):
    conf = next(conf for conf in CONFS if conf.stem == name)
    trained, looked_at = [], []
    for interval in (1, 1000):
        settings = [
            f"TrainerConfig.summary_interval = {interval}",
            "TrainerConfig.summarize_first_interval = False",
        ]
        folder = tmp_path / str(interval)
        folder.mkdir()
        torch.manual_seed(0)  # of the steps that are recorded
        bindings = [*shortened(conf, folder, 8), *settings]
        config_files.parse_config(str(ROOT / conf), bindings)
        result = Trainer(TrainerConfig(), folder / "run").train()
        config_files.reset()
        loaded = data.read(result.checkpoint, None, resumable=True)
        trained.append(frozen.hashed(loaded.state["algorithm"]))
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        looked_at.append(sum('/loss"' in line for line in lines))
    assert looked_at == [8, 0]
    assert trained[0] == trained[1]
