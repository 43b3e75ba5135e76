"""Fields are what the first part of their path says, whatever else is in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.data_structures import Experience
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.step_assembly import experience_spec
from alf_lite.errors import DataError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from tests.datasets.alf_files import AlfRing
from tests.datasets.recorded_episodes import make_env, rows

# Every name has "action" in it, and none of these is an action.
SPACE = spaces.Dict(
    {
        "action_mask": spaces.MultiBinary(3),
        "last_action": spaces.Box(-9.0, 9.0, (2,)),
        "prev_action": spaces.Dict({"action": spaces.Box(-9.0, 9.0, (1,))}),
    }
)
LENGTH = 5  # steps of one episode


def env(**kwargs):
    return make_env(SPACE, **kwargs)


def observations() -> dict[str, np.ndarray]:
    """By their paths, nowhere zero as a whole."""
    t = np.arange(LENGTH, dtype=np.float32)
    return {
        "action_mask": np.tile(np.array([1, 0, 1], np.int8), (LENGTH, 1)),
        "last_action": np.stack([t, -t], 1) + 1,
        "prev_action/action": t[:, None] + 4,
    }


def write_npz(path):
    end = np.arange(LENGTH - 1) == LENGTH - 2
    arrays = {
        "action": np.full((LENGTH - 1, 1), 0.5, np.float32),
        "reward": np.ones(LENGTH - 1, np.float32),
        "terminated": end,
        "truncated": ~end & False,
    }
    for name, array in observations().items():
        arrays[f"observation/{name}"] = array
    np.savez(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def write_alf(path):
    ring = AlfRing(1, LENGTH)
    for t in range(LENGTH):
        observation = {
            "action_mask": torch.from_numpy(observations()["action_mask"][t]),
            "last_action": torch.from_numpy(observations()["last_action"][t]),
            "prev_action": {
                "action": torch.from_numpy(observations()["prev_action/action"][t])
            },
        }
        time_step = {
            "step_type": torch.tensor(
                0 if t == 0 else 2 if t == LENGTH - 1 else 1, dtype=torch.int32
            ),
            "reward": torch.tensor(float(t > 0)),
            "discount": torch.tensor(float(t < LENGTH - 1)),
            "observation": observation,
            "prev_action": torch.tensor([0.25 if t else 0.0]),
        }
        ring.add(0, {"time_step": time_step, "action": torch.tensor([0.25])})
    return ring.save(path)


def write_own(path, lengths=(LENGTH, LENGTH - 1)):
    """As many steps of one environment as of the other would be loaded directly."""
    spec = experience_spec(env())
    buffer = ReplayBuffer(spec, len(lengths), LENGTH)
    for e, length in enumerate(lengths):
        for t in range(length):
            step = nest.zeros(spec, (1,))
            mask, last, previous = (x[t : t + 1] for x in observations().values())
            step = step._replace(
                time_step=step.time_step._replace(
                    step_type=torch.tensor([min(t, 1) + (t == length - 1)]).int(),
                    observation={
                        "action_mask": torch.from_numpy(mask),
                        "last_action": torch.from_numpy(last),
                        "prev_action": {"action": torch.from_numpy(previous)},
                    },
                    prev_action=torch.full((1, 1), 0.25 if t else 0.0),
                )
            )
            buffer.add_batch(step, torch.tensor([e]))
    buffer.save().write_to(path)
    return path


def write_minari(path):
    pytest.importorskip("minari")
    pytest.importorskip("h5py")
    pytest.importorskip("PIL")
    from alf_lite.datasets.writing import write_source

    buffer = load_replay_buffer(str(write_npz(path)), env())
    directory = path.with_name("data-v0")
    write_source(buffer, env(), directory, "minari")
    return directory


@pytest.mark.parametrize("write", [write_npz, write_alf, write_own, write_minari])
def test_what_is_called_like_an_action_is_loaded_as_it_is(tmp_path, write):
    steps = rows(load_replay_buffer(str(write(tmp_path / "data")), env()))
    found = steps.time_step.observation
    expected = observations()
    assert found["action_mask"].tolist() == expected["action_mask"].tolist()
    assert found["last_action"].tolist() == expected["last_action"].tolist()
    previous = found["prev_action"]["action"].tolist()
    assert previous == expected["prev_action/action"].tolist()
    assert steps.action[:, 0].tolist() == [0.25] * (LENGTH - 1) + [0]
    assert steps.time_step.prev_action[:, 0].tolist() == [0] + [0.25] * (LENGTH - 1)


def test_direct_and_field_by_field_loading_agree(tmp_path):
    direct = load_replay_buffer(
        write_own(tmp_path / "a", (LENGTH, LENGTH)), env(), LENGTH * 2
    )
    converted = load_replay_buffer(write_own(tmp_path / "b", (LENGTH, 3)), env())
    for (path, a), (_, b) in zip(
        nest.flatten_with_path(rows(direct).time_step),
        nest.flatten_with_path(rows(converted).time_step),
        strict=True,
    ):
        assert a.tolist() == b.tolist(), path


def test_two_leaves_of_one_path_are_refused(tmp_path):
    space = spaces.Box(-9.0, 9.0, (1,))
    nested = spaces.Dict({"a": spaces.Dict({"b": space}), "a/b": space})
    with pytest.raises(DataError, match="would be the recorded field observation/a/b"):
        load_replay_buffer(str(write_own(tmp_path / "data")), make_env(nested))


def test_nothing_is_made_up_for_what_was_not_recorded(tmp_path):
    path = str(write_own(tmp_path / "data"))
    other = env(env_info_keys=["speed"])
    with pytest.raises(
        DataError, match=r"(?s)env_info/speed: expected .* found nothing.*zero_missing"
    ):
        load_replay_buffer(path, other)
    buffer = load_replay_buffer(path, other, zero_missing_env_info=True)
    assert rows(buffer).time_step.env_info["speed"].tolist() == [0.0] * LENGTH
    assert isinstance(buffer.data_spec, Experience)
