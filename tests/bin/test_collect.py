"""Tests of the collect program."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import tempfile
import time

import numpy as np
import pytest

from alf_lite.bin import collect, convert_buffer, inspect_buffer, play, train
from alf_lite.checkpoints.files import Stream
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.config.names import find_conf, packaged_confs
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments.creation import create_environment

CONTROLLERS = """
import os, signal, time
import torch
from alf_lite.errors import EnvError

def push_where_it_falls(time_step):
    return (time_step.observation[:, 2:].sum(1) > 0).long()

def interrupt(time_step):
    raise KeyboardInterrupt

class Ends:
    # Something happens where it would act for the sixth time.
    def __init__(self):
        self.num_calls = 0

    def __call__(self, time_step):
        self.num_calls += 1
        if self.num_calls == 6:
            self.end()
        return torch.zeros_like(time_step.env_id, dtype=torch.long)

class Terminated(Ends):
    def end(self):
        os.kill(os.getpid(), signal.SIGTERM)

class Interrupted(Ends):
    def end(self):
        os.kill(os.getpid(), signal.SIGINT)

class Stubborn(Ends):
    def end(self):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except BaseException:
            pass

class Fails(Ends):
    def end(self):
        raise RuntimeError("no idea")

class FailsInEnvironment(Ends):
    def end(self):
        raise EnvError("it broke")

