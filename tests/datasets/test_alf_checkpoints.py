"""Rings of ALF become chronological rows of what was written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.environments.creation import create_environment
from alf_lite.errors import DataError
from tests.datasets.alf_files import AlfRing, alf_ring, alf_step
from tests.datasets.recorded_episodes import make_env, nested_env, rows

# A buffer of Pendulum that ALF ships: 600 rows, 10000 steps written.
REAL_FILE = (
    Path(__file__).parents[3] / "shared/data/alf/pendulum_replay_buffer_from_sac"
)


@pytest.mark.parametrize("num_steps", [1, 3, 9, 10, 11, 15, 20, 37])
def test_what_was_written_comes_in_the_order_of_time(tmp_path, num_steps):
    file = alf_ring([num_steps], length=10).save(tmp_path / "replay")
    steps = rows(load_replay_buffer(file, make_env()))
    time_step = steps.time_step
    numbers = range(max(num_steps - 10, 0), num_steps)
    expected = [alf_step(number, 4)["time_step"] for number in numbers]
    assert time_step.observation[:, 0].tolist() == list(numbers)
    assert time_step.reward.tolist() == [float(s["reward"]) for s in expected]
    assert time_step.discount.tolist() == [float(s["discount"]) for s in expected]
    step_types = [int(s["step_type"]) for s in expected]
    assert time_step.step_type.tolist() == [*step_types[:-1], 2]
    assert time_step.prev_action[:, 0] == pytest.approx(
        [float(s["prev_action"]) for s in expected]
    )


def test_the_action_of_a_step_is_what_led_to_the_next(tmp_path):
    ring = alf_ring([7], length=10)
    # The policy's choice was replaced when it was executed.
    ring.rings["time_step", "prev_action"][0, 2] = 0.75
    steps = rows(load_replay_buffer(ring.save(tmp_path / "replay"), make_env()))
    assert steps.action[:, 0] == pytest.approx([0, 0.75, 0.002, 0.003, 0, 0.005, 0])


def test_files_without_previous_actions_have_the_chosen_ones(tmp_path):
    ring = alf_ring([7], length=10)
    del ring.rings["time_step", "prev_action"]
    steps = rows(load_replay_buffer(ring.save(tmp_path / "replay"), make_env()))
    assert steps.action[:, 0] == pytest.approx([0, 0.001, 0.002, 0.003, 0, 0.005, 0])
    assert steps.time_step.prev_action[:, 0] == pytest.approx(
        [0, 0, 0.001, 0.002, 0.003, 0, 0.005]
    )


def test_files_without_rollout_info_are_read(tmp_path):
    ring = alf_ring([7], length=10)
    for path in [p for p in ring.rings if p[0] in ("rollout_info", "action")]:
        del ring.rings[path]
    steps = rows(load_replay_buffer(ring.save(tmp_path / "replay"), make_env()))
    assert steps.action[:, 0] == pytest.approx([0, 0.001, 0.002, 0.003, 0, 0.005, 0])


def test_environments_are_rows_of_their_own_lengths(tmp_path):
    file = alf_ring([23, 0, 4], length=10).save(tmp_path / "replay")
    buffer = load_replay_buffer(file, make_env())
    assert buffer.sizes.tolist() == [10, 0, 4]
    last = rows(buffer, 2).time_step
    assert last.observation[:, 0].tolist() == [200, 201, 202, 203]
    assert last.env_id.tolist() == [2] * 4
    assert last.step_type.tolist() == [0, 1, 1, 2]
    assert last.discount.tolist() == [1] * 4
    assert rows(buffer, 0).time_step.observation[0] == 13


def test_the_newest_steps_of_all_environments_are_kept(tmp_path):
    file = alf_ring([23, 4], length=10).save(tmp_path / "replay")
    buffer = load_replay_buffer(file, make_env(), 9)
    assert buffer.sizes.tolist() == [5, 4]
    assert rows(buffer).time_step.observation[:, 0].tolist() == [18, 19, 20, 21, 22]


def test_an_episode_that_breaks_off_inside_is_ended_there(tmp_path):
    ring = AlfRing(1, 10)
    for number in (0, 1, 2, 5, 6, 7):  # resumed after 2: the environment was reset
        ring.add(0, alf_step(number, 4))
    steps = rows(load_replay_buffer(ring.save(tmp_path / "replay"), make_env()))
    assert steps.time_step.step_type.tolist() == [0, 1, 2, 0, 1, 2]
    assert steps.time_step.discount.tolist() == [1] * 6
    assert steps.action[:, 0] == pytest.approx([0, 0.001, 0, 0.005, 0.006, 0])


def test_nested_observations_and_actions(tmp_path):
    ring = AlfRing(1, 4)
    for number in range(6):
        step = alf_step(number, 9)
        step["time_step"]["observation"] = {
            "arm": {
                "0": torch.tensor([number, -number]).float(),
                "1": torch.tensor(number % 5),
            },
            "picture": torch.full((2, 2), number, dtype=torch.uint8),
        }
        step["time_step"]["prev_action"] = {
            "force": torch.tensor([number / 10]),
            "gear": torch.tensor(number % 3),
        }
        step["action"] = {"gear": torch.tensor(0), "force": torch.zeros(1)}
        ring.add(0, step)
    steps = rows(load_replay_buffer(ring.save(tmp_path / "replay"), nested_env()))
    observation = steps.time_step.observation
    assert observation["arm"][0][:, 1].tolist() == [-2, -3, -4, -5]
    assert observation["arm"][1].tolist() == [2, 3, 4, 0]
    assert observation["picture"][:, 0, 1].tolist() == [2, 3, 4, 5]
    assert steps.action["force"][:, 0] == pytest.approx([0.3, 0.4, 0.5, 0])
    assert steps.action["gear"].tolist() == [0, 1, 2, 0]


def test_positions_within_the_ring_mean_the_same(tmp_path):
    ring = alf_ring([23], length=10)
    ring.position %= 10
    steps = rows(load_replay_buffer(ring.save(tmp_path / "replay"), make_env()))
    assert steps.time_step.observation[:, 0].tolist() == list(range(13, 23))


def test_the_newest_checkpoint_of_a_run_is_read(tmp_path):
    directory = tmp_path / "train/algorithm"
    directory.mkdir(parents=True)
    for step in (9, 10):
        alf_ring([step], 20).save(directory / f"ckpt-{step}-replay_buffer")
    (directory / "ckpt-11").write_text("parameters")
    for path in (tmp_path, directory):
        assert load_replay_buffer(str(path), make_env()).total_size == 10


def test_files_of_old_versions_of_torch_are_read(tmp_path):
    ring = alf_ring([7], length=10)
    file = ring.save(tmp_path / "replay", _use_new_zipfile_serialization=False)
    assert load_replay_buffer(file, make_env()).total_size == 7


# What is refused


def test_every_field_that_differs_is_named(tmp_path):
    file = alf_ring([7], length=10).save(tmp_path / "replay")
    with pytest.raises(DataError) as error:
        load_replay_buffer(file, nested_env())
    message = str(error.value)
    assert "observation: expected nothing, found (1,) float32\n" in message
    assert "observation/picture: expected (2, 2) uint8, found nothing\n" in message
    assert "prev_action/gear: expected () int64, found nothing\n" in message


@pytest.mark.parametrize("is_new", [True, False])
def test_a_file_that_wants_to_run_code_is_refused_by_name(tmp_path, is_new):
    witness = tmp_path / "witness"

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {witness}",)

    file = tmp_path / "replay"
    torch.save({"a": Hostile()}, file, _use_new_zipfile_serialization=is_new)
    with pytest.raises(DataError, match=r"refused.*wants to call posix\.system"):
        load_replay_buffer(str(file), make_env())
    assert not witness.exists()


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path, kept):
    file = Path(alf_ring([300], length=400).save(tmp_path / "replay"))
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DataError, match=r"replay: "):
        load_replay_buffer(str(file), make_env())


def test_an_empty_buffer_is_refused(tmp_path):
    ring = alf_ring([7], length=10)
    ring.size[:] = 0
    with pytest.raises(DataError, match="there are no steps"):
        load_replay_buffer(ring.save(tmp_path / "replay"), make_env())


def test_a_checkpoint_without_replay_buffer_is_refused(tmp_path):
    torch.save({"algorithm": {"_net.weight": torch.ones(3)}}, tmp_path / "ckpt-1")
    with pytest.raises(DataError, match="expected the tensors of one replay buffer"):
        load_replay_buffer(str(tmp_path / "ckpt-1"), make_env())


def test_sizes_that_cannot_be_are_refused(tmp_path):
    ring = alf_ring([7], length=10)
    ring.size[:] = 11
    with pytest.raises(DataError, match=r"_current_size is \[11\] in rings of 10"):
        load_replay_buffer(ring.save(tmp_path / "replay"), make_env())


def test_actions_of_other_units_are_warned_of(tmp_path, caplog):
    ring = alf_ring([7], length=10)
    ring.rings["time_step", "prev_action"] *= 1000
    load_replay_buffer(ring.save(tmp_path / "replay"), make_env())
    [record] = [r for r in caplog.records if r.levelname == "WARNING"]
    assert "3 of 5 actions are outside of their bounds" in record.getMessage()


@pytest.mark.skipif(not REAL_FILE.exists(), reason="needs the file that ALF ships")
def test_a_file_that_alf_wrote():
    with create_environment("Pendulum-v1") as env:
        steps = rows(load_replay_buffer(str(REAL_FILE), env))
    time_step = steps.time_step
    assert len(time_step.reward) == 600
    assert np.flatnonzero(time_step.step_type == 0).tolist() == [47, 248, 449]
    assert np.flatnonzero(time_step.step_type == 2).tolist() == [46, 247, 448, 599]
    # Torque 2 · action, through the equation of motion.
    cos, sin, speed = time_step.observation.T
    angle = np.arctan2(sin, cos)
    predicted = np.clip(speed + (15 * sin + 6 * steps.action[:, 0]) * 0.05, -8, 8)
    moves = time_step.step_type[:-1] != 2
    assert predicted[:-1][moves] == pytest.approx(speed[1:][moves], abs=1e-5)
    cost = angle**2 + 0.1 * speed**2 + 0.001 * (2 * steps.action[:, 0]) ** 2
    assert -cost[:-1][moves] == pytest.approx(time_step.reward[1:][moves], abs=1e-4)
