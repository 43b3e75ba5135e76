"""Runs that were built in Python: what a program says, and how to go on in Python."""

from __future__ import annotations

import functools
import importlib
import json
import re
import sys
import types

import numpy as np
import pytest
import torch

import alf_lite
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.bin import collect, play, train
from alf_lite.config import TrainerConfig, names
from alf_lite.config import files as config_files
from alf_lite.environments import create_environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.runs.rebuilding import ConfWriter, given_in_python
from alf_lite.tools import player
from alf_lite.trainers.hooks import Hook
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


@pytest.mark.ci
@pytest.mark.parametrize(
    ("algorithm", "env_name", "settings"),
    [
        (PPOAlgorithm, "CartPole-v1", {"unroll_length": 8, "epochs": 2}),
        (
            alf_lite.SacAlgorithm,
            "Pendulum-v1",
            {
                "unroll_length": 8,
                "initial_collect_steps": 0,
                "initial_random_policy": False,
                "mini_batch_size": 4,
            },
        ),
    ],
)
def test_a_conf_says_what_was_given_though_it_is_a_general_default(
    tmp_path, algorithm, env_name, settings
):
    """Left out, it would be what the algorithm declares, also of the environments."""
    config_files.reset()
    shown = {}
    # The last config of the process is not that of the run.
    for name, given in (("declared", {}), ("given", settings), ("again", {})):
        config = TrainerConfig(num_iterations=1, random_seed=0, **given)
        TrainerConfig(algorithm_ctor=alf_lite.DqnAlgorithm)
        root = algorithm(env=create_environment(env_name), config=config)
        trainer = Trainer(root, tmp_path / name)
        trainer.train()
        operative = (tmp_path / name / "operative.gin").read_text()
        shown[name] = alf_lite.read_curves(tmp_path / name).settings
        for text in ((tmp_path / name / "user.gin").read_text(), operative):
            with config_files.own_config():
                config_files.parse_config_text(text)
                again = TrainerConfig()
                assert {n: getattr(again, n) for n in config.left_unset} == {
                    n: getattr(root.built_from.config, n) for n in config.left_unset
                }
                assert {n: getattr(again, n) for n in given} == given
                env = create_environment()
                assert env.batch_size == root.env.batch_size == 1
                env.close()
    assert shown["declared"] == shown["again"]
    different = {
        n for n in settings if shown["declared"][f"TrainerConfig.{n}"] != settings[n]
    }
    assert different == settings.keys()
    assert {n: shown["given"][f"TrainerConfig.{n}"] for n in settings} == settings


def test_a_conf_writes_numbers_of_numpy_as_its_own():
    writer = ConfWriter()
    writer.bind("Adam.lr", np.float64(0.5))
    writer.bind("f.sizes", (np.int64(3), np.float32(0.25)))
    assert writer.statements == {"Adam.lr": "0.5", "f.sizes": "[3, 0.25]"}
    assert not writer.left_out


# Programs of one file

DEFINITIONS = """
import functools

import gymnasium
import torch

import alf_lite
from alf_lite.data_transformers.data_transformer import SingleStepTransformer
from alf_lite.networks import ActorDistributionNetwork


class Net(ActorDistributionNetwork):
    def __init__(self, observation_spec, action_spec, width=3, activation=torch.sin):
        super().__init__(
            observation_spec,
            action_spec,
            fc_layer_params=(width,),
            activation=activation,
        )


class Times(SingleStepTransformer):
    def __init__(self, *args, factor=1.0):
        super().__init__(*args)
        self.factor = factor

    def transform(self, time_step):
        return time_step._replace(observation=self.factor * time_step.observation)


class MyPPO(alf_lite.PPOAlgorithm):
    pass


class Swing(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("Pendulum-v1"))


def train(root_dir, net=functools.partial(Net, width=5, activation=torch.cos)):
    env = alf_lite.create_environment(env_ctor=Swing, num_parallel_environments=2)
    config = alf_lite.TrainerConfig(
        num_iterations=1,
        unroll_length=4,
        data_transformer_ctor=functools.partial(Times, factor=3.0),
    )
    algorithm = MyPPO(env=env, config=config, actor_network_ctor=net)
    alf_lite.Trainer(algorithm, root_dir).train()
    return algorithm
"""
GUARDED = f'{DEFINITIONS}\n\nif __name__ == "__main__":\n    STARTED = True\n'
OBSERVATIONS = np.random.default_rng(0).normal(size=(9, 3))


