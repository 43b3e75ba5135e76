"""Tests of the inspect_buffer program."""

from __future__ import annotations

import json

import numpy as np
import pytest

from alf_lite.bin import inspect_buffer
from alf_lite.config import files as config_files
from alf_lite.errors import DataError
from alf_lite.tools import pictures


def run(*arguments: str) -> int:
    """One call of the program, as in a process of its own."""
    config_files.reset()
    return inspect_buffer.main(arguments)


def result_of(capsys, *arguments: str) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def episodes(tmp_path):
    """Two episodes of Pendulum, of two and three steps, in its own units."""
    path = tmp_path / "episodes.npz"
    np.savez(
        path,
        observation=np.zeros((7, 3), np.float32),
        action=np.array([[0.5], [-2.0], [1.0], [2.0], [0.0]], np.float32),
        reward=np.array([-1.0, -2.0, -3.0, -4.0, -5.0]),
        terminated=np.array([False, True, False, False, False]),
        truncated=np.array([False, False, False, False, True]),
    )
    return path


def change(path, **arrays) -> None:
    with np.load(path) as old:
        np.savez(path, **{**old, **arrays})


def test_the_last_line_is_one_object_with_the_numbers(episodes, capsys):
    result = result_of(capsys, str(episodes))
    assert result["total_steps"] == 7
    assert result["num_environments"] == 1
    assert result["trainable_transitions"] == 5
    assert result["complete_episodes"] == 2
    assert result["average_return"] == pytest.approx(-7.5)
    assert result["returns"] == [-3.0, -12.0]
    assert result["lengths"] == [2, 3]
    assert (result["num_terminations"], result["num_truncations"]) == (1, 1)
    assert result["fields"]["observation"] == {"shape": [3], "dtype": "float32"}
    assert result["fields"]["action"] == {"shape": [1], "dtype": "float32"}
    assert set(result["fields"]) >= {"step_type", "reward", "discount"}
    assert "num_out_of_bounds" not in result  # nothing was known of bounds


def test_tells_the_same_in_words(episodes, capsys):
    assert run(str(episodes)) == 0
    out = capsys.readouterr().out
    assert "7 steps, 2 complete episodes, mean return -7.50" in out
    assert "1 environment, 5 trainable transitions" in out
    assert "episode ends: 1 terminal, 1 cut off by a limit" in out
    assert "0 seams" in out
    assert "NaN or infinite: 0 values" in out
    histogram = [line for line in out.splitlines() if " to " in line]
    assert len(histogram) == 10
    assert histogram[0].split() == ["-12.00", "to", "-11.10", "#" * 40, "1"]
    assert histogram[1].split()[-1] == "0"


def test_nan_is_told_with_its_place(episodes, capsys):
    observation = np.zeros((7, 3), np.float32)
    observation[4, 2] = np.nan
    change(episodes, observation=observation)
    result = result_of(capsys, str(episodes))
    assert result["num_not_finite"] == 1
    place = "observation[2] is nan at step 4 of environment 0"
    assert result["not_finite"] == [place]


def test_a_return_that_is_not_finite_is_no_number_in_json(episodes, capsys):
    change(episodes, reward=np.array([np.nan, 0, 0, 0, 0]))
    result = result_of(capsys, str(episodes))
    assert result["average_return"] is None
    assert result["returns"] == [None, 0.0]


@pytest.mark.parametrize(
    "environment",
    ["--env=Pendulum-v1", "--gin_param=create_environment.env_name='Pendulum-v1'"],
)
def test_values_are_compared_with_the_bounds_of_the_environment(
    episodes, capsys, environment
):
    result = result_of(capsys, str(episodes), environment)
    assert result["num_out_of_bounds"] == 0
    change(episodes, action=np.array([[0], [0], [2.5], [-2], [0]], np.float32))
    result = result_of(capsys, str(episodes), environment)
    assert result["out_of_bounds"] == [
        "action[0] is 2.5 at step 3 of environment 0"  # of the second episode
    ]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("MountainCarContinuous-v0", "observation has the shape (3,), in"),
        # Of one number, and of parts.
        ("FrozenLake-v1", "observation has the shape (3,), in"),
        ("Blackjack-v1", "observation/0 is missing, in Blackjack-v1 it has ()"),
    ],
)
def test_another_environment_is_an_error_in_a_line(episodes, capsys, env, message):
    exit_code = inspect_buffer.main([str(episodes), f"--env={env}"])
    assert exit_code == DataError.exit_code
    assert message in capsys.readouterr().err


def test_several_sources_are_told_together_and_one_by_one(episodes, tmp_path, capsys):
    second = tmp_path / "second.npz"
    second.write_bytes(episodes.read_bytes())
    change(second, reward=np.ones(5))
    result = result_of(capsys, str(episodes), str(second))
    assert (result["total_steps"], result["complete_episodes"]) == (14, 4)
    assert result["average_return"] == pytest.approx((-3 - 12 + 2 + 3) / 4)
    assert [source["path"] for source in result["sources"]] == [
        str(episodes),
        str(second),
    ]
    assert [source["average_return"] for source in result["sources"]] == [-7.5, 2.5]


def test_draws_a_picture(episodes, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "returns.png"
    assert run(str(episodes), str(episodes), f"--picture={file}") == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_missing_extra_says_how_to_install_it(episodes, capsys, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    assert run(str(episodes), "--picture=a.png") == 2
    captured = capsys.readouterr()
    assert "pip install 'alf_lite[plot]'" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"", "the file is empty"),
        (b"PK\x03\x04 and no more", "damaged or truncated"),
        (b"something else", "unknown format"),
        (b"\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00lsq\x01\x85R.", "refused"),
    ],
)
def test_a_file_that_is_no_data_is_refused(tmp_path, capsys, content, message):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert run(str(path)) == 3
    captured = capsys.readouterr()
    assert message in captured.err
    assert str(path) in captured.err
    assert "Traceback" not in captured.err


def test_something_to_inspect_must_be_named(capsys):
    assert run("--json") == 2
    assert "no PATH is given" in capsys.readouterr().err
