"""Time steps that contradict their specs are refused with what was expected."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.tensor_specs import TensorSpec
from alf_lite.utils.unroll_arrays import UnrollReader, join

INFO_SPEC = {"speed": TensorSpec((2,)), "success": TensorSpec((), torch.bool)}


def make_time_step(**changes):
    time_step = TimeStep(
        step_type=torch.tensor([[0, 1], [2, 1], [0, 2]], dtype=torch.int32),
        reward=torch.arange(6.0).reshape(3, 2),
        discount=torch.ones(3, 2),
        env_id=torch.tensor([[3, 1]] * 3, dtype=torch.int32),
        env_info={"speed": torch.rand(3, 2, 2), "success": torch.ones(3, 2).bool()},
    )
    return time_step._replace(**changes)


def convert(time_step):
    return UnrollReader(TensorSpec(()), INFO_SPEC, batch_size=4).read(time_step)


def test_fields_become_float64_rows():
    time_step = make_time_step()
    steps = convert(time_step)
    assert steps.is_first.tolist() == [[True, False], [False, False], [True, False]]
    assert steps.is_last.tolist() == [[False, False], [True, False], [False, True]]
    assert steps.rewards.dtype == steps.infos.dtype == np.float64
    np.testing.assert_array_equal(steps.rewards[..., 0], time_step.reward.numpy())
    np.testing.assert_array_equal(
        steps.infos[..., :2], time_step.env_info["speed"].double().numpy()
    )
    assert (steps.infos[..., 2] == 1).all()
    assert steps.env_ids.tolist() == [3, 1]


def test_without_ids_column_b_is_environment_b():
    assert convert(make_time_step(env_id=())).env_ids.tolist() == [0, 1]


def test_the_arrays_are_copies():
    time_step = make_time_step()
    steps = convert(time_step)
    for tensor in nest.flatten(time_step):
        tensor.zero_()
    assert_same(steps, convert(make_time_step(env_info=time_step.env_info)), but=4)


def test_steps_that_come_again_in_the_same_memory_are_read_anew():
    reader = UnrollReader(TensorSpec(()), INFO_SPEC, batch_size=4)
    time_step = make_time_step()
    reader.read(time_step)
    for changed in (time_step.reward, time_step.step_type, time_step.discount):
        changed.copy_(changed.flip(0))
    time_step.env_info["speed"].neg_()
    time_step.env_id.fill_(0)[:, 1] = 2
    assert_same(reader.read(time_step), convert(time_step))
    time_step.env_id[1, 1] = 3
    with pytest.raises(ValueError, match="env_id"):
        reader.read(time_step)


def test_steps_of_several_memories_come_in_turns():
    reader = UnrollReader(TensorSpec(()), INFO_SPEC, batch_size=4)
    steps = [make_time_step() for _ in range(20)]  # more than are known at a time
    for number, time_step in enumerate(steps):
        time_step.reward.add_(number)
    for time_step in (*steps, *steps[::-1]):
        time_step.reward.add_(100)
        assert_same(reader.read(time_step), convert(time_step))


def test_ids_that_come_again_are_the_same_object():
    reader = UnrollReader(TensorSpec(()), INFO_SPEC, batch_size=4)
    first = reader.read(make_time_step()).env_ids
    assert reader.read(make_time_step()).env_ids is first
    others = make_time_step(env_id=torch.tensor([[1, 3]] * 3, dtype=torch.int32))
    assert reader.read(others).env_ids.tolist() == [1, 3]
    assert first.tolist() == [3, 1]


@pytest.mark.parametrize("cuts", [[0, 3], [0, 1, 3], [0, 1, 2, 3]])
def test_joined_parts_are_the_whole(cuts):
    time_step = make_time_step()
    reader = UnrollReader(TensorSpec(()), INFO_SPEC, batch_size=4)
    parts = [
        reader.read(nest.map_structure(lambda t, i=begin, j=end: t[i:j], time_step))
        for begin, end in itertools.pairwise(cuts)
    ]
    assert_same(join(parts), convert(time_step))


def assert_same(actual, expected, but=None):
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if i != but:
            np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_type": torch.zeros(3)}, r"step_type: expected the shape \[T, B\]"),
        ({"reward": torch.zeros(3, 2, 1)}, r"reward: expected .*\(3, 2\).*\(3, 2, 1\)"),
        ({"discount": torch.zeros(2, 3)}, r"discount: expected .*\(3, 2\).*\(2, 3\)"),
        ({"env_id": torch.tensor([[0, 4]] * 3)}, r"ids in \[0, 4\), got \[0, 4\]"),
        ({"env_id": torch.tensor([[-1, 0]] * 3)}, r"ids in \[0, 4\), got \[-1, 0\]"),
        (
            {"env_id": torch.tensor([[2, 2]] * 3)},
            r"\[2, 2\] names an environment twice",
        ),
        ({"env_id": torch.tensor([[0, 1], [1, 0], [0, 1]])}, "one environment per"),
        ({"env_id": torch.tensor([0, 1])}, r"expected the shape \(3, 2\)"),
        ({"env_info": {"speed": torch.rand(3, 2, 2)}}, "success"),
        (
            {"env_info": {"speed": torch.rand(3, 2), "success": torch.ones(3, 2)}},
            r"env_info.speed: expected the shape \(3, 2, 2\)",
        ),
    ],
)
def test_contradictions_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        convert(make_time_step(**changes))
