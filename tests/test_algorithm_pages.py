"""The pages of docs/algorithms are true: confs, settings, scores, curves."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import alf_lite
from alf_lite.algorithms.algorithm import Algorithm
from alf_lite.config import TrainerConfig, configurables
from alf_lite.config import files as config_files
from alf_lite.config.names import complete_name
from alf_lite.config.trainer_config import DefaultSettings, default_settings
from alf_lite.datasets.writing import write_source
from alf_lite.environments.creation import create_environment
from alf_lite.exports import public_names
from alf_lite.tools.collector import NumSteps, RandomPolicy, collect
from alf_lite.trainers.trainer import Trainer
from tests import documented_scores

PAGES = sorted(
    path for path in documented_scores.FOLDER.glob("*.md") if path.stem != "index"
)
# What a least conf is shortened to
SHORT = [
    "TrainerConfig.num_iterations = 3",
    "TrainerConfig.num_env_steps = 0",
    "TrainerConfig.random_seed = 0",
    "TrainerConfig.unroll_length = 8",
    "TrainerConfig.mini_batch_size = 8",
    "TrainerConfig.summary_interval = 1",
    "create_environment.num_parallel_environments = 1",
]
OFF_POLICY = [
    "TrainerConfig.initial_collect_steps = 0",
    "TrainerConfig.num_updates_per_train_iter = 2",
]
# Of sequences that are longer than what is collected
SEQUENCES = ["TrainerConfig.burn_in_length = 2", "TrainerConfig.mini_batch_length = 8"]
BASES = {"Algorithm", "RLAlgorithm", "OffPolicyAlgorithm"}
BASES |= {"OffPolicyActorCriticAlgorithm", "PathwiseActorCriticAlgorithm"}
BASES |= {"QLearningAlgorithm", "PlanningAlgorithm"}

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def _no_bindings() -> Iterator[None]:
    config_files.reset()
    yield
    config_files.reset()


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def gin_blocks(page: Path) -> list[str]:
    """The least conf and, after it, what may be added to it."""
    return re.findall(r"^```gin\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def least_conf(page: Path) -> str:
    _, after = text_of(page).split("## The least conf")
    return re.findall(r"^```gin\n(.*?)^```$", after, re.MULTILINE | re.DOTALL)[0]


def declared_by(page: Path) -> DefaultSettings:
    """What the algorithm of the least conf declares; of an Agent, its RL algorithm."""
    *_, name = re.findall(r"algorithm_ctor = @(\w+)", least_conf(page))
    return default_settings(getattr(alf_lite, name))


def default_of(setting: str, declared: DefaultSettings) -> Any:
    """The value that a conf gets which leaves a setting out."""
    owner, _, name = setting.partition(".")
    is_declared = owner in ("TrainerConfig", "create_environment", "Adam")
    if is_declared and name in DefaultSettings._fields:
        return getattr(declared, name)
    if owner == "PriorityOptions" and name in ("alpha", "beta"):
        return getattr(declared, f"priority_{name}")
    target = configurables.target(complete_name(owner))
    found = {p.name: p.default for p in configurables.parameters(target) or []}
    assert name in found, f"there is no {setting}"
    return found[name]


def test_every_algorithm_has_a_page():
    pages = "\n".join(text_of(page) for page in PAGES)
    for name in public_names("alf_lite.algorithms"):
        cls = getattr(alf_lite, name, None)
        if not isinstance(cls, type) or not issubclass(cls, Algorithm):
            continue
        if name not in BASES:
            assert f"@{name}" in pages, name


@by_page
def test_the_settings_of_a_page_have_the_defaults_of_the_code(page):
    rows = re.findall(r"^\| `(\w+\.\w+)` \| `(.*?)` \|", text_of(page), re.MULTILINE)
    declared = declared_by(page)
    assert len(rows) >= 4
    for setting, shown in rows:
        default = default_of(setting, declared)
        if shown.startswith("@"):
            assert default.__name__ == shown[1:], setting
        else:
            assert default == ast.literal_eval(shown), (setting, default)


@by_page
def test_what_may_be_added_to_the_least_conf_exists(page, tmp_path):
    path = tmp_path / "least.gin"
    path.write_text(least_conf(page), encoding="utf-8")
    for block in gin_blocks(page):
        config_files.reset()
        config_files.parse_config(str(path), [block])
        TrainerConfig()


@pytest.mark.ci
@by_page
def test_the_least_conf_trains_and_logs_the_curves_of_the_page(page, tmp_path):
    conf = least_conf(page)
    path = tmp_path / "least.gin"
    path.write_text(conf, encoding="utf-8")
    settings = SHORT + SEQUENCES * (declared_by(page).burn_in_length > 0)
    if declared_by(page).epochs is None and not re.search(r"ActorCritic|Impala", conf):
        settings += OFF_POLICY
    if "offline_buffer_dir" in conf:
        settings.append(f'TrainerConfig.offline_buffer_dir = "{_data(conf, tmp_path)}"')
    if "rl_train_after_update_steps" in conf:
        settings.append("TrainerConfig.rl_train_after_update_steps = 3")
    config_files.reset()
    config_files.parse_config(str(path), settings)
    Trainer(TrainerConfig(), tmp_path / "run").train()
    lines = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    logged = {name for line in lines for name in json.loads(line)}
    for name in re.findall(r"`(\w+/loss/[\w/]+|replay/[\w/]+)`", text_of(page)):
        assert name in logged, name


def _data(conf: str, folder: Path) -> Path:
    """Random steps of the environment of a conf."""
    (env_name,) = re.findall(r'env_name = "(.*)"', conf)
    env = create_environment(env_name, seed=0)
    path = folder / "data.replay"
    write_source(collect(env, RandomPolicy(env), NumSteps(60)), env, path, "alf_lite")
    env.close()
    return path


def test_the_scores_of_the_pages_are_those_of_the_confs():
    for page in PAGES:
        assert text_of(page) == documented_scores.with_scores(page), (
            "run python -m tests.documented_scores"
        )


def test_every_conf_is_on_the_page_of_an_algorithm():
    shown = set().union(*map(documented_scores.confs_of, PAGES))
    assert shown == set(documented_scores.scores())
