"""What a replay buffer promises to those who use it."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import BatchInfo
from alf_lite.replay_buffers.priority_options import PriorityOptions
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.window_sampler import SamplingOptions
from alf_lite.tensor_specs import TensorSpec
from tests.replay_buffers.marked_steps import (
    all_starts,
    assert_steps,
    fill,
    make_buffer,
    saved,
    steps,
)

# Writing and reading


@pytest.mark.parametrize("num_steps", [2, 13])
def test_newest_steps_are_kept_in_order_in_a_file(tmp_path, num_steps):
    buffer = make_buffer(3, 5, storage="memmap", directory=tmp_path)
    for position in range(num_steps):
        buffer.add_batch(steps(torch.arange(3), position))
    size = min(num_steps, 5)
    assert buffer.total_size == 3 * size
    assert buffer.sizes.tolist() == [size] * 3
    assert buffer.end_positions.tolist() == [num_steps] * 3
    assert buffer.begin_positions.tolist() == [num_steps - size] * 3
    batch, info = buffer.gather_all()
    assert_steps(batch, torch.arange(3)[:, None], num_steps - size + torch.arange(size))
    assert info.env_ids.tolist() == [0, 1, 2]
    assert info.positions.tolist() == [num_steps - size] * 3


def test_single_tensors_are_nests():
    buffer = ReplayBuffer(TensorSpec((), torch.int64), 1, 3)
    for i in range(5):
        buffer.add_batch(torch.tensor([i]))
    batch, _ = buffer.get_batch(50, 2)
    assert {tuple(row) for row in batch.tolist()} == {(2, 3), (3, 4)}


@pytest.mark.parametrize("env_ids", [None, np.array([2, 0, 1])])
@pytest.mark.parametrize("num_steps", [1, 5, 40])
def test_numpy_arrays_are_the_same_as_tensors(env_ids, num_steps):
    by_tensors, by_arrays = make_buffer(3, 50), make_buffer(3, 50)
    columns = torch.arange(3) if env_ids is None else torch.from_numpy(env_ids)
    for position in range(num_steps):
        batch = steps(columns, position)
        by_tensors.add_batch(batch, env_ids)
        by_arrays.add_batch(nest.map_structure(lambda t: t.numpy(), batch), env_ids)
    unroll = steps(columns, num_steps + torch.arange(num_steps)[:, None])
    by_tensors.add_batch(unroll, env_ids, time_major=True)
    unroll = nest.map_structure(lambda t: t.numpy(), unroll)
    by_arrays.add_batch(unroll, env_ids, time_major=True)
    expected, got = by_tensors.gather_all(), by_arrays.gather_all()
    for a, b in zip(nest.flatten(expected), nest.flatten(got), strict=True):
        assert torch.equal(a, b)


def test_a_wrong_array_is_refused_on_every_call_and_nothing_is_stored():
    buffer = ReplayBuffer({"a": TensorSpec((2,)), "b": TensorSpec(())}, 1, 3)
    right = {"a": np.zeros((1, 2), np.float32), "b": np.zeros(1, np.float32)}
    for size in range(1, 3):
        buffer.add_batch(right)
        for wrong in (np.zeros(1), np.zeros((1, 1), np.float32), np.float32(0)):
            with pytest.raises((ValueError, TypeError), match=r"'b'\]: expected"):
                buffer.add_batch(right | {"b": wrong})
        assert buffer.total_size == size


def test_what_is_stored_and_drawn_belongs_to_nobody_else():
    buffer = make_buffer(2, 5)
    given = steps(torch.arange(2), 0)
    buffer.add_batch(given)
    nest.map_structure(lambda t: t.zero_(), given)
    batch, _ = buffer.get_batch(4, 1)
    nest.map_structure(lambda t: t.zero_(), batch)
    assert all_starts(buffer, 1) == {(0, 0), (1, 0)}


def test_steps_can_be_added_in_inference_mode_and_trained_on():
    with torch.inference_mode():
        buffer = ReplayBuffer(TensorSpec(()), 2, 4)
        buffer.add_batch(torch.ones(2))
        buffer.add_batch(torch.ones(3, 2), time_major=True)
    batch, _ = buffer.get_batch(4, 2)
    weight = torch.ones((), requires_grad=True)
    (batch * weight).sum().backward()
    assert weight.grad == 8


def test_a_policy_can_store_what_has_a_gradient():
    buffer = ReplayBuffer(TensorSpec(()), 1, 4)
    buffer.add_batch(torch.ones(1, requires_grad=True) * 3)
    buffer.add_batch(torch.ones(2, 1, requires_grad=True) * 3, time_major=True)
    batch, _ = buffer.get_batch(2, 2)
    assert not batch.requires_grad
    assert batch.tolist() == [[3, 3], [3, 3]]


# Windows


@pytest.mark.parametrize("prioritized", [False, True])
def test_windows_are_drawn_uniformly(prioritized):
    buffer = make_buffer(3, 7, prioritized_sampling=prioritized)
    fill(buffer, 9)
    buffer.add_batch(steps([1], [9]), torch.tensor([1]))
    torch.manual_seed(0)
    counts: dict = {}
    num_draws = 18_000
    for _ in range(10):
        _, info = buffer.get_batch(num_draws // 10, 2)
        for key in zip(info.env_ids.tolist(), info.positions.tolist(), strict=True):
            counts[key] = counts.get(key, 0) + 1
    expected = num_draws / 18
    assert len(counts) == 18
    chi_square = sum((c - expected) ** 2 / expected for c in counts.values())
    assert chi_square < 40.8  # 17 degrees of freedom, p = 0.001


def test_more_of_the_oldest_steps_can_be_kept_for_looking_back():
    buffer = make_buffer(2, 6)
    fill(buffer, 9)
    buffer.ignore_earliest(2)
    buffer.ignore_earliest(1)  # never less
    assert buffer.gather_all()[1].positions.tolist() == [5, 5]


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5, 8])
def test_draws_depend_on_the_seed_alone(prioritized, batch_size):
    buffer = make_buffer(2, 8, prioritized_sampling=prioritized)
    fill(buffer, 8)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append([buffer.get_batch(batch_size, 2)[1] for _ in range(10)])
    positions = [torch.cat([info.positions for info in infos]) for infos in drawn]
    assert torch.equal(positions[0], positions[1])
    assert not torch.equal(positions[0], positions[2])


def test_recent_steps_have_their_share_of_the_batch():
    sampling = SamplingOptions(recent_data_ratio=0.25, recent_data_steps=2)
    buffer = make_buffer(2, 40, sampling=sampling)
    fill(buffer, 40)
    batch, info = buffer.get_batch(10, 3)
    assert_steps(
        batch, info.env_ids[:, None], info.positions[:, None] + torch.arange(3)
    )
    # ceil(0.25 * 10) windows begin at one of the two newest starts, 36 and 37.
    assert set(info.positions[:3].tolist()) <= {36, 37}
    drawn = torch.cat([buffer.get_batch(10, 3)[1].positions[3:] for _ in range(100)])
    assert drawn.min() < 5


def test_recent_steps_need_no_share_while_the_buffer_is_small():
    sampling = SamplingOptions(recent_data_ratio=0.25, recent_data_steps=2)
    buffer = make_buffer(1, 40, sampling=sampling)
    fill(buffer, 8)  # 2 of 8 are the newest: a quarter anyway
    firsts = {int(buffer.get_batch(4, 1)[1].positions[0]) for _ in range(200)}
    assert firsts == set(range(8))


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_recent_steps_and_priorities_are_corrected_together(ratio):
    sampling = SamplingOptions(recent_data_ratio=ratio, recent_data_steps=2)
    priority = PriorityOptions(alpha=1, beta=1, eps=0, normalization="none")
    buffer = make_buffer(
        1, 20, prioritized_sampling=True, priority=priority, sampling=sampling
    )
    fill(buffer, 20)
    priorities = torch.arange(1, 21).double()
    buffer.update_priority(torch.zeros(20).long(), torch.arange(20), priorities)
    torch.manual_seed(0)
    sums = torch.zeros(20)
    for _ in range(400):
        _, info = buffer.get_batch(50, 1)
        sums.index_add_(0, info.positions, info.importance_weights)
    # Corrected with beta = 1, every step counts the same: as often as 1 / 20.
    expected = torch.full((20,), 400 * 50 / 20)
    if ratio == 1.0:  # the others are never drawn
        assert (sums[:-2] == 0).all()
        sums, expected = sums[-2:], expected[-2:]
    assert torch.allclose(sums, expected, rtol=0.25)


# Errors


def test_too_few_steps_say_what_is_there_and_what_is_needed():
    buffer = make_buffer(2, 10)
    with pytest.raises(ValueError, match="has 0 steps"):
        buffer.get_batch(1, 1)
    fill(buffer, 3)
    with pytest.raises(
        ValueError, match=r"has 3 steps .* needs 8\. .*initial_collect_steps"
    ):
        buffer.get_batch(1, 8)
    with pytest.raises(ValueError, match="Raise max_length, which is 10"):
        buffer.get_batch(1, 11)
    for size, length in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match=f"at least 1, got {size} and {length}"):
            buffer.get_batch(size, length)


@pytest.mark.parametrize(
    ("env_ids", "message"),
    [
        ([0, 0], "environment 0 is given 2 times"),
        ([0, 2], "there is no environment 2"),
        ([-1, 0], "there is no environment -1"),
    ],
)
def test_wrong_environments_are_refused_and_nothing_is_stored(env_ids, message):
    buffer = make_buffer(2, 5)
    with pytest.raises(ValueError, match=message):
        buffer.add_batch(steps([0, 1], 0), torch.tensor(env_ids))
    with pytest.raises(ValueError, match=message):
        buffer.clear(torch.tensor(env_ids))
    assert buffer.total_size == 0


@pytest.mark.parametrize("batch", [(), torch.zeros(()), 3, {"a": torch.zeros(2, 1)}])
def test_an_unroll_of_something_else_is_refused(batch):
    buffer = ReplayBuffer(TensorSpec(()), 1, 3)
    with pytest.raises((ValueError, TypeError), match="<root>"):
        buffer.add_batch(batch, time_major=True)


def test_environments_are_integers():
    with pytest.raises(TypeError, match=r"integers, got torch\.float32"):
        make_buffer(1).add_batch(steps([0], 0), torch.zeros(1))


def test_another_number_of_columns_is_refused_by_path():
    buffer = make_buffer(2, 5)
    for batch, kwargs in (
        (steps(torch.arange(3), 0), {}),
        (steps(torch.arange(2), 0), {"env_ids": torch.tensor([0])}),
        (steps(torch.arange(2), 0), {"time_major": True}),
        (steps(torch.arange(3), torch.zeros(4, 1).long()), {"time_major": True}),
    ):
        with pytest.raises(ValueError, match=r"time_step\.step_type: expected shape"):
            buffer.add_batch(batch, **kwargs)
    assert buffer.total_size == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_environments": 0}, "num_environments must be at least 1"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"num_earliest_frames_ignored": -1}, "num_earliest_frames_ignored"),
        ({"storage": "disk"}, "storage='memory', or storage='memmap'"),
        ({"storage": "memmap"}, "and a directory"),
        ({"directory": "."}, "and a directory"),
        (
            {
                "prioritized_sampling": True,
                "sampling": SamplingOptions(with_replacement=False),
            },
            "with_replacement",
        ),
        ({"max_length": 10**13}, "GB are free"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_buffer(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"recent_data_ratio": 1.5},
        {"recent_data_steps": 0},
        {"recent_data_steps": 2},  # of a part of the batch that is 0
        {"max_use": 0},
        {"max_staleness": -1},
        {"recent_data_ratio": 0.5, "max_use": 1},
    ],
)
def test_wrong_sampling_options_are_refused_by_name(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        SamplingOptions(**arguments)


def test_the_size_is_logged(caplog):
    with caplog.at_level(logging.INFO):
        buffer = make_buffer(4, 1000)
    assert buffer.num_bytes == 4000 * 32
    assert "4 environments x 1000 steps x 32 bytes = 0.000 GB" in caplog.text


def test_uniform_batches_have_no_importance_weights():
    buffer = make_buffer()
    fill(buffer, 3)
    _, info = buffer.get_batch(2, 1)
    assert isinstance(info, BatchInfo)
    assert info.importance_weights == ()
    assert info.positions.dtype == info.env_ids.dtype == torch.int64
    with pytest.raises(ValueError, match="no priorities"):
        buffer.update_priority(info.env_ids, info.positions, torch.ones(2))
    with pytest.raises(ValueError, match="max_use"):
        buffer.num_uses(info.env_ids, info.positions)
    assert np.all(info.positions.numpy() >= 0)


@pytest.mark.gpu
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_buffer_can_be_on_a_gpu(tmp_path, prioritized):
    buffer = make_buffer(2, 5, device="cuda", prioritized_sampling=prioritized)
    for position in range(3):
        buffer.add_batch(steps(torch.arange(2), position))
    batch = steps(torch.arange(2), torch.arange(3, 7)[:, None])
    buffer.add_batch(nest.map_structure(torch.Tensor.cuda, batch), time_major=True)
    drawn, info = buffer.get_batch(20, 2)
    assert drawn.time_step.reward.is_cuda
    assert not info.positions.is_cuda
    assert_steps(
        nest.map_structure(torch.Tensor.cpu, drawn),
        info.env_ids[:, None],
        info.positions[:, None] + torch.arange(2),
    )
    if prioritized:
        assert info.importance_weights.is_cuda
        buffer.update_priority(info.env_ids, info.positions, torch.rand(20).cuda())
    restored = make_buffer(2, 5, prioritized_sampling=prioritized)
    restored.load(saved(buffer, tmp_path))
    restored.check_valid()
    assert restored.total_size == 10
