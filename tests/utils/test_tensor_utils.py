"""Small tensor operations."""

from __future__ import annotations

import pytest
import torch

from alf_lite.utils import tensor_utils


def test_expand_dims_as_appends_dimensions():
    x, y = torch.rand(3, 2), torch.rand(3, 2, 5, 1)
    assert tensor_utils.expand_dims_as(x, y).shape == (3, 2, 1, 1)
    assert tensor_utils.expand_dims_as(x, x) is x
    assert (tensor_utils.expand_dims_as(x, y) * y).shape == y.shape


@pytest.mark.parametrize("shape", [(3, 2), (5,), (2, 3, 1)])
def test_expand_dims_as_refuses_other_beginnings(shape):
    with pytest.raises(ValueError, match=r"shape \[3\] does not begin"):
        tensor_utils.expand_dims_as(torch.rand(shape), torch.rand(3))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_select_takes_one_entry_per_row(dtype):
    values = torch.arange(24.0).reshape(2, 3, 4)
    indices = torch.tensor([[0, 1, 3], [2, 0, 1]], dtype=dtype)
    expected = torch.tensor([[0.0, 5.0, 11.0], [14.0, 16.0, 21.0]])
    assert torch.equal(tensor_utils.select(values, indices), expected)


def test_select_passes_the_gradient_to_the_entry():
    values = torch.zeros(2, 3, requires_grad=True)
    tensor_utils.select(values, torch.tensor([2, 0])).sum().backward()
    assert values.grad.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_select_refuses_indices_of_another_shape():
    with pytest.raises(ValueError, match=r"indices \[2, 1\].*values \[2, 4\]"):
        tensor_utils.select(torch.rand(2, 4), torch.zeros(2, 1, dtype=torch.int64))
