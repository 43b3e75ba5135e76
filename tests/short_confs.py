"""What a shipped conf is shortened to, so that it trains within a second or two."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch

from alf_lite import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.datasets.writing import write_source
from alf_lite.environments.creation import create_environment
from alf_lite.tools.collector import NumSteps, RandomPolicy, collect
from alf_lite.trainers.trainer import Trainer
from tests.source_code import ROOT

CONFS = sorted(path.relative_to(ROOT) for path in (ROOT / "confs").rglob("*.gin"))
# Extra -> a module that it installs.
EXTRAS = {
    "atari": "ale_py",
    "box2d": "Box2D",
    "dm_control": "dm_control",
    "envpool": "envpool",
    "games": "mpe2",
    "highway": "highway_env",
    "minigrid": "minigrid",
    "mo": "mo_gymnasium",
    "mujoco": "mujoco",
    "robotics": "gymnasium_robotics",
}
# Everything else stays as it is.
SHORTENED = [
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
# Of confs with the result of a game for a target, or windows as long.
GAMES = ["TrainerConfig.unroll_length = 16"]
# Of confs that plan with the sizes of papers, that search, or have long plans.
SMALL_PLANS = [
    "Mppi.num_samples = 32",
    "Mppi.num_elites = 4",
    "Mppi.num_iterations = 1",
    "Tdmpc2Algorithm.fc_layer_params = (16,)",
    "Tdmpc2Algorithm.latent_size = 16",
]
SMALL_SEARCHES = ["TreeSearch.num_simulations = 4"]
SHORT_PLANS = ["MbrlAlgorithm.horizon = 3"]
# Of confs with a thousand environments.
FEW_ENVIRONMENTS = ["create_environment.num_parallel_environments = 8"]
# Of confs that train on recorded steps.
NEEDS_DATA = "DATA = %gin.REQUIRED"


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


def missing_extras(text: str) -> list[str]:
    """The extras that a conf's header asks for and that are not installed."""
    needed = re.findall(r"pip install 'alf_lite\[(\w+)\]'", header(text))
    return [extra for extra in needed if not importlib.util.find_spec(EXTRAS[extra])]


def shortened(conf: Path, folder: Path, num_iterations: int) -> list[str]:
    """Bindings that shorten a conf; steps that it needs are recorded in ``folder``."""
    text = full_text(ROOT / conf)
    bindings = [f"TrainerConfig.num_iterations = {num_iterations}", *SHORTENED]
    bindings += ONE_EPOCH if "epochs = " in text else ONE_UPDATE
    bindings += COLLECTED * ("initial_collect_steps" in text)
    bindings += SEQUENCES * ("burn_in_length" in text)
    if "epochs = " in text and "use_rollout_state" in text:
        bindings += SEQUENCES[1:]
    bindings += GAMES * bool(re.search("@(AlphaZero|Muzero)Algorithm", text))
    bindings += SMALL_PLANS * ("num_samples = 512" in text)
    bindings += SMALL_SEARCHES * ("TreeSearch" in text)
    bindings += [f"predict/{line}" for line in SMALL_SEARCHES if "predict/Tree" in text]
    bindings += SHORT_PLANS * ("@MbrlAlgorithm" in text)
    bindings += FEW_ENVIRONMENTS * ("num_parallel_environments = 1024" in text)
    if "@FoldedEnvironment" in text:  # a game has three rows
        bindings += ["TrainerConfig.num_eval_environments = 3"]
    if NEEDS_DATA in text:
        bindings.append(_random_steps(ROOT / conf, folder))
    return bindings


def trained(conf: Path, bindings: list[str], root_dir: Path) -> RLAlgorithm:
    """What a conf has trained, always with the same random numbers."""
    config_files.reset()
    torch.manual_seed(0)
    config_files.parse_config(str(ROOT / conf), bindings)
    trainer = Trainer(TrainerConfig(), root_dir)
    trainer.train()
    return trainer.algorithm


def _random_steps(conf: Path, folder: Path) -> str:
    """The binding of data of the environment that a conf trains in."""
    path = folder / "data.replay"
    config_files.parse_config(str(conf), ['DATA = ""'])
    env = create_environment(max_episode_steps=100, seed=0)
    write_source(collect(env, RandomPolicy(env), NumSteps(250)), env, path, "alf_lite")
    env.close()
    config_files.reset()
    return f'DATA = "{path}"'
