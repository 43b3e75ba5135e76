"""What the bounds of an integer spec say about its values."""

from __future__ import annotations

import numpy as np
import torch

from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec


def is_binary(spec: TensorSpec) -> bool:
    """Whether every element is a bool or an integer that is 0 or 1."""
    if spec.dtype == torch.bool:
        return True
    return isinstance(spec, BoundedTensorSpec) and bool(
        spec.is_discrete and (spec.minimum == 0).all() and (spec.maximum == 1).all()
    )


def num_categories(spec: BoundedTensorSpec) -> np.ndarray:
    """[numel] int64, how many values each element of an integer spec can take.

    A range that does not fit into int64 counts as the largest that does.
    """
    low, high = (b.reshape(-1).astype(object) for b in (spec.minimum, spec.maximum))
    sizes = high - low + 1  # Python integers, which do not overflow
    return np.minimum(sizes, np.iinfo(np.int64).max).astype(np.int64)
