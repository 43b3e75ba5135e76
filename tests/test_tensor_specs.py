from __future__ import annotations

import numpy as np
import pytest
import torch

from alf_lite.tensor_specs import (
    BoundedTensorSpec,
    TensorSpec,
    is_binary,
    num_categories,
)


def test_zeros_and_ones_have_outer_dims_and_dtype():
    spec = TensorSpec((2, 3), torch.int64)
    assert spec.zeros((4,)).shape == (4, 2, 3)
    assert spec.ones().dtype == torch.int64
    assert spec.ones((5,)).sum() == 30


@pytest.mark.parametrize(
    ("dtype", "discrete"),
    [
        (torch.float32, False),
        (torch.int64, True),
        (torch.uint8, True),
        (torch.bool, True),
    ],
)
def test_integers_and_bool_are_discrete(dtype, discrete):
    spec = TensorSpec((), dtype)
    assert spec.is_discrete is discrete
    assert spec.is_continuous is not discrete
    assert spec.sample((7,)).dtype == dtype


def test_numel_and_ndim():
    assert TensorSpec((2, 3)).numel == 6
    assert TensorSpec(()).numel == 1
    assert TensorSpec((2, 3)).ndim == 2


def test_from_tensor_drops_the_batch_dimensions():
    spec = TensorSpec.from_tensor(torch.zeros(5, 7, 3, dtype=torch.int32), from_dim=2)
    assert spec == TensorSpec((3,), torch.int32)
    with pytest.raises(ValueError, match="at least 3 batch dimensions"):
        TensorSpec.from_tensor(torch.zeros(5), from_dim=3)


def test_equality_needs_type_shape_dtype_and_bounds():
    bounded = BoundedTensorSpec((2,), torch.float32, -1, [1, 2])
    assert bounded == BoundedTensorSpec((2,), torch.float32, [-1, -1], [1, 2])
    assert bounded != BoundedTensorSpec((2,), torch.float32, -1, 2)
    assert bounded != TensorSpec((2,))
    assert hash(bounded) == hash(BoundedTensorSpec((2,), torch.float32, -1, [1, 2]))
    assert TensorSpec((2,)) != TensorSpec((3,))


def test_samples_respect_per_element_bounds_and_reach_them():
    spec = BoundedTensorSpec((3,), torch.int64, [0, -2, 5], [1, 2, 5])
    drawn = spec.sample((2000,))
    assert (drawn.amin(0).tolist(), drawn.amax(0).tolist()) == ([0, -2, 5], [1, 2, 5])
    continuous = BoundedTensorSpec((2,), torch.float32, [-2, 0], [2, 0.5]).sample(
        (2000,)
    )
    assert (continuous.amin(0) >= torch.tensor([-2.0, 0])).all()
    assert (continuous.amax(0) <= torch.tensor([2.0, 0.5])).all()
    assert continuous[:, 0].std() > 1


def test_unbounded_elements_sample_finite_values():
    spec = BoundedTensorSpec((2,), torch.float32, [-np.inf, 0], [np.inf, 1])
    assert not spec.is_bounded
    drawn = spec.sample((100,))
    assert drawn.isfinite().all()
    assert (drawn[:, 1] >= 0).all()


def test_sampling_is_reproducible_with_a_generator():
    spec = BoundedTensorSpec((2,))
    draws = [spec.sample((3,), torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*draws)


def test_integers_that_no_float_holds_are_drawn_exactly():
    low = [2**53 + 1, -(2**63), 0]
    high = [2**53 + 3, 2**63 - 1, 1]
    drawn = BoundedTensorSpec((3,), torch.int64, low, high).sample((300,))
    assert drawn.shape == (300, 3)
    assert drawn[:, 0].unique().tolist() == [2**53 + 1, 2**53 + 2, 2**53 + 3]
    assert drawn[:, 1].unique().numel() == 300
    assert 0.4 < float((drawn[:, 1] > 0).float().mean()) < 0.6
    assert drawn[:, 2].unique().tolist() == [0, 1]
    spec = BoundedTensorSpec((), torch.int64, -(2**63), 2**63 - 1)
    draws = [spec.sample((), torch.Generator().manual_seed(1)) for _ in range(2)]
    assert draws[0].shape == ()
    assert torch.equal(*draws)


def test_bounds_that_an_integer_cannot_have_are_refused():
    for dtype, maximum in [
        (torch.int32, 2.5),
        (torch.uint8, 300),
        (torch.int64, 2**64),
        (torch.int64, 1e30),
    ]:
        with pytest.raises(ValueError, match=r"maximum: .* is not of dtype"):
            BoundedTensorSpec((), dtype, 0, maximum)
    spec = BoundedTensorSpec((), torch.uint8, -np.inf, np.inf)
    assert (int(spec.minimum), int(spec.maximum)) == (0, 255)


def test_bounds_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        BoundedTensorSpec((2,)).minimum[0] = 3


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((2, 1), "must not exceed"),
        ((np.nan, 1), "must not be NaN"),
        (([0, 0, 0], 1), r"shape \(3,\) does not broadcast to \(2,\)"),
    ],
)
def test_bad_bounds_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        BoundedTensorSpec((2,), torch.float32, *bounds)


def test_the_dtype_must_be_torchs():
    with pytest.raises(TypeError, match=r"torch\.dtype"):
        TensorSpec((2,), np.float32)


def test_repr_shows_what_matters():
    text = repr(BoundedTensorSpec((2,), torch.float32, -1, [1, 2]))
    assert text == (
        "BoundedTensorSpec(shape=(2,), dtype=float32, minimum=-1.0, maximum=[1. 2.])"
    )


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
