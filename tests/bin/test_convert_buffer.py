"""Tests of the convert_buffer program."""

from __future__ import annotations

import json

import numpy as np
import pytest

from alf_lite.bin import collect, convert_buffer, inspect_buffer
from alf_lite.config import files as config_files
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments.creation import create_environment
from tests.datasets.recorded_episodes import assert_equal_steps

ENV = "--env=Pendulum-v1"


def run(*arguments: str) -> int:
    """One call of the program, as in a process of its own."""
    config_files.reset()
    return convert_buffer.main(arguments)


def result_of(capsys, *arguments: str) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """450 random steps of Pendulum in one environment."""
    path = tmp_path_factory.mktemp("recorded") / "random.replay"
    arguments = [ENV, "--policy=random", "--num_env_steps=450", f"--output={path}"]
    config_files.reset()
    assert collect.main(arguments) == 0
    config_files.reset()
    return str(path)


@pytest.mark.parametrize("middle", ["npz", "minari"])
def test_there_and_back_are_the_same_steps(recorded, tmp_path, middle, monkeypatch):
    if middle == "minari":
        pytest.importorskip("minari")
        pytest.importorskip("h5py")
    there = str(tmp_path / ("a.npz" if middle == "npz" else "a-v0"))
    back = str(tmp_path / "back")
    assert run(recorded, ENV, f"--output={there}", f"--format={middle}") == 0
    assert run(there, ENV, f"--output={back}") == 0
    env = create_environment("Pendulum-v1")
    assert_equal_steps(load_replay_buffer(recorded, env), load_replay_buffer(back, env))


def test_where_the_recording_ended_the_episode_stays_open(recorded, tmp_path, capsys):
    path = recorded
    for name in ("a.npz", "b", "c.npz"):  # read in both ways
        output = [f"--output={tmp_path / name}"]
        output += ["--format=npz"] if name.endswith("npz") else []
        result = result_of(capsys, path, ENV, *output)
        assert result["complete_episodes"] == 2  # of 200 steps each
        path = str(tmp_path / name)
    with np.load(path) as written:
        assert np.flatnonzero(written["cut_off"]).tolist() == [
            len(written["reward"]) - 1
        ]


@pytest.mark.parametrize("output", ["a.npz", "a-v0", "a.replay"])
def test_what_is_told_of_the_output_is_what_is_in_it(
    recorded, tmp_path, capsys, output
):
    formats = {"a.npz": "npz", "a-v0": "minari", "a.replay": "alf_lite"}
    if output == "a-v0":
        pytest.importorskip("minari")
        pytest.importorskip("h5py")
    path = str(tmp_path / output)
    cut = ["--max_length=240", f"--output={path}", f"--format={formats[output]}"]
    told = result_of(capsys, recorded, ENV, *cut)
    config_files.reset()
    assert inspect_buffer.main([path, "--json"]) == 0
    assert told == json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_newest_steps_are_taken_on_demand(recorded, tmp_path, capsys):
    result = result_of(
        capsys, recorded, ENV, "--max_length=100", f"--output={tmp_path}/a"
    )
    assert result["total_steps"] == 100


def test_bad_numbers_are_refused_or_left_out(tmp_path, capsys):
    path = tmp_path / "bad.npz"
    observation = np.zeros((6, 3), np.float32)
    observation[1, 0] = np.nan
    flags = np.array([False, True, False, True])
    np.savez(
        path,
        observation=observation,
        action=np.zeros((4, 1), np.float32),
        reward=np.ones(4),
        terminated=flags,
        truncated=~flags & False,
    )
    arguments = [str(path), ENV, f"--output={tmp_path}/a"]
    assert run(*arguments) == 3
    assert "observation[0] is nan at step 1" in capsys.readouterr().err
    setting = "--gin_param=load_replay_buffer.drop_bad_episodes = True"
    for i, flag in enumerate(("--drop_bad_episodes", setting)):
        result = result_of(capsys, str(path), ENV, f"--output={tmp_path}/{i}", flag)
        assert (result["total_steps"], result["complete_episodes"]) == (3, 1)


def test_settings_that_have_no_effect_are_named(recorded, tmp_path, capsys):
    given = [ENV, "--gin_param=TrainerConfig.random_seed = 3"]
    output = f"--output={tmp_path}/"
    for program, arguments in (
        (collect, ["--policy=random", "--num_env_steps=9", output + "a"]),
        (convert_buffer, [recorded, output + "b"]),
        (inspect_buffer, [recorded]),
    ):
        config_files.reset()
        assert program.main([*arguments, *given]) == 0
        told = "no effect here:\n  --gin_param: TrainerConfig.random_seed = 3"
        assert told in capsys.readouterr().err


def test_steps_of_another_environment_are_refused(recorded, tmp_path, capsys):
    arguments = [recorded, "--env=CartPole-v1", f"--output={tmp_path}/a"]
    assert run(*arguments) == 3
    assert "observation: expected (4,) float32" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
