"""A file of steps is read without the buffer, the specs or the algorithm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from alf_lite import nest
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.distributions import functions  # noqa: F401  (registers the nodes)
from alf_lite.errors import CheckpointError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import DIGEST_PLACE, FILE_NAME, ReplayFile
from alf_lite.tensor_specs import TensorSpec
from tests.replay_buffers.marked_steps import fill, make_buffer, saved, steps


@pytest.fixture
def buffer() -> ReplayBuffer:
    """Environment 0 has positions 3 to 8, environment 1 one step more: 4 to 9."""
    buffer = make_buffer(2, 6)
    fill(buffer, 9)
    buffer.add_batch(steps([1], [9]), torch.tensor([1]))
    return buffer


@pytest.fixture
def file(buffer, tmp_path) -> ReplayFile:
    return saved(buffer, tmp_path)


def test_a_file_says_what_is_in_it(file):
    assert file.num_environments == 2
    assert file.lengths.tolist() == [6, 6]
    assert (file.begin.tolist(), file.end.tolist()) == ([3, 4], [9, 10])
    assert file.specs == {
        "time_step.step_type": TensorSpec((), torch.int32),
        "time_step.reward": TensorSpec(()),
        "time_step.observation['frame']": TensorSpec((2, 2), torch.uint8),
        "time_step.observation['position']": TensorSpec((), torch.int64),
        "action": TensorSpec((2,)),
    }


@pytest.mark.parametrize(("begin", "end"), [(0, None), (0, 6), (2, 5), (6, 6), (4, 4)])
def test_steps_are_read_in_the_order_of_time(file, begin, end):
    for env_id, oldest in ((0, 3), (1, 4)):
        positions = torch.arange(oldest, oldest + 6)[begin:end]
        expected = steps(torch.full_like(positions, env_id), positions)
        got = file.read(env_id, begin, end)
        assert isinstance(got, Experience)
        assert isinstance(got.time_step, TimeStep)
        for a, b in zip(nest.flatten(expected), nest.flatten(got), strict=True):
            assert torch.equal(a, b)
            assert a.dtype == b.dtype


def test_steps_that_are_not_there_are_refused(file):
    for env_id in (-1, 2):
        with pytest.raises(IndexError, match=f"no environment {env_id}; it has 2"):
            file.read(env_id)
    for begin, end in ((0, 7), (-1, 2), (5, 4)):
        with pytest.raises(IndexError, match=f"no steps {begin} to {end}.* has 6"):
            file.read(0, begin, end)


def test_what_is_read_is_mapped_and_not_copied(file):
    first, second = (file.read(0).time_step.reward for _ in range(2))
    assert first.data_ptr() == second.data_ptr()
    before = file.path.read_bytes()
    first.fill_(7.0)  # private to this process
    assert file.path.read_bytes() == before


def test_steps_stay_readable_when_the_file_is_deleted(file):
    file.path.unlink()
    assert file.read(0).time_step.reward.tolist() == [3, 4, 5, 6, 7, 8]


def test_an_empty_buffer_makes_an_empty_file(tmp_path):
    file = saved(make_buffer(2, 5), tmp_path)
    assert file.lengths.tolist() == [0, 0]
    assert file.read(1).action.shape == (0, 2)


def test_a_structure_is_filled_by_path(file):
    class Observed(NamedTuple):
        action: Any = ()
        time_step: Any = ()

    wanted = Observed(action=0, time_step={"reward": 0})
    with pytest.raises(ValueError, match=r"no time_step\['reward'\]; it has .*reward"):
        file.read(0, structure=wanted)
    got = file.read(1, 1, 3, Observed(action=0, time_step=TimeStep(reward=0)))
    assert got.time_step.reward.tolist() == [105, 106]
    assert got.action.tolist() == [[105, -105], [106, -106]]


def test_nodes_that_only_an_algorithm_knows_become_dicts(tmp_path):
    class Info(NamedTuple):
        policy: Any = ()
        parts: Any = ()

    info = Info(
        policy=Categorical(logits=torch.zeros(1, 3), validate_args=False),
        parts=(torch.ones(1), (), [torch.full((1,), 2.0)]),
    )
    experience = Experience(time_step=TimeStep(reward=torch.ones(1)), rollout_info=info)
    buffer = ReplayBuffer(nest.extract_spec(experience), 1, 3)
    buffer.add_batch(experience)
    file = saved(buffer, tmp_path)
    got = file.read(0).rollout_info
    assert set(got) == {"policy", "parts"}
    assert got["parts"][0].tolist() == [1]
    assert got["parts"][1] == ()
    assert got["parts"][2][0].tolist() == [2]
    assert [tuple(leaf.shape) for leaf in nest.flatten(got["policy"])] == [(1, 3)]
    # Who knows the algorithm gets its own types.
    known = file.read(0, structure=buffer.data_spec)
    assert isinstance(known.rollout_info.policy, Categorical)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float64, torch.bool, torch.int8, torch.complex64]
)
def test_dtypes_are_kept(tmp_path, dtype):
    values = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(dtype)
    buffer = ReplayBuffer({"x": TensorSpec((3,), dtype), "y": TensorSpec(())}, 2, 3)
    buffer.add_batch({"x": values, "y": torch.ones(2)})
    file = saved(buffer, tmp_path)
    for env_id in range(2):
        assert torch.equal(
            file.read_leaves(env_id)["['x']"], values[env_id : 1 + env_id]
        )


def test_a_buffer_of_one_tensor_has_no_paths(tmp_path):
    buffer = ReplayBuffer(TensorSpec(()), 1, 3)
    buffer.add_batch(torch.tensor([[1.0], [2.0]]), time_major=True)
    assert saved(buffer, tmp_path).read(0).tolist() == [1, 2]


def test_a_file_can_be_written_once_more(file, tmp_path):
    stream = file.as_stream()
    again = b"".join(stream.pieces())
    assert again == file.path.read_bytes()
    assert stream.num_bytes == len(again)


# Where it is


def test_a_file_is_found_in_its_checkpoint_and_verified(buffer, tmp_path):
    stream = buffer.save()
    path = Checkpointer(tmp_path).save(7, {}, mapped_files={FILE_NAME: stream})
    for place in (path, path / FILE_NAME):
        assert ReplayFile(place).lengths.tolist() == [6, 6]
    data = bytearray((path / FILE_NAME).read_bytes())
    data[4200] ^= 1
    (path / FILE_NAME).write_bytes(data)
    with pytest.raises(CheckpointError, match="does not match its sha256"):
        ReplayFile(path)
    assert ReplayFile(path, verify=False).num_environments == 2


def test_where_there_is_no_file_it_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="checkpoint_replay_buffer = True"):
        ReplayFile(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        ReplayFile(tmp_path / "nowhere")


# Damaged files


def test_every_changed_bit_of_a_file_of_its_own_is_found(file):
    data = file.path.read_bytes()
    ReplayFile(file.path)
    for place in [DIGEST_PLACE, DIGEST_PLACE + 63, *range(0, len(data), 97), -1]:
        damaged = bytearray(data)
        damaged[place] ^= 4
        file.path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=str(file.path)):
            ReplayFile(file.path)


def with_header(data: bytes, change: Callable[[dict], Any]) -> bytes:
    """The file with another header in front of the same arrays."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def metadata(**texts: Any) -> Callable[[dict], Any]:
    return lambda header: header["__metadata__"].update(
        {k: v if isinstance(v, str) else json.dumps(v) for k, v in texts.items()}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (metadata(format="other"), "its format is 'other'"),
        (lambda header: header.pop("__metadata__"), "its format is None"),
        (lambda header: header.pop("rows"), "lies at"),
        (lambda header: header["rows"].update(dtype="F33"), "unknown dtype 'F33'"),
        (lambda header: header["begin"].update(shape=[-1]), r"shape \(-1,\)"),
        (lambda header: header["begin"].update(shape=["2"]), "shape"),
        (lambda header: header["end"].update(dtype="F64"), "do not fit 12 rows"),
        (lambda header: header["rows"].update(shape=[1, 384]), "do not fit 1 rows"),
        (metadata(leaves=[["action", [2], "float33", 0]]), "float33"),
        (metadata(leaves=[["action", [2], "float32", -8]]), "inside of a row"),
        (metadata(leaves=[["action", [2], "float32", 1]]), "inside of a row"),
        (metadata(leaves=[["action", [10**9], "float32", 0]]), "inside of a row"),
        (metadata(leaves=[["action", [-1, -2], "float32", 0]]), "replay buffer"),
        (metadata(leaves=3), "nothing about the leaves"),
        (metadata(leaves="{"), "replay buffer"),
        (lambda header: header["__metadata__"].pop("numbers"), "numbers"),
    ],
)
def test_a_damaged_header_is_refused_with_its_reason(file, change, message):
    file.path.write_bytes(with_header(file.path.read_bytes(), change))
    with pytest.raises(CheckpointError, match=message) as error:
        ReplayFile(file.path, verify=False)
    assert str(file.path) in str(error.value)


def test_positions_that_make_no_sense_are_refused(file):
    data = bytearray(file.path.read_bytes())
    begin = np.array([-3, 4 + 6]).tobytes()
    data[-32:-16] = begin
    file.path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"positions \[-3, 10\] to \[9, 10\]"):
        ReplayFile(file.path, verify=False)


@pytest.mark.parametrize("size", [0, 7, 8, 100, 4096, -1, -200])
def test_a_file_that_was_cut_off_is_refused(file, size):
    file.path.write_bytes(file.path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"empty|cut off|its header speaks of"):
        ReplayFile(file.path)


def test_what_is_no_such_file_is_refused(tmp_path):
    path = tmp_path / "some.safetensors"
    for content in (b"\x80\x04\x95" + b"x" * 100, b"\x02" + bytes(7) + b"[]", b"PK"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=str(path)):
            ReplayFile(path)


def test_a_link_is_refused(file, tmp_path):
    link = Path(tmp_path, "link")
    link.symlink_to(file.path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        ReplayFile(link)