def actions(policy) -> list:
    return policy.predict(OBSERVATIONS).tolist()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a program in place of this one; returns what it defines."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(names, "_conf_folders", [])
    modules = {*sys.modules}

    def program(name, text, is_file=True):
        main = types.ModuleType("__main__")
        path = tmp_path / f"{name}.py"
        if is_file:
            path.write_text(text)
            main.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(text, str(path), "exec"), vars(main))
        return main

    yield program
    names.note_script(None)
    for name in {*sys.modules} - modules:
        if name.startswith("one_file"):
            del sys.modules[name]


@pytest.mark.parametrize("is_file", [True, False])
def test_a_program_loads_what_it_defines_itself(start, tmp_path, caplog, is_file):
    main = start("one_file", DEFINITIONS, is_file)
    algorithm = main.train(tmp_path / "run")
    assert "no other one can load or play this run" in caplog.text
    assert actions(alf_lite.load_policy(tmp_path / "run")) == actions(algorithm)
    again = start("one_file", DEFINITIONS, is_file)  # in a new process
    policy = alf_lite.load_policy(tmp_path / "run")
    assert actions(policy) == actions(algorithm)
    assert isinstance(policy.algorithm, again.MyPPO)
    start("other", "")
    where = str(tmp_path / "one_file.py") if is_file else "in a notebook"
    with pytest.raises(ConfigError, match=rf"'MyPPO' was defined .*{where}.*module of"):
        alf_lite.load_policy(tmp_path / "run")
    if is_file:  # the import of a script that trains is not this library's choice
        sys.path.append(str(tmp_path))
        importlib.import_module("one_file")
        assert actions(alf_lite.load_policy(tmp_path / "run")) == actions(algorithm)


@pytest.mark.ci
def test_another_program_imports_a_script_that_only_defines(start, tmp_path, caplog):
    root_dir = tmp_path / "run"
    algorithm = start("one_file", GUARDED).train(root_dir)
    assert not caplog.text
    start("other", "")
    assert actions(alf_lite.load_policy(root_dir)) == actions(algorithm)
    assert not hasattr(sys.modules["one_file"], "STARTED")
    assert run(play.main, f"--root_dir={root_dir}", "--num_episodes=1") == 0
    # What goes on in another program can be loaded as before.
    more = "--gin_param=TrainerConfig.num_iterations = 2"
    assert run(train.main, f"--root_dir={root_dir}", more) == 0
    script = json.loads((root_dir / "run.json").read_text())["script"]
    assert script == str(tmp_path / "one_file.py")


@pytest.mark.ci
def test_what_a_config_leaves_out_is_as_the_run_says(start, tmp_path):
    """Otherwise it would be another policy with the same parameters."""
    main, root_dir = start("one_file", GUARDED), tmp_path / "run"

    def net(*specs):
        return main.Net(*specs, width=5, activation=torch.tanh)

    algorithm = main.train(root_dir, net)
    for config in (None, TrainerConfig(), TrainerConfig(algorithm_ctor=main.MyPPO)):
        with pytest.raises(ConfigError, match=r"actor_network_ctor is.*algorithm\.pol"):
            alf_lite.load_policy(root_dir, config=config)
    ctor = functools.partial(main.MyPPO, actor_network_ctor=net)
    policy = alf_lite.load_policy(root_dir, config=TrainerConfig(algorithm_ctor=ctor))
    assert actions(policy) == actions(algorithm)  # with its transformer
    main.train(tmp_path / "said")
    for config in (TrainerConfig(), TrainerConfig(algorithm_ctor=main.MyPPO)):
        policy = alf_lite.load_policy(tmp_path / "said", config=config)
        network = policy.algorithm._policy.network
        assert actions(policy) == actions(alf_lite.load_policy(tmp_path / "said"))
        assert "cos" in str(network)


@pytest.fixture(autouse=True)
def no_configuration():
    yield
    config_files.reset()
