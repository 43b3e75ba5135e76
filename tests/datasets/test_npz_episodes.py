"""Episodes in .npz files become steps of the environment's specs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.step_assembly import experience_spec
from alf_lite.errors import DataError
from tests.datasets.recorded_episodes import (
    flat_episode,
    make_env,
    nested_env,
    nested_episode,
    rows,
)


def concatenate(*episodes):
    return {name: np.concatenate([e[name] for e in episodes]) for name in episodes[0]}


def test_an_episode_becomes_steps_from_first_to_last(tmp_path):
    np.savez(tmp_path / "a.npz", **flat_episode(3, begin=5))
    steps = rows(load_replay_buffer(str(tmp_path / "a.npz"), make_env()))
    time_step = steps.time_step
    assert time_step.step_type.tolist() == [0, 1, 1, 2]
    assert time_step.observation[:, 0].tolist() == [5, 6, 7, 8]
    assert time_step.reward.tolist() == [0, 12, 14, 16]
    assert time_step.discount.tolist() == [1, 1, 1, 0]
    assert time_step.env_id.tolist() == [0, 0, 0, 0]
    # A Box of [-2, 2]: half of what the environment was given.
    assert steps.action[:, 0] == pytest.approx([0.25, 0.3, 0.35, 0])
    assert time_step.prev_action[:, 0] == pytest.approx([0, 0.25, 0.3, 0.35])


def test_a_time_limit_keeps_its_discount(tmp_path):
    np.savez(tmp_path / "a.npz", **flat_episode(2, terminated=False))
    time_step = rows(load_replay_buffer(str(tmp_path), make_env())).time_step
    assert time_step.step_type.tolist() == [0, 1, 2]
    assert time_step.discount.tolist() == [1, 1, 1]


def test_a_file_may_hold_several_episodes_and_break_off(tmp_path):
    broken_off = flat_episode(3, begin=20)
    broken_off["terminated"][-1] = False
    np.savez(
        tmp_path / "a.npz",
        **concatenate(
            flat_episode(2), flat_episode(1, begin=10, terminated=False), broken_off
        ),
    )
    time_step = rows(load_replay_buffer(str(tmp_path), make_env())).time_step
    assert time_step.step_type.tolist() == [0, 1, 2, 0, 2, 0, 1, 1, 2]
    assert time_step.discount.tolist() == [1, 1, 0, 1, 1, 1, 1, 1, 1]
    observation = time_step.observation[:, 0].tolist()
    assert observation == [0, 1, 2, 10, 11, 20, 21, 22, 23]


def test_a_file_without_an_action_is_left_out(tmp_path):
    for number, length in enumerate((2, 0, 1)):
        np.savez(tmp_path / f"{number}.npz", **flat_episode(length, begin=10 * number))
    time_step = rows(load_replay_buffer(str(tmp_path), make_env())).time_step
    assert time_step.observation[:, 0].tolist() == [0, 1, 2, 20, 21]


def test_files_are_read_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 2, 1):
        episode = flat_episode(1, begin=10 * number)
        np.savez_compressed(tmp_path / f"episode_{number}.npz", **episode)
    time_step = rows(load_replay_buffer(str(tmp_path), make_env())).time_step
    assert time_step.observation[:, 0].tolist() == [10, 11, 20, 21, 100, 101]


def test_nested_observations_and_actions_are_those_of_the_agent(tmp_path):
    np.savez(tmp_path / "a.npz", **nested_episode(5))
    env = nested_env()
    buffer = load_replay_buffer(str(tmp_path), env)
    steps = rows(buffer)
    observation = steps.time_step.observation
    assert observation["arm"][0][:, 1].tolist() == [0, -1, -2, -3, -4, -5]
    assert observation["arm"][1].tolist() == [0, 1, 2, 3, 4, 0]
    assert observation["picture"][:, 1, 1].tolist() == [0, 1, 2, 3, 4, 5]
    assert steps.action["force"][:, 0].tolist() == [-1, -0.5, 0, 0.5, 1, 0]
    assert steps.action["gear"].tolist() == [0, 1, 2, 0, 1, 0]
    assert steps.time_step.prev_action["gear"].tolist() == [0, 0, 1, 2, 0, 1]
    expected = nest.map_structure(
        lambda spec: (tuple(spec.shape), spec.dtype), experience_spec(env)
    )
    stored = nest.map_structure(
        lambda t: (t.shape[1:], torch.from_numpy(t).dtype), steps
    )
    assert stored == expected


def test_actions_beyond_the_bounds_count_as_executed(tmp_path, caplog):
    episode = flat_episode(3)
    episode["action"][:] = [[-5], [1], [9]]
    np.savez(tmp_path / "a.npz", **episode)
    steps = rows(load_replay_buffer(str(tmp_path), make_env()))
    assert steps.action[:, 0].tolist() == [-1, 0.5, 1, 0]
    assert "2 of 3 actions are outside of their bounds" in caplog.text


@pytest.mark.parametrize(
    ("pixels", "is_told"),
    [([200, 0, 9, 2], True), ([200, 0, 1, 2], False), ([1, 0, 1, 0], False)],
)
def test_observations_in_other_units_are_told(tmp_path, pixels, is_told, caplog):
    observation = np.zeros((4, 2), np.uint8)
    observation[:, 1] = pixels
    path = tmp_path / "episode.npz"
    np.savez(path, **{**flat_episode(3), "observation": observation})
    load_replay_buffer(path, make_env(spaces.Box(0.0, 1.0, (2,))))
    assert ("observation is outside" in caplog.text) == is_told
    assert ("3 of 4 steps" in caplog.text) == is_told


@pytest.mark.parametrize("max_length", [1, 2, 5, 6, 7])
def test_the_newest_steps_are_kept(tmp_path, max_length):
    np.savez(tmp_path / "a.npz", **concatenate(flat_episode(2), flat_episode(2, 10)))
    whole = rows(load_replay_buffer(str(tmp_path), make_env()))
    newest = rows(load_replay_buffer(str(tmp_path), make_env(), max_length))
    assert len(newest.time_step.reward) == min(max_length, 6)
    for a, b in zip(nest.flatten(whole), nest.flatten(newest), strict=True):
        assert (a[-max_length:] == b).all()


# What is refused


def edited(**changes):
    episode = flat_episode(3)
    for name, value in changes.items():
        if value is None:
            del episode[name]
        else:
            episode[name] = value
    return episode


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terminated": None, "action": None}, "terminated, action missing"),
        ({"observation": np.zeros((3, 1))}, "observation has 3 rows, expected 4"),
        ({"action": np.zeros((2, 1))}, "action has 2 rows, but there are 3 rewards"),
        ({"cut_off": np.zeros(2, bool)}, "cut_off has 2 rows, but there are 3 rewards"),
        ({"cut_off": np.array([0, 0, 2])}, "other values than true and false"),
        ({"reward": np.float32(1)}, r"reward has the shape \(\), expected \[T\]"),
        (
            {"observation": np.zeros((4, 2))},
            r"observation: expected \(1,\) float32, found \(2,\) float64",
        ),
        (
            {"action": np.zeros(3, np.int64), "observation/x": np.zeros(4)},
            r"action: expected \(1,\) float32, found \(\) int64\n"
            r"  observation/x: expected nothing, found \(\) float64",
        ),
        ({"observation": np.zeros((4, 1), "U3")}, "found .* <U3"),
        ({"discount": np.zeros(3, np.float32)}, "discount cannot be read. Leave it"),
        ({"prev_action": np.zeros(3), "goal": np.ones(2)}, "prev_action, goal cannot"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
    np.savez(tmp_path / "a.npz", **edited(**changes))
    with pytest.raises(DataError, match=message):
        load_replay_buffer(str(tmp_path), make_env())


def test_every_difference_is_in_one_message(tmp_path):
    np.savez(tmp_path / "a.npz", **flat_episode(3))
    with pytest.raises(DataError) as error:
        load_replay_buffer(str(tmp_path), nested_env())
    lines = [line for line in str(error.value).splitlines() if ": expected " in line]
    assert [line.split(":")[0].strip() for line in lines] == [
        "action",
        "action/force",
        "action/gear",
        "observation",
        "observation/arm/0",
        "observation/arm/1",
        "observation/picture",
    ]
    assert error.value.exit_code == 3


def test_integers_out_of_range_are_named_with_their_place(tmp_path):
    episode = nested_episode(4)
    episode["observation/arm/1"][2] = 15
    np.savez(tmp_path / "a.npz", **episode)
    with pytest.raises(DataError, match=r"arm/1 is 5 at step 2 .*between 0 and 4"):
        load_replay_buffer(str(tmp_path), nested_env())


def test_integers_are_kept_exactly_or_refused(tmp_path):
    episode = nested_episode(4)
    episode["observation/picture"] = episode["observation/picture"].astype(np.int64)
    np.savez(tmp_path / "a.npz", **episode)
    steps = rows(load_replay_buffer(str(tmp_path), nested_env()))
    assert steps.time_step.observation["picture"][3, 0, 0] == 3
    episode["observation/picture"][3, 0, 1] = 256
    np.savez(tmp_path / "a.npz", **episode)
    with pytest.raises(DataError, match=r"picture\[0\]\[1\] is 256 at step 3"):
        load_replay_buffer(str(tmp_path), nested_env())


def test_python_objects_are_refused_unread(tmp_path):
    episode = edited(reward=np.array([1, 2, object()], object))
    np.savez(tmp_path / "a.npz", allow_pickle=True, **episode)
    with pytest.raises(DataError, match="reward holds Python objects: refused"):
        load_replay_buffer(str(tmp_path / "a.npz"), make_env())


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **flat_episode(500))
    path.write_bytes(path.read_bytes()[:-700])
    with pytest.raises(DataError, match=r"a.npz: damaged or truncated"):
        load_replay_buffer(str(path), make_env())


def test_a_damaged_array_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, **flat_episode(500))
    content = bytearray(path.read_bytes())
    content[1000] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a.npz: damaged or truncated"):
        load_replay_buffer(str(path), make_env())


def test_files_of_different_environments_are_not_mixed(tmp_path):
    np.savez(tmp_path / "a.npz", **flat_episode(3))
    np.savez(tmp_path / "b.npz", **edited(observation=np.zeros((4, 2))))
    with pytest.raises(DataError, match=r"(?s)not of one environment.*\(1,\).*\(2,\)"):
        load_replay_buffer(str(tmp_path), make_env())
