import pytest
import torch

from alf_lite.distributions.categories import is_binary, num_categories
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec


def test_num_categories_counts_both_bounds():
    spec = BoundedTensorSpec((2, 2), torch.int64, [[0, -1], [5, 3]], [[0, 1], [9, 4]])
    assert num_categories(spec).tolist() == [1, 3, 5, 2]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_num_categories_does_not_overflow(dtype):
    info = torch.iinfo(dtype)
    spec = BoundedTensorSpec((1,), dtype, info.min, info.max)
    expected = min(2**info.bits, 2**63 - 1)
    assert num_categories(spec).tolist() == [expected]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TensorSpec((2,), torch.bool), True),
        (BoundedTensorSpec((2,), torch.int8, 0, 1), True),
        (BoundedTensorSpec((2,), torch.int8, 0, [1, 2]), False),
        (BoundedTensorSpec((2,), torch.int8, [0, 1], 1), False),
        (BoundedTensorSpec((2,), torch.float32, 0, 1), False),
        (TensorSpec((2,), torch.int8), False),
    ],
)
def test_is_binary(spec, expected):
    assert is_binary(spec) is expected
