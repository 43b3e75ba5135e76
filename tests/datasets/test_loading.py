"""Sources as a whole: what is not there, empty, not finite."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.datasets.loading import load_replay_buffer, newest_lengths
from alf_lite.errors import DataError
from tests.datasets.recorded_episodes import flat_episode, make_env, rows


@pytest.fixture
def bad_episodes(tmp_path):
    """Five episodes of three steps; the second and fourth have bad numbers."""
    for number in range(5):
        np.savez(tmp_path / f"{number}.npz", **flat_episode(2, begin=10 * number))
    second = flat_episode(2, begin=10)
    second["observation"][1, 0] = np.nan
    second["reward"][0] = np.nan
    np.savez(tmp_path / "1.npz", **second)
    fourth = flat_episode(2, begin=30)
    fourth["action"][1, 0] = np.inf
    fourth["reward"][:] = -np.inf
    np.savez(tmp_path / "3.npz", **fourth)
    return str(tmp_path)


@pytest.mark.parametrize("path", ["", "minari:"])
def test_no_path_is_not_this_directory(bad_episodes, monkeypatch, path):
    monkeypatch.chdir(bad_episodes)
    with pytest.raises(DataError, match=f"'{path}' names no source"):
        load_replay_buffer(path, make_env(), 3)


def test_bad_numbers_are_named_with_their_places(bad_episodes):
    with pytest.raises(DataError) as error:
        load_replay_buffer(bad_episodes, make_env())
    message = str(error.value)
    assert "2 episodes have a NaN or infinite number" in message
    assert "observation[0] is nan at step 4 of environment 0\n" in message
    assert "reward is nan at step 4 of environment 0\n" in message
    assert "action[0] is inf at step 11 of environment 0\n" in message
    assert "reward is -inf at step 10 of environment 0 (2 such values)\n" in message
    assert "load_replay_buffer.drop_bad_episodes = True" in message


def test_bad_episodes_are_left_out_on_demand(bad_episodes):
    buffer = load_replay_buffer(bad_episodes, make_env(), drop_bad_episodes=True)
    time_step = rows(buffer).time_step
    observation = time_step.observation[:, 0].tolist()
    assert observation == [0, 1, 2, 20, 21, 22, 40, 41, 42]
    assert time_step.step_type.tolist() == [0, 1, 2] * 3


def test_older_steps_take_the_place_of_bad_ones(bad_episodes):
    buffer = load_replay_buffer(bad_episodes, make_env(), 7, drop_bad_episodes=True)
    observation = rows(buffer).time_step.observation[:, 0].tolist()
    assert observation == [2, 20, 21, 22, 40, 41, 42]


def test_bad_numbers_that_are_not_taken_do_not_matter(bad_episodes):
    buffer = load_replay_buffer(bad_episodes, make_env(), 3)
    assert rows(buffer).time_step.observation[:, 0].tolist() == [40, 41, 42]


def test_a_source_of_bad_episodes_alone_is_refused(tmp_path):
    episode = flat_episode(2)
    episode["reward"][1] = np.nan
    np.savez(tmp_path / "a.npz", **episode)
    with pytest.raises(DataError, match="nothing is left without its 1 episodes"):
        load_replay_buffer(str(tmp_path), make_env(), drop_bad_episodes=True)


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere: there is no such file or directory"):
        load_replay_buffer(str(tmp_path / "nowhere"), make_env())


def test_an_unknown_format_lists_those_that_are_known(tmp_path):
    (tmp_path / "a.txt").write_text("no data")
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(DataError, match=r"Known are .*Minari"):
            load_replay_buffer(str(path), make_env())


def test_an_empty_source_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **flat_episode(0))
    with pytest.raises(DataError, match="there are no steps"):
        load_replay_buffer(str(tmp_path), make_env())
    (tmp_path / "b").touch()
    with pytest.raises(DataError, match="the file is empty"):
        load_replay_buffer(str(tmp_path / "b"), make_env())


@pytest.mark.parametrize(
    ("lengths", "max_length", "expected"),
    [
        ([5, 3], None, [5, 3]),
        ([5, 3], 8, [5, 3]),
        ([5, 3], 7, [4, 3]),
        ([5, 3], 6, [3, 3]),
        ([5, 3], 5, [2, 2]),
        ([5, 0, 1], 3, [2, 0, 1]),
        ([5, 5, 5], 2, [1, 1, 0]),
    ],
)
def test_the_newest_of_all_environments(lengths, max_length, expected):
    assert newest_lengths(lengths, max_length) == expected
