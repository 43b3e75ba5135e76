"""Every conf builds, trains for two iterations and uses all that it binds."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.datasets.writing import write_source
from alf_lite.environments.creation import create_environment
from alf_lite.trainers.collector import NumSteps, RandomPolicy, collect
from alf_lite.trainers.trainer import Trainer
from tests.source_code import ROOT

CONFS = sorted(path.relative_to(ROOT) for path in (ROOT / "confs").rglob("*.gin"))
# Extra -> a module that it installs.
EXTRAS = {
    "atari": "ale_py",
    "box2d": "Box2D",
    "dm_control": "dm_control",
    "envpool": "envpool",
    "highway": "highway_env",
    "minigrid": "minigrid",
    "mo": "mo_gymnasium",
    "mujoco": "mujoco",
    "robotics": "gymnasium_robotics",
}
# What a conf is shortened to; everything else stays as it is.
SHORTENED = [
    "TrainerConfig.num_iterations = 2",
    "TrainerConfig.num_env_steps = 0",
    "TrainerConfig.random_seed = 0",
    "TrainerConfig.mini_batch_size = 16",
    "TrainerConfig.eval_interval = 0",
    "TrainerConfig.num_eval_episodes = 1",
    "TrainerConfig.num_eval_environments = 1",
    "create_environment.max_episode_steps = 50",
]
ONE_UPDATE = ["TrainerConfig.num_updates_per_train_iter = 1"]
ONE_EPOCH = ["TrainerConfig.epochs = 1", "TrainerConfig.unroll_length = 8"]
# Of confs that collect first, so that they train in these iterations, too.
COLLECTED = [
    "TrainerConfig.initial_collect_steps = 0",
    "TrainerConfig.unroll_length = 8",
]
# Of confs with longer sequences than there are steps.
SEQUENCES = ["TrainerConfig.burn_in_length = 2", "TrainerConfig.mini_batch_length = 8"]
# Of confs with a thousand environments.
FEW_ENVIRONMENTS = ["create_environment.num_parallel_environments = 8"]
# Of confs that train on recorded steps.
NEEDS_DATA = "DATA = %gin.REQUIRED"


@pytest.fixture(autouse=True)
def _no_bindings() -> Iterator[None]:
    config_files.reset()
    yield
    config_files.reset()


def header(text: str) -> str:
    """The comment that a conf begins with."""
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(lines[:end])


def full_text(conf: Path) -> str:
    """A conf with those that it includes."""
    text = conf.read_text(encoding="utf-8")
    included = re.findall(r'^include "(.*)"', text, re.MULTILINE)
    return "".join([text, *(full_text(conf.parent / name) for name in included)])


def random_steps(conf: Path, folder: Path) -> str:
    """The binding of data of the environment that a conf trains in."""
    path = folder / "data.replay"
    config_files.parse_config(str(conf), ['DATA = ""'])
    env = create_environment(max_episode_steps=100, seed=0)
    write_source(collect(env, RandomPolicy(env), NumSteps(250)), env, path, "alf_lite")
    env.close()
    config_files.reset()
    return f'DATA = "{path}"'


def missing_extras(text: str) -> list[str]:
    """The extras that a conf's header asks for and that are not installed."""
    needed = re.findall(r"pip install 'alf_lite\[(\w+)\]'", header(text))
    return [extra for extra in needed if not importlib.util.find_spec(EXTRAS[extra])]


# LunarLander leaves the bounds that it declares.
@pytest.mark.filterwarnings("ignore:.*outside of its bounds:UserWarning")
# Environments of other packages give bounds of float64 to spaces of float32.
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")
@pytest.mark.parametrize("conf", CONFS, ids=lambda conf: conf.stem)
def test_a_conf_trains_and_uses_every_binding(conf, tmp_path):
    text = full_text(ROOT / conf)
    if missing := missing_extras(text):
        pytest.skip(f"needs pip install 'alf_lite[{','.join(missing)}]'")
    shortened = SHORTENED + (ONE_EPOCH if "epochs = " in text else ONE_UPDATE)
    shortened += COLLECTED * ("initial_collect_steps" in text)
    shortened += SEQUENCES * ("burn_in_length" in text)
    if "epochs = " in text and "use_rollout_state" in text:
        shortened += SEQUENCES[1:]
    shortened += FEW_ENVIRONMENTS * ("num_parallel_environments = 1024" in text)
    if NEEDS_DATA in text:
        shortened = [*shortened, random_steps(ROOT / conf, tmp_path)]
    config_files.parse_config(str(ROOT / conf), shortened, strict=True)
    trainer = Trainer(TrainerConfig(), tmp_path / "run")
    result = trainer.train()
    assert result.iterations == 2
    assert trainer.algorithm.learner.state_dict()["num_updates"] >= 2
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
