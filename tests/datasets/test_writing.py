"""What was written is read back as it was, and tells the same to others."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.writing import check_output, write_source
from alf_lite.errors import ConfigError, DataError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from tests.datasets.recorded_episodes import (
    assert_equal_steps,
    flat_episode,
    make_env,
    nested_env,
    nested_episode,
    rows,
)


def concatenated(*episodes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: np.concatenate([episode[name] for episode in episodes])
        for name in episodes[0]
    }


def test_a_minari_data_set_may_have_a_relative_path(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    np.savez("source.npz", **flat_episode(4))
    buffer = load_replay_buffer("source.npz", make_env())
    write_source(buffer, make_env(), "data/flat-v0", "minari")
    assert_equal_steps(buffer, load_replay_buffer("data/flat-v0", make_env()))


def test_pictures_are_not_changed_by_minari(tmp_path):
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    pytest.importorskip("PIL")
    env = make_env(spaces.Box(0, 255, (32, 32, 3), np.uint8))
    noise = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "a.npz", **{**flat_episode(4), "observation": noise})
    buffer = load_replay_buffer(str(tmp_path / "a.npz"), env)
    write_source(buffer, env, tmp_path / "noise-v0", "minari")
    assert_equal_steps(buffer, load_replay_buffer(str(tmp_path / "noise-v0"), env))


@pytest.fixture
def loaded(tmp_path):
    """A nested environment and a buffer of three episodes in it."""
    env = nested_env()
    episodes = concatenated(nested_episode(4), nested_episode(1), nested_episode(3))
    np.savez(tmp_path / "source.npz", **episodes)
    return env, load_replay_buffer(str(tmp_path / "source.npz"), env), episodes


def test_npz_holds_what_the_environment_returned_and_was_given(tmp_path, loaded):
    env, buffer, episodes = loaded
    write_source(buffer, env, tmp_path / "out.npz", "npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as written:
        assert sorted(written) == sorted(episodes)
        for name, expected in episodes.items():
            assert written[name] == pytest.approx(expected, abs=1e-6), name
            if name.split("/")[0] in ("observation", "action"):
                assert written[name].dtype == expected.dtype, name


def test_a_buffer_survives_npz(tmp_path, loaded):
    env, buffer, _ = loaded
    write_source(buffer, env, tmp_path / "out.npz", "npz")
    again = load_replay_buffer(str(tmp_path / "out.npz"), env)
    assert_equal_steps(buffer, again)


def test_what_was_executed_is_written_not_what_was_chosen(tmp_path, loaded):
    env, buffer, _ = loaded
    steps = nest.map_structure(torch.from_numpy, rows(buffer))
    chosen = nest.map_structure(torch.zeros_like, steps.action)
    own = ReplayBuffer(buffer.data_spec, 1, len(steps.time_step.step_type))
    own.add_batch(
        nest.map_structure(lambda t: t[:, None], steps._replace(action=chosen)),
        time_major=True,
    )
    own.save().write_to(tmp_path / "own.replay")
    for source in (own, load_replay_buffer(tmp_path / "own.replay", env)):
        (tmp_path / "out.npz").unlink(missing_ok=True)
        write_source(source, env, tmp_path / "out.npz", "npz")
        again = load_replay_buffer(str(tmp_path / "out.npz"), env)
        assert_equal_steps(buffer, again)


def test_discounts_that_episodes_do_not_say_are_warned_of(tmp_path, caplog):
    env = make_env()
    np.savez(tmp_path / "a.npz", **flat_episode(4))
    loaded = load_replay_buffer(str(tmp_path / "a.npz"), env)
    steps = nest.map_structure(lambda a: torch.from_numpy(a)[:, None], rows(loaded))
    steps.time_step.discount[1:3] = 0.5
    buffer = ReplayBuffer(loaded.data_spec, 1, 5)
    buffer.add_batch(steps, time_major=True)
    write_source(buffer, env, tmp_path / "out", "alf_lite")
    write_source(loaded, env, tmp_path / "whole.npz", "npz")
    assert "discounts" not in caplog.text
    write_source(buffer, env, tmp_path / "out.npz", "npz")
    assert "2 steps have discounts that are neither 0" in caplog.text


def test_an_episode_that_was_cut_becomes_a_truncated_one(tmp_path):
    env = make_env()
    np.savez(
        tmp_path / "source.npz",
        **concatenated(flat_episode(3), flat_episode(4, begin=10, terminated=False)),
    )
    # Of the first episode two steps are left.
    buffer = load_replay_buffer(str(tmp_path / "source.npz"), env, 7)
    write_source(buffer, env, tmp_path / "out.npz", "npz")
    with np.load(tmp_path / "out.npz") as written:
        assert written["observation"][:, 0].tolist() == [2, 3, 10, 11, 12, 13, 14]
        assert written["terminated"].tolist() == [True, False, False, False, False]
        assert written["truncated"].tolist() == [False, False, False, False, True]


def test_single_steps_are_no_episodes(tmp_path):
    env = make_env()
    np.savez(tmp_path / "a.npz", **concatenated(flat_episode(3), flat_episode(2, 10)))
    # Of the first episode only the last step is left, which nothing follows.
    buffer = load_replay_buffer(str(tmp_path / "a.npz"), env, 4)
    write_source(buffer, env, tmp_path / "out.npz", "npz")
    with np.load(tmp_path / "out.npz") as written:
        assert written["observation"][:, 0].tolist() == [10, 11, 12]


@pytest.mark.parametrize("name", ["out.npz", "out"])
def test_a_buffer_without_a_transition_is_not_written(tmp_path, name):
    env = make_env()
    np.savez(tmp_path / "a.npz", **flat_episode(3))
    buffer = load_replay_buffer(str(tmp_path / "a.npz"), env, 1)
    output_format = "npz" if name.endswith(".npz") else "alf_lite"
    with pytest.raises(DataError, match="no step is followed by another"):
        write_source(buffer, env, tmp_path / name, output_format)
    assert not (tmp_path / name).exists()


@pytest.mark.filterwarnings("ignore:env_spec is None")
def test_minari_reads_the_same_episodes(tmp_path, loaded, monkeypatch):
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    env, buffer, episodes = loaded
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    write_source(buffer, env, tmp_path / "minari" / "ours" / "nested-v1", "minari")
    dataset = minari.load_dataset("ours/nested-v1")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 8)
    assert dataset.action_space["gear"] == spaces.Discrete(3, start=1)
    read = list(dataset.iterate_episodes())
    assert [len(episode.rewards) for episode in read] == [4, 1, 3]
    gear = np.concatenate([episode.actions["gear"] for episode in read])
    assert gear.tolist() == episodes["action/gear"].tolist()
    force = np.concatenate([episode.actions["force"] for episode in read])
    assert force == pytest.approx(episodes["action/force"], abs=1e-6)
    arm = np.concatenate([episode.observations["arm"][1] for episode in read])
    assert arm.tolist() == episodes["observation/arm/1"].tolist()
    picture = np.concatenate([episode.observations["picture"] for episode in read])
    assert (picture == episodes["observation/picture"]).all()
    assert [episode.terminations[-1] for episode in read] == [True] * 3


def test_a_missing_extra_says_how_to_install_it(tmp_path, loaded, monkeypatch):
    env, buffer, _ = loaded
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"pip install 'alf_lite\[minari\]'"):
        write_source(buffer, env, tmp_path / "nested-v1", "minari")
    assert not list(tmp_path.glob("*nested*"))


@pytest.mark.parametrize(
    ("name", "output_format", "message"),
    [
        ("there.npz", "npz", "exists already"),
        ("there.npz/out.npz", "npz", "cannot be written: .*there.npz is no directory"),
        ("there.npz/new/out", "alf_lite", "cannot be written: "),
        ("out", "npz", "ends in .npz"),
        ("out", "minari", "a version at the end"),
        ("out.npz", "hdf5", "must be one of alf_lite, npz, minari, got 'hdf5'"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(tmp_path, name, output_format, message):
    (tmp_path / "there.npz").write_text("old")
    with pytest.raises(ConfigError, match=message):
        check_output(tmp_path / name, output_format)


def test_a_place_that_one_may_not_write_in_is_refused(tmp_path, monkeypatch):
    check_output(tmp_path / "new" / "out", "alf_lite")
    monkeypatch.setattr("os.access", lambda place, _: place != tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        check_output(tmp_path / "new" / "out", "alf_lite")
    assert not list(tmp_path.iterdir())
