"""Batches of tensors, of numpy arrays and of both, checked against a spec."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import distributions as td

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.replay_buffers.batch_flattener import BatchFlattener
from alf_lite.replay_buffers.row_layout import RowLayout
from alf_lite.tensor_specs import TensorSpec

SPEC = TimeStep(reward=TensorSpec(()), observation={"arm": TensorSpec((7,))})


def flatten(spec, batch, *outer_dims: int, keep_arrays: bool = True) -> list:
    flattener = BatchFlattener(RowLayout(spec), keep_arrays)
    return flattener.flatten(batch, flattener.expect(*outer_dims))


def time_step(reward, arm) -> TimeStep:
    return TimeStep(reward=reward, observation={"arm": arm})


def test_tensors_and_arrays_stay_what_they_are():
    tensors = time_step(torch.ones(3), torch.zeros(3, 7))
    arrays = time_step(np.ones(3, np.float32), np.zeros((3, 7), np.float32))
    for batch in (tensors, arrays):
        leaves = flatten(SPEC, batch, 3)
        assert leaves[0] is batch.reward
        assert leaves[1] is batch.observation["arm"]


@pytest.mark.parametrize("keep_arrays", [True, False])
def test_a_batch_of_both_becomes_tensors(keep_arrays):
    ones, zeros = np.ones(3, np.float32), torch.zeros(3, 7)
    for batch in (time_step(ones, zeros), time_step(torch.ones(3), zeros.numpy())):
        leaves = flatten(SPEC, batch, 3, keep_arrays=keep_arrays)
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
        assert leaves[0].tolist() == [1, 1, 1]


def test_arrays_become_tensors_where_they_cannot_be_copied_to():
    array = np.arange(3, dtype=np.float32)[::-1]  # torch knows no negative strides
    array.flags.writeable = False
    (leaf,) = flatten(TensorSpec(()), array, 3, keep_arrays=False)
    assert isinstance(leaf, torch.Tensor)
    assert leaf.tolist() == [2, 1, 0]


def test_another_distribution_than_the_spec_is_refused():
    spec = nest.extract_spec(td.Categorical(logits=torch.zeros(1, 4)))
    with pytest.raises(ValueError, match="Categorical"):
        flatten(spec, td.Bernoulli(logits=torch.zeros(1, 4)), 1)


def test_gradients_are_left_behind():
    with_gradient = torch.ones(3, requires_grad=True) * 2
    for arm in (torch.zeros(3, 7), np.zeros((3, 7), np.float32)):
        leaves = flatten(SPEC, time_step(with_gradient, arm), 3)
        assert not any(leaf.requires_grad for leaf in leaves)


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            time_step(torch.zeros(3), torch.zeros(3, 6)),
            r"observation\['arm'\]: expected shape \(3, 7\) and torch.float32, got "
            r"\(3, 6\)",
        ),
        (
            time_step(torch.zeros(3).double(), torch.zeros(3, 7)),
            r"reward: expected shape \(3,\) and torch.float32, got \(3,\) and "
            r"(torch\.)?float64",
        ),
        (
            TimeStep(reward=torch.zeros(3), observation={"leg": torch.zeros(3, 7)}),
            "observation",
        ),
        (time_step(torch.zeros(3), (torch.zeros(3, 7),)), r"observation\['arm'\]"),
        (torch.zeros(3), "<root>"),
    ],
)
def test_a_batch_that_does_not_match_is_refused_by_path(as_array, batch, message):
    if as_array:
        batch = nest.map_structure(lambda tensor: tensor.numpy(), batch)
    with pytest.raises(ValueError, match=message):
        flatten(SPEC, batch, 3)


@pytest.mark.parametrize("arm", [torch.zeros(3, 7), np.zeros((3, 7), np.float32)])
@pytest.mark.parametrize("reward", [1.0, np.float32(1), [1.0, 1.0, 1.0]])
def test_what_is_neither_a_tensor_nor_an_array_is_refused_by_path(arm, reward):
    with pytest.raises((TypeError, ValueError), match="reward"):
        flatten(SPEC, time_step(reward, arm), 3)


def test_one_wrong_leaf_among_both_kinds_is_refused_by_path():
    wrong = np.zeros((3, 7))
    with pytest.raises(ValueError, match=r"\['arm'\].* got \(3, 7\) and float64"):
        flatten(SPEC, time_step(torch.zeros(3), wrong), 3)


def test_arrays_with_other_bytes_are_refused():
    big_endian = np.zeros(3, ">f4")
    with pytest.raises(ValueError, match=r"<root>: expected .* and >f4"):
        flatten(TensorSpec(()), big_endian, 3)


def test_no_array_is_taken_for_a_dtype_that_numpy_does_not_have():
    spec = TensorSpec((), torch.bfloat16)
    with pytest.raises(ValueError, match=r"torch\.bfloat16, got \(3,\) and int16"):
        flatten(spec, np.zeros(3, np.int16), 3)
    (leaf,) = flatten(spec, torch.zeros(3, dtype=torch.bfloat16), 3)
    assert leaf.dtype == torch.bfloat16
