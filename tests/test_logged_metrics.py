"""docs/logged_metrics.md names every curve that a run writes, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.trainers.trainer import Trainer
from tests.source_code import ROOT

GROUPS = r"(Metrics(_vs_\w+)?|eval(_vs_\w+)?)/"
PLACEHOLDERS = {"ALGORITHM": r"\w+", "OWNER": r"\w+", "NAME": r".+", "KEY": r".+"}
# Written for environments with env_info, for other algorithms, or seldom.
NOT_IN_THIS_RUN = (
    "Games/",
    "drawn",
    "lost",
    "EnvInfo/",
    "AverageEnvInfo/",
    "ActorCriticAlgorithm/",
    "ImpalaAlgorithm/",
    "PPGAlgorithm/",
    "reward_weights/",
    "replay/",
    "time/ranks",
)


@pytest.fixture(autouse=True)
def _no_bindings() -> Iterator[None]:
    config_files.reset()
    yield
    config_files.reset()


@pytest.fixture
def written(tmp_path):
    """The tags of a short run of PPO with an unroll worker."""
    settings = [
        "TrainerConfig.num_env_steps = 1_500",
        "TrainerConfig.num_checkpoints = 1",
        "TrainerConfig.num_eval_episodes = 2",
        "TrainerConfig.summarize_grads_and_vars = True",
        "TrainerConfig.debug_summaries = True",
        "TrainerConfig.summarize_action_distributions = True",
        "TrainerConfig.random_seed = 0",
        "PPOAlgorithm.off_policy_correction = 'vtrace'",
        "TrainerConfig.hook_ctors = [@GradientNoiseScale]",
        "TrainerConfig.async_unroll = True",
    ]
    config_files.parse_config(str(ROOT / "confs/ppo_cart_pole.gin"), settings)
    Trainer(TrainerConfig(), tmp_path).train()
    events = EventAccumulator(str(tmp_path / "train")).Reload()
    tags = events.Tags()
    return {re.sub(f"^{GROUPS}", "", t) for t in tags["scalars"] + tags["histograms"]}


def documented() -> list[str]:
    """The names in the first column of the tables."""
    text = (ROOT / "docs/logged_metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def pattern(name: str) -> str:
    for placeholder, expression in PLACEHOLDERS.items():
        name = name.replace(placeholder, expression)
    return name


@pytest.mark.ci
def test_documented_and_written_names_of_replay_are_the_same(tmp_path):
    settings = [
        f"TrainerConfig.offline_buffer_dir = '{tmp_path / 'first'}'",
        "TrainerConfig.num_env_steps = 200",
        "TrainerConfig.unroll_length = 20",
        "TrainerConfig.num_updates_per_train_iter = 2",
        "TrainerConfig.initial_collect_steps = 40",
        "TrainerConfig.evaluate = False",
        "TrainerConfig.priority_replay = True",
    ]
    conf = str(ROOT / "confs/dqn_cart_pole.gin")
    config_files.parse_config(conf, settings[1:-1])
    Trainer(TrainerConfig(), tmp_path / "first").train()
    config_files.reset()
    config_files.parse_config(conf, settings)
    Trainer(TrainerConfig(), tmp_path / "second").train()
    events = EventAccumulator(str(tmp_path / "second" / "train")).Reload()
    tags = {tag for tag in events.Tags()["scalars"] if tag.startswith("replay/")}
    assert tags == {name for name in documented() if name.startswith("replay/")}


@pytest.mark.ci
def test_documented_and_written_names_are_the_same(written):
    names = documented()
    unknown = [
        tag for tag in written if not any(re.fullmatch(pattern(n), tag) for n in names)
    ]
    assert unknown == []
    missing = [
        name
        for name in names
        if not name.startswith(NOT_IN_THIS_RUN)
        and not any(re.fullmatch(pattern(name), tag) for tag in written)
    ]
    assert missing == []
