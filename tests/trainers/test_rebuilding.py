"""Runs that were built in Python: what a program says, and how to go on in Python."""

from __future__ import annotations

import functools
import json
import re

import pytest

from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.bin import collect, play, train
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments import create_environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.trainers import player
from alf_lite.trainers.hooks import Hook
from alf_lite.trainers.rebuilding import given_in_python
from alf_lite.trainers.trainer import Trainer


def create_cart_pole(**kwargs):
    return create_environment("CartPole-v1", **kwargs)


def ppo(**kwargs):
    return PPOAlgorithm(optimizer=Adam(lr=1e-3), **kwargs)


CREATE_ENV = functools.partial(create_cart_pole)
CONF = """
create_environment.env_name = "CartPole-v1"
TrainerConfig.algorithm_ctor = @PPOAlgorithm
TrainerConfig.num_iterations = 1
PPOAlgorithm.optimizer = @Adam()
"""


def python_config(**settings) -> TrainerConfig:
    def ctor(**kwargs):  # no other process finds it
        return ppo(**kwargs)

    settings = {"num_iterations": 1, "unroll_length": 4, **settings}
    settings["hook_ctors"] = [lambda: Hook()]
    return TrainerConfig(algorithm_ctor=ctor, random_seed=0, **settings)


@pytest.fixture(scope="module")
def python_run(tmp_path_factory):
    root_dir = tmp_path_factory.mktemp("run")
    config_files.reset()
    Trainer(python_config(), root_dir, create_env=CREATE_ENV).train()
    return root_dir


def run(main, *arguments: str) -> int:
    config_files.reset()
    return main(arguments)


def test_what_no_conf_says_is_noted(python_run):
    record = json.loads((python_run / "run.json").read_text())
    assert set(record["given_in_python"]) == {
        "TrainerConfig.algorithm_ctor",
        "TrainerConfig.hook_ctors",
        "create_env",
    }
    text = (python_run / "user.gin").read_text()
    assert "TrainerConfig.unroll_length = 4" in text


def test_what_a_conf_says_is_not():
    config_files.reset()
    config_files.parse_config_text(CONF)
    assert given_in_python(TrainerConfig(), create_environment, ()) == []
    config = TrainerConfig(num_iterations=5)
    assert given_in_python(config, create_environment, [Hook()]) == [
        "TrainerConfig.num_iterations",
        "hooks",
    ]


@pytest.mark.parametrize(
    ("main", "arguments", "hint"),
    [
        (play.main, ["--num_episodes=1"], r"player\.play\(root_dir"),
        (
            collect.main,
            ["--num_episodes=1", "--output=x.replay"],
            r"collector\.collect",
        ),
        (train.main, [], r"Trainer\(config, root_dir, \.\.\.\)\.train\(\)"),
    ],
)
def test_programs_say_what_they_lack(python_run, capsys, main, arguments, hint):
    assert run(main, f"--root_dir={python_run}", *arguments) == 2
    message = capsys.readouterr().err
    assert "was built in Python" in message
    assert "TrainerConfig.algorithm_ctor, " in message
    assert "--gin_param='create_environment.env_name" in message
    assert re.search(hint, message)
    assert ("TrainerConfig.hook_ctors" in message) == (main is train.main)


def test_it_is_played_and_continued_in_python(python_run):
    config_files.reset()
    result = player.play(python_run, 2, config=python_config(), create_env=CREATE_ENV)
    assert (len(result.evaluation.returns), result.step) == (2, 1)
    with pytest.raises(ConfigError, match="change config instead"):
        player.play(python_run, 1, config=python_config(), gin_params=["a = 1"])
    config = python_config(num_iterations=2)
    assert Trainer(config, python_run, create_env=CREATE_ENV).train().iterations == 2


def test_what_is_lacking_can_be_given_to_a_program(python_run, capsys):
    arguments = [f"--gin_param={line}" for line in CONF.strip().splitlines()]
    root_dir = f"--root_dir={python_run}"
    assert run(play.main, root_dir, "--num_episodes=1", *arguments) == 0
    # What only training needs is lacking still.
    assert run(train.main, root_dir, *arguments) == 2
    assert "what TrainerConfig.hook_ctors is" in capsys.readouterr().err


def test_a_setting_that_was_given_in_python_is_written_down(tmp_path):
    config_files.reset()
    config_files.parse_config_text(CONF)
    Trainer(TrainerConfig(unroll_length=16, num_iterations=2), tmp_path).train()
    text = (tmp_path / "user.gin").read_text()
    assert "# overridden: TrainerConfig.num_iterations = 1" in text
    assert "TrainerConfig.num_iterations = 2" in text
    assert run(play.main, f"--root_dir={tmp_path}", "--num_episodes=1") == 0
    assert run(train.main, f"--root_dir={tmp_path}") == 0
    longer = "--gin_param=TrainerConfig.num_iterations = 3"
    assert run(train.main, f"--root_dir={tmp_path}", longer) == 0


@pytest.fixture(autouse=True)
def no_configuration():
    yield
    config_files.reset()