def terminated_at_once(time_step):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
"""


def run(*arguments: str) -> int:
    """One call of the program, as in a process of its own."""
    config_files.reset()
    return collect.main(arguments)


def result_of(capsys, *arguments: str) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def controllers(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "controllers_of_test.py").write_text(CONTROLLERS)
    monkeypatch.syspath_prepend(tmp_path / "modules")


@pytest.mark.parametrize("output_format", ["alf_lite", "npz"])
def test_random_steps_are_loaded_again(tmp_path, capsys, output_format):
    name = "random.npz" if output_format == "npz" else "random.replay"
    path = tmp_path / "data" / name
    result = result_of(
        capsys,
        "--env=Pendulum-v1",
        "--policy=random",
        "--num_env_steps=450",
        "--num_environments=2",
        f"--output={path}",
        f"--format={output_format}",
    )
    assert result["trainable_transitions"] == 450
    assert result["complete_episodes"] == 2
    # What is read back has as many: the last ones of both environments are open.
    assert inspect_buffer.main([str(path), "--json"]) == 0
    read = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert read["complete_episodes"] == 2
    assert read["average_return"] == pytest.approx(result["average_return"])
    buffer = load_replay_buffer(str(path), create_environment("Pendulum-v1"))
    steps, _ = buffer.get_batch(1000, 1)
    assert buffer.total_size == 450 + 4  # and the first step of every episode
    action = steps.action[steps.time_step.step_type != 2]
    assert -1 <= action.min() < -0.9
    assert 0.9 < action.max() <= 1
    assert [entry.name for entry in path.parent.iterdir()] == [name]


def test_npz_has_the_units_of_the_environment(tmp_path):
    path = tmp_path / "a.npz"
    arguments = ["--env=Pendulum-v1", "--policy=random", "--num_episodes=1"]
    assert run(*arguments, f"--output={path}", "--format=npz") == 0
    with np.load(path) as data:
        assert data["action"].shape == (200, 1)
        assert 1.8 < np.abs(data["action"]).max() <= 2
        assert data["truncated"].sum() == 1
        assert not data["terminated"].any()


@pytest.mark.ci
def test_a_trained_policy_earns_what_it_does_when_played(trained, tmp_path, capsys):
    result = result_of(
        capsys,
        f"--root_dir={trained}",
        "--num_episodes=4",
        "--num_environments=2",
        "--seed=3",
        f"--output={tmp_path}/a",
    )
    config_files.reset()
    arguments = ["--num_episodes=4", "--num_environments=2", "--seed=3", "--json"]
    assert play.main([f"--root_dir={trained}", *arguments]) == 0
    played = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["returns"] == played["returns"]


def test_exploring_changes_what_is_done(trained, tmp_path, capsys):
    arguments = [f"--root_dir={trained}", "--num_episodes=2", "--num_environments=1"]
    greedy = result_of(capsys, *arguments, f"--output={tmp_path}/a")
    again = result_of(capsys, *arguments, f"--output={tmp_path}/b")
    exploring = result_of(
        capsys, *arguments, "--epsilon_greedy=1", f"--output={tmp_path}/c"
    )
    assert greedy["returns"] == again["returns"]
    assert greedy["returns"] != exploring["returns"]


def test_an_algorithm_acts_as_the_conf_builds_it(conf, tmp_path, capsys):
    arguments = [f"--conf={conf}", "--num_env_steps=30", "--whole_episodes"]
    result = result_of(capsys, *arguments, f"--output={tmp_path}/a")
    assert result["num_environments"] == 4  # as in the conf
    assert result["complete_episodes"] >= 4
    assert result["trainable_transitions"] == sum(result["lengths"])


@pytest.mark.ci
@pytest.mark.usefixtures("controllers")
def test_a_scripted_controller_is_better_than_chance(tmp_path, capsys):
    arguments = ["--env=CartPole-v1", "--num_episodes=5"]
    scripted = result_of(
        capsys,
        *arguments,
        "--policy=controllers_of_test:push_where_it_falls",
        f"--output={tmp_path}/a",
    )
    random = result_of(capsys, *arguments, "--policy=random", f"--output={tmp_path}/b")
    assert scripted["average_return"] > 3 * random["average_return"]


def test_tells_what_was_written_and_what_to_do_with_it(tmp_path, capsys):
    path = tmp_path / "a"
    arguments = ["--env=CartPole-v1", "--policy=random", "--num_episodes=1"]
    assert run(*arguments, f"--output={path}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Wrote {path}: ")
    assert "1 complete episode, mean return " in lines[0]
    assert lines[1].endswith(f"inspect_buffer {path}")
    assert f'offline_buffer_dir = "{path}"' in lines[2]


def test_the_line_to_train_with_serves_every_offline_conf(
    tmp_path, capsys, monkeypatch
):
    path = tmp_path / "a $b.replay"
    arguments = ["--env=Pendulum-v1", "--policy=random", "--num_env_steps=50"]
    assert run(*arguments, f"--output={path}") == 0
    line = capsys.readouterr().out.splitlines()[2].removeprefix("Train on it:")
    setting = shlex.split(line)[-1].removeprefix("--gin_param=")
    confs = [
        name for name in packaged_confs() if "= %DATA" in find_conf(name).read_text()
    ]
    assert len(confs) >= 7
    for name in confs:
        config_files.reset()
        config_files.parse_config(name, [setting], strict=True)
        assert TrainerConfig().offline_buffer_dir == str(path), name
    command = [*shlex.split(line)[3:], "--gin_param=TrainerConfig.num_iterations=2"]
    places = {"--conf=CONF": "--conf=bc_pendulum", "--root_dir=RUN": "--root_dir=run"}
    config_files.reset()
    evaluate = "--gin_param=TrainerConfig.evaluate=False"
    monkeypatch.chdir(tmp_path)
    settings = [*(places.get(argument, argument) for argument in command), evaluate]
    assert train.main(settings) == 0


def test_what_is_there_is_not_overwritten(tmp_path, capsys):
    path = tmp_path / "a"
    path.write_text("old")
    arguments = ["--env=CartPole-v1", "--policy=random", "--num_episodes=1"]
    assert run(*arguments, f"--output={path}") == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err
    assert path.read_text() == "old"


TWO_POLES = ["--env=CartPole-v1", "--num_environments=2"]


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize(
    ("name", "num_steps", "code"),
    [
        ("Terminated", 10, 143),
        ("Interrupted", 10, 130),
        ("Stubborn", 12, 143),
        ("Fails", 10, 1),
        ("FailsInEnvironment", 10, 4),
    ],
)
def test_what_was_collected_until_it_ended_is_written(
    tmp_path, capsys, name, num_steps, code
):
    path = tmp_path / "a"
    policy = f"--policy=controllers_of_test:{name}"
    assert run(*TWO_POLES, policy, "--num_env_steps=1000", f"--output={path}") == code
    output, errors = capsys.readouterr()
    assert output.startswith(f"Wrote {path}: ")
    assert f"ended after {num_steps} of 1000 steps; {path} holds what" in errors
    assert ("Once more ends the program" in errors) == (code > 128)
    buffer = load_replay_buffer(str(path), create_environment("CartPole-v1"))
    assert buffer.total_size == num_steps + 2  # and the two that were first


@pytest.mark.usefixtures("controllers")
def test_episodes_that_are_open_are_written_as_such(tmp_path, capsys):
    arguments = [f"--output={tmp_path / 'a'}", "--num_episodes=6", "--json"]
    assert run(*TWO_POLES, "--policy=controllers_of_test:Terminated", *arguments) == 143
    output, errors = capsys.readouterr()
    assert json.loads(output.splitlines()[-1])["complete_episodes"] == 0
    assert "ended after 0 of 6 episodes" in errors
    assert errors.strip().endswith("holds what there was, 10 steps.")


@pytest.mark.usefixtures("controllers")
def test_there_is_no_file_of_nothing(tmp_path, capsys):
    path = tmp_path / "a"
    policy = "--policy=controllers_of_test:terminated_at_once"
    assert run(*TWO_POLES, policy, "--num_episodes=6", f"--output={path}") == 143
    output, errors = capsys.readouterr()
    assert output == ""
    assert f"No step was collected: there is no {path}." in errors
    assert not path.exists()


@pytest.mark.usefixtures("controllers")
def test_a_second_signal_ends_it_at_once(tmp_path, monkeypatch):
    def interrupt(stream, path):
        path.write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    monkeypatch.setattr(Stream, "write_to", interrupt)
    policy = "--policy=controllers_of_test:Interrupted"
    output = f"--output={tmp_path}/data/a"
    assert run(*TWO_POLES, policy, "--num_env_steps=1000", output) == 130
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.usefixtures("controllers")
def test_nothing_is_left_of_what_was_interrupted(tmp_path):
    output = tmp_path / "data" / "a"
    arguments = ["--env=CartPole-v1", "--num_episodes=1", f"--output={output}"]
    assert run(*arguments, "--policy=controllers_of_test:interrupt") == 130
    assert not output.parent.exists()


def test_nothing_is_left_of_a_file_that_was_interrupted(tmp_path, monkeypatch):
    def interrupt(stream, path):
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(Stream, "write_to", interrupt)
    arguments = ["--env=CartPole-v1", "--policy=random", "--num_episodes=1"]
    assert run(*arguments, f"--output={tmp_path}/data/a") == 130
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("is_all_full", [False, True])
def test_steps_that_cannot_be_written_are_kept_elsewhere(
    tmp_path, monkeypatch, capsys, is_all_full
):
    write_to = Stream.write_to

    def fill(stream, path):
        if is_all_full or path.parent.name == "data":
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_to(stream, path)

    monkeypatch.setattr(Stream, "write_to", fill)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    arguments = ["--env=CartPole-v1", "--policy=random", "--num_env_steps=9"]
    assert run(*arguments, f"--output={tmp_path}/data/a") == 2
    errors = capsys.readouterr().err
    assert f"{tmp_path}/data/a cannot be written: No space left" in errors
    assert list((tmp_path / "data").iterdir()) == []
    kept = list(tmp_path.glob("alf_lite-steps-*/*"))
    if is_all_full:
        assert errors.endswith("The steps are lost.\n")
        assert not kept
        assert not list(tmp_path.glob("alf_lite-steps-*"))
        return
    assert f"The steps are in {kept[0]} instead" in errors
    env = create_environment("CartPole-v1")
    assert load_replay_buffer(str(kept[0]), env).total_size == 10


def test_a_class_is_named_as_an_environment(tmp_path, capsys):
    name, conf = "tests.tools.test_policy_export.Endless", tmp_path / "endless.gin"
    conf.write_text(f"create_environment.env_ctor = @{name}\n")
    path = str(tmp_path / "steps.replay")
    steps = ["--policy=random", "--num_env_steps=4"]
    assert run(f"--env={name}", *steps, f"--output={path}") == 0
    for main, arguments in (
        (inspect_buffer.main, [path]),
        (convert_buffer.main, [path, f"--output={tmp_path / 'other.replay'}"]),
    ):
        config_files.reset()
        assert main([*arguments, f"--env={name}"]) == 0
    # An id takes the place of what a conf makes, too.
    output = f"--output={tmp_path / 'third.replay'}"
    assert run(f"--conf={conf}", "--env=Pendulum-v1", *steps, output) == 0
    config_files.reset()
    assert inspect_buffer.main([str(tmp_path / "third.replay")]) == 0
    assert "observation (3,)" in " ".join(capsys.readouterr().out.split())


def test_an_output_must_be_named(capsys):
    assert run("--env=CartPole-v1", "--policy=random", "--num_episodes=1") == 2
    assert "--output is missing" in capsys.readouterr().err
