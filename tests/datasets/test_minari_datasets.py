"""Minari data sets become steps of the environment's specs."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from alf_lite.datasets.formats import open_source, recorded_environment
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.errors import ConfigError, DataError
from tests.datasets.recorded_episodes import (
    ACTION_SPACE,
    OBSERVATION_SPACE,
    flat_episode,
    make_env,
    nested_env,
    nested_episode,
    rows,
)

minari = pytest.importorskip("minari")
h5py = pytest.importorskip("h5py")
pytest.importorskip("PIL")
FORMATS = ["hdf5", "arrow"]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def create(name, data_format, observation_space, action_space, episodes):
    from minari.data_collector import EpisodeBuffer

    if data_format == "arrow":
        pytest.importorskip("pyarrow")
    buffers = [
        EpisodeBuffer(
            observations=e["observation"],
            actions=e["action"],
            rewards=list(e["reward"]),
            terminations=list(e["terminated"]),
            truncations=list(e["truncated"]),
            infos=e.get("env_info"),
        )
        for e in episodes
    ]
    with warnings.catch_warnings():
        # That no environment is named for evaluation.
        warnings.simplefilter("ignore", UserWarning)
        minari.create_dataset_from_buffers(
            name,
            buffers,
            observation_space=observation_space,
            action_space=action_space,
            data_format=data_format,
            algorithm_name="none",
            author="nobody",
            author_email="nobody@example.org",
            code_permalink="https://example.org",
            description="numbers",
        )


def create_for(env, name, data_format, episodes):
    spaces_of = env.vector_env
    observations = spaces_of.single_observation_space
    create(name, data_format, observations, spaces_of.single_action_space, episodes)


def create_flat(name, data_format="hdf5", num_episodes=12):
    episodes = [
        flat_episode(2 + n % 2, begin=10 * n, terminated=n % 3 > 0)
        for n in range(num_episodes)
    ]
    create_for(make_env(), name, data_format, episodes)


@pytest.mark.parametrize("data_format", FORMATS)
def test_all_episodes_are_read_in_their_order(data_format):
    create_flat("test/flat-v0", data_format)
    steps = rows(load_replay_buffer("minari:test/flat-v0", make_env()))
    time_step = steps.time_step
    numbers = [10 * n + t for n in range(12) for t in range(3 + n % 2)]
    assert time_step.observation[:, 0].tolist() == numbers
    ends = np.flatnonzero(time_step.step_type == 2)
    assert time_step.discount[ends].tolist() == [float(n % 3 == 0) for n in range(12)]
    expected = np.clip(np.array(numbers) / 20, -1, 1) * (time_step.step_type != 2)
    assert steps.action[:, 0] == pytest.approx(expected)


@pytest.mark.parametrize("data_format", FORMATS)
def test_nested_observations_and_actions(data_format):
    flat = nested_episode(5)
    episode = {
        "observation": {
            "arm": (flat["observation/arm/0"], flat["observation/arm/1"]),
            "picture": flat["observation/picture"],
        },
        "action": {"force": flat["action/force"], "gear": flat["action/gear"]},
        **{name: flat[name] for name in ("reward", "terminated", "truncated")},
    }
    create("nested-v0", data_format, OBSERVATION_SPACE, ACTION_SPACE, [episode] * 2)
    steps = rows(load_replay_buffer("minari:nested-v0", nested_env()))
    observation = steps.time_step.observation
    assert observation["arm"][0][:, 1].tolist() == [0, -1, -2, -3, -4, -5] * 2
    assert observation["arm"][1].tolist() == [0, 1, 2, 3, 4, 0] * 2
    assert observation["picture"][:, 1, 1].tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert steps.action["force"][:, 0].tolist() == [-1, -0.5, 0, 0.5, 1, 0] * 2
    assert steps.action["gear"].tolist() == [0, 1, 2, 0, 1, 0] * 2


@pytest.mark.parametrize("data_format", FORMATS)
def test_infos_are_read_where_the_environment_declares_them(data_format):
    env = make_env(env_info_keys=["speed", "elsewhere"])
    episode = flat_episode(3)
    episode["env_info"] = {"speed": [0.0, 1.0, 2.0, 3.0]}
    create_for(env, "infos-v0", data_format, [episode])
    with pytest.raises(DataError, match=r"env_info/elsewhere: .* found nothing"):
        load_replay_buffer("minari:infos-v0", env)
    buffer = load_replay_buffer("minari:infos-v0", env, zero_missing_env_info=True)
    env_info = rows(buffer).time_step.env_info
    assert env_info["speed"].tolist() == [0, 1, 2, 3]
    assert env_info["elsewhere"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("data_format", FORMATS)
def test_infos_may_be_numbers_in_an_array_and_nested(data_format):
    env = make_env(env_info_keys=["speed", "inner"])
    episode = flat_episode(3)
    inner = {"deep": [np.array(float(t)) for t in range(4)]}
    episode["env_info"] = {"speed": np.arange(4.0), "inner": inner}
    create_for(env, "infos-v0", data_format, [episode])
    source = open_source("minari:infos-v0")
    [(_, steps)] = source.sequences()
    assert steps["env_info/speed"].tolist() == [0, 1, 2, 3]
    assert steps["env_info/inner/deep"].tolist() == [0, 1, 2, 3]


def test_infos_that_nobody_asks_for_may_be_of_any_kind():
    env = make_env(env_info_keys=["speed"])
    episodes = [flat_episode(3), flat_episode(3)]
    episodes[0]["env_info"] = {"speed": np.zeros(4), "note": np.zeros((4, 2))}
    episodes[1]["env_info"] = {"speed": np.ones(4), "note": np.zeros(4, int)}
    create_for(env, "infos-v0", "hdf5", episodes)
    steps = rows(load_replay_buffer("minari:infos-v0", env)).time_step
    assert steps.env_info["speed"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert load_replay_buffer("minari:infos-v0", make_env()).total_size == 8
    other = make_env(env_info_keys=["note"])
    with pytest.raises(DataError, match="env_info/note"):
        load_replay_buffer("minari:infos-v0", other)


def test_the_directory_names_a_data_set_too(root):
    create_flat("test/flat-v0")
    for path in (root / "test/flat-v0", root / "test/flat-v0/data"):
        assert load_replay_buffer(str(path), make_env()).total_size == 42


def test_the_newest_steps_are_kept():
    create_flat("flat-v0", num_episodes=3)
    steps = rows(load_replay_buffer("minari:flat-v0", make_env(), 5))
    assert steps.time_step.observation[:, 0].tolist() == [12, 13, 20, 21, 22]


def test_a_data_set_says_its_specs_in_place_of_an_environment(root):
    create_flat("flat-v0")
    env = recorded_environment("minari:flat-v0")
    assert env.action_spec == make_env().action_spec
    assert env.observation_spec == make_env().observation_spec
    buffer = load_replay_buffer("minari:flat-v0", env)
    expected = rows(load_replay_buffer("minari:flat-v0", make_env()))
    assert (rows(buffer).action == expected.action).all()
    np.savez(root / "a.npz", **flat_episode(3))
    with pytest.raises(ConfigError, match="does not say the spaces"):
        recorded_environment(str(root / "a.npz"))


# What is refused


def test_one_that_was_just_written_is_found_by_its_path(tmp_path, monkeypatch):
    create_flat("flat-v0")
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
    assert open_source(f"minari:{tmp_path.name}/flat-v0").lengths


def test_a_missing_data_set_lists_those_there_are():
    create_flat("test/flat-v0")
    with pytest.raises(
        DataError, match=r"(?s)no such data set.*there are test/flat-v0"
    ):
        load_replay_buffer("minari:test/other-v0", make_env())


def test_other_specs_are_named():
    create_flat("flat-v0")
    with pytest.raises(
        DataError, match=r"observation/picture: expected \(2, 2\) uint8"
    ):
        load_replay_buffer("minari:flat-v0", nested_env())


@pytest.mark.parametrize(
    ("action_space", "is_told"),
    [
        (spaces.Box(-2.0, 2.0, (1,), np.float64), False),
        (spaces.Box(-1.0, 1.0, (1,)), True),
        (spaces.Box(-4.0, 2.0, (1,)), True),
        (spaces.Box(-np.inf, np.inf, (1,)), True),
    ],
)
def test_actions_of_another_space_are_told(action_space, is_told, caplog):
    create_flat("test/flat-v0")  # recorded from -2 to 2
    load_replay_buffer("minari:test/flat-v0", make_env(action_space=action_space))
    told = [r for r in caplog.records if "RescaleAction" in r.getMessage()]
    assert len(told) == is_told


@pytest.mark.parametrize("start", [0, -1])
def test_integers_that_count_from_elsewhere_are_told(start, caplog):
    episode = {**flat_episode(2), "action": np.array([0, 1])}
    observation_space = make_env().vector_env.single_observation_space
    space = spaces.Discrete(2)
    create("test/gears-v0", "hdf5", observation_space, space, [episode])
    env = make_env(action_space=spaces.Discrete(3, start=start))
    load_replay_buffer("minari:test/gears-v0", env)
    assert ("RescaleAction" in caplog.text) == (start != 0)


def test_a_truncated_file_is_refused(root):
    create_flat("flat-v0")
    file = root / "flat-v0/data/main_data.hdf5"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(DataError, match="damaged or truncated"):
        load_replay_buffer("minari:flat-v0", make_env())


def test_a_minari_without_what_reads_its_arrow_files_is_named(monkeypatch):
    create_flat("flat-v0", "arrow")
    storage = pytest.importorskip("minari.dataset._storages.arrow_storage")
    monkeypatch.delattr(storage, "_decode_space")
    message = (
        r"flat-v0/data: the Arrow files of Minari \S+ cannot be read yet\. Install"
    )
    with pytest.raises(ConfigError, match=message):
        load_replay_buffer("minari:flat-v0", make_env())


def test_no_environment_is_built_to_learn_the_spaces(root):
    create_flat("flat-v0")
    file = root / "flat-v0/data/metadata.json"
    metadata = json.loads(file.read_text())
    del metadata["observation_space"]
    file.write_text(json.dumps({**metadata, "env_spec": '{"id": "Pendulum-v1"}'}))
    with pytest.raises(DataError, match=r"does not say its \['observation_space'\]"):
        load_replay_buffer("minari:flat-v0", make_env())


def test_a_data_set_without_episodes_is_refused(root):
    create_flat("flat-v0")
    file = root / "flat-v0/data/metadata.json"
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps({**metadata, "total_episodes": 0, "total_steps": 0}))
    with pytest.raises(DataError, match=r"say 0 episodes, main_data.hdf5 has 12"):
        load_replay_buffer("minari:flat-v0", make_env())
    with h5py.File(file.with_name("main_data.hdf5"), "a") as data:
        data.clear()
    with pytest.raises(DataError, match="there are no steps"):
        load_replay_buffer("minari:flat-v0", make_env())
