"""Files as D4RL's become the same steps as the episodes that they were made from."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite import nest
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.errors import DataError
from tests.datasets.recorded_episodes import flat_episode, make_env, rows

h5py = pytest.importorskip("h5py")


def arrays_of(episodes):
    """What D4RL would write of these episodes of npz files."""
    parts = {
        "observations": [e["observation"][:-1] for e in episodes],
        "next_observations": [e["observation"][1:] for e in episodes],
        "actions": [e["action"] for e in episodes],
        "rewards": [e["reward"] for e in episodes],
        "terminals": [e["terminated"] for e in episodes],
        "timeouts": [e["truncated"] for e in episodes],
    }
    return {name: np.concatenate(part) for name, part in parts.items()}


def write(path, arrays, left_out=()):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if name not in left_out:
                file[name] = array
        file["metadata/algorithm"] = "SAC"
        file["infos/qpos"] = np.zeros((len(arrays["rewards"]), 3))
    return str(path)


def read(path):
    return rows(load_replay_buffer(path, make_env()))


# The last one breaks off, as a file that was cut.
EPISODES = [
    flat_episode(3),
    flat_episode(2, begin=10, terminated=False),
    flat_episode(4, begin=20),
]


@pytest.mark.parametrize("left_out", [(), ("timeouts",)])
def test_its_steps_are_those_of_the_episodes(tmp_path, left_out):
    path = write(tmp_path / "d4rl.hdf5", arrays_of(EPISODES), left_out)
    for i, episode in enumerate(EPISODES):
        np.savez(tmp_path / f"episode_{i}.npz", **episode)
    expected, found = read(str(tmp_path)), read(path)
    for (name, a), b in zip(
        nest.flatten_with_path(expected), nest.flatten(found), strict=True
    ):
        assert a.tolist() == b.tolist(), name


def test_where_rows_were_left_out_an_episode_is_cut(tmp_path):
    arrays = {name: np.delete(a, 1, 0) for name, a in arrays_of(EPISODES).items()}
    time_step = read(write(tmp_path / "a.hdf5", arrays)).time_step
    assert time_step.observation[:5, 0].tolist() == [0, 1, 2, 3, 10]
    assert time_step.step_type[:5].tolist() == [0, 2, 0, 2, 0]
    assert time_step.discount[:5].tolist() == [1, 1, 1, 0, 1]


def test_rounding_ends_no_episode(tmp_path, caplog):
    arrays = arrays_of(EPISODES)
    for name in ("observations", "next_observations"):
        arrays[name] = 1e3 * np.sin(arrays[name].astype(np.float64))
    expected = read(write(tmp_path / "a.hdf5", arrays))
    arrays["observations"] = arrays["observations"].astype(np.float32)
    found = read(write(tmp_path / "b.hdf5", arrays))
    assert (found.time_step.step_type == expected.time_step.step_type).all()
    assert not any("end an episode only because" in r.message for r in caplog.records)
    arrays["next_observations"] = np.roll(arrays["next_observations"], 1, 0)
    read(write(tmp_path / "c.hdf5", arrays))
    assert "6 of 9 rows end an episode only because" in caplog.text


def test_numbers_may_be_columns(tmp_path):
    arrays = arrays_of(EPISODES)
    expected = read(write(tmp_path / "a.hdf5", arrays))
    for name in ("rewards", "terminals", "timeouts"):
        arrays[name] = arrays[name][:, None]
    found = read(write(tmp_path / "b.hdf5", arrays))
    for a, b in zip(nest.flatten(expected), nest.flatten(found), strict=True):
        assert (a == b).all()
    arrays["terminals"] = arrays["terminals"].repeat(2, 1)
    with pytest.raises(DataError, match=r"terminals is \(9, 2\)"):
        read(write(tmp_path / "c.hdf5", arrays))


def test_a_file_that_cannot_tell_limits_is_warned_of(tmp_path, caplog):
    neither = ["next_observations", "timeouts"]
    read(write(tmp_path / "a.hdf5", arrays_of(EPISODES), neither))
    assert "has neither timeouts nor next_observations" in caplog.text


def test_an_action_whose_result_nobody_knows_is_left_out(tmp_path, caplog):
    path = write(tmp_path / "a.hdf5", arrays_of(EPISODES), ["next_observations"])
    time_step = read(path).time_step
    assert "has neither" not in caplog.text
    assert time_step.step_type.tolist() == [0, 1, 1, 2, 0, 2, 0, 1, 1, 1, 2]
    assert time_step.discount.tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0]
    observation = time_step.observation[:, 0].tolist()
    assert observation == [0, 1, 2, 2, 10, 11, 20, 21, 22, 23, 23]
    assert "in place of each of 2 terminal states is the" in caplog.text
    caplog.clear()
    read(write(tmp_path / "b.hdf5", arrays_of(EPISODES)))
    assert "terminal states" not in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": None}, "rewards missing; it has actions, infos"),
        ({"actions": np.zeros((3, 1))}, r"actions is \(3, 1\), but rewards \(9,\)"),
        ({"terminals": np.full(9, 2)}, "other values than true and false"),
        ({"actions": np.full((9, 1), b"x")}, "no numbers"),
        ({"next_observations": np.zeros((9, 5))}, "next_observations differ"),
    ],
)
def test_a_file_that_is_not_of_d4rl_is_refused(tmp_path, change, message):
    arrays = {**arrays_of(EPISODES), **change}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file["infos"] = np.zeros(9)
    with pytest.raises(DataError, match=message):
        read(str(tmp_path / "a.hdf5"))


def test_a_cut_file_and_links_are_refused(tmp_path):
    path = tmp_path / "a.hdf5"
    write(path, arrays_of(EPISODES))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.hdf5"):
        read(str(path))
    path.unlink()
    write(path, arrays_of(EPISODES), ["rewards"])
    with h5py.File(path, "a") as file:
        file["rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")
    with pytest.raises(DataError, match="link"):
        read(str(path))
