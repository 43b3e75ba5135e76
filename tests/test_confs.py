"""Every conf builds, trains for two iterations and uses all that it binds."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator

import pytest

from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.trainers.trainer import Trainer
from tests.short_confs import CONFS, full_text, header, missing_extras, shortened
from tests.source_code import ROOT


@pytest.fixture(autouse=True)
def _no_bindings() -> Iterator[None]:
    config_files.reset()
    yield
    config_files.reset()


# LunarLander leaves the bounds that it declares.
@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:.*outside of its bounds:UserWarning")
# Environments of other packages give bounds of float64 to spaces of float32.
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")
@pytest.mark.parametrize("conf", CONFS, ids=lambda conf: conf.stem)
def test_a_conf_trains_and_uses_every_binding(conf, tmp_path):
    text = full_text(ROOT / conf)
    if missing := missing_extras(text):
        pytest.skip(f"needs pip install 'alf_lite[{','.join(missing)}]'")
    bindings = shortened(conf, tmp_path, num_iterations=2)
    config_files.parse_config(str(ROOT / conf), bindings, strict=True)
    trainer = Trainer(TrainerConfig(), tmp_path / "run")
    result = trainer.train()
    assert result.iterations == 2
    assert trainer.algorithm.training_run.state_dict()["num_updates"] >= 2
    is_offline = trainer.config.rl_train_after_update_steps > 2
    assert (result.env_steps > 0) == (not is_offline)
    assert result.evaluation is None or math.isfinite(result.evaluation.mean)
    assert result.checkpoint is not None
    assert result.checkpoint.is_dir()


@pytest.mark.parametrize("conf", CONFS, ids=lambda conf: conf.stem)
def test_a_conf_says_what_it_trains_and_where_its_score_is(conf):
    text = header((ROOT / conf).read_text(encoding="utf-8"))
    assert len(text.splitlines()[0]) > 10
    assert "Scores: confs/README.md." in text
    assert "Override most often:" in text


@pytest.mark.parametrize("folder", ["confs", "benchmarks"])
def test_what_alf_lite_ships_needs_no_import(folder):
    for conf in (ROOT / folder).glob("*.gin"):
        text = conf.read_text(encoding="utf-8")
        assert not re.search(r"^(import|from) alf_lite", text, re.MULTILINE), conf


def test_there_are_confs():
    assert {"ppo_cart_pole", "ac_cart_pole"} <= {conf.stem for conf in CONFS}


def test_the_extras_of_a_conf_are_read_from_its_header():
    text = (
        "# PPO (pip install 'alf_lite[mujoco]').\n\n# pip install 'alf_lite[box2d]'\n"
    )
    present = importlib.util.find_spec("mujoco") is not None
    assert missing_extras(text) == ([] if present else ["mujoco"])
