"""The leaves of a batch that is to be stored, checked on every single call."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import numpy as np
import optree
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.replay_buffers.row_layout import RowLayout, numpy_dtype

Nest = Any
# All of them tensors, or all of them numpy arrays.
Leaves = list[Any]

_NAMESPACE = "alf_lite"  # that of alf_lite.nest

_traits = operator.attrgetter("shape", "dtype")
_tensor_traits = operator.attrgetter("shape", "dtype", "requires_grad")


class Expected(NamedTuple):
    """What the leaves of a batch have to be, in their order."""

    tensors: list[tuple]  # shape, dtype and that there is no gradient
    arrays: list[tuple]  # shape and dtype; where numpy has no such one, torch's


class BatchFlattener:
    """Takes batches apart into leaves of the shapes and dtypes of a spec.

    Args:
        layout: says which leaves there are.
        keep_arrays: whether a batch of numpy arrays is left as it is, not made tensors.
    """

    def __init__(self, layout: RowLayout, keep_arrays: bool = True) -> None:
        self._layout = layout
        self._keep_arrays = keep_arrays
        self._structure = optree.tree_structure(layout.data_spec, namespace=_NAMESPACE)
        # A training run uses few shapes; one that uses many shall not hoard memory.
        self.expect = functools.lru_cache(maxsize=64)(self._expect)

    def _expect(self, *outer_dims: int) -> Expected:
        """What the leaves of a batch have to be, for :meth:`flatten`."""
        tensors, arrays = [], []
        for leaf in self._layout.leaves:
            shape = torch.Size((*outer_dims, *leaf.shape))
            tensors.append((shape, leaf.dtype, False))
            arrays.append((shape, numpy_dtype(leaf.dtype) or leaf.dtype))
        return Expected(tensors, arrays)

    def flatten(self, batch: Nest, expected: Expected) -> Leaves:
        """The leaves of ``batch``, detached.

        Args:
            batch: nest of tensors and numpy arrays.
            expected: from ``expect``.

        Returns:
            Tensors; or arrays if all leaves are, and arrays are to be kept.

        Raises:
            ValueError: if structure, a shape or a dtype does not match the spec; names
                the leaf, what was expected and what came.
            TypeError: if a leaf is neither a tensor nor an array.
        """
        # Every step that is stored passes here: nothing is faster than one comparison.
        try:
            leaves: Leaves = self._structure.flatten_up_to(batch)
            if type(leaves[0]) is np.ndarray:
                if self._keep_arrays and list(map(_traits, leaves)) == expected.arrays:
                    return leaves
            else:
                if list(map(_tensor_traits, leaves)) == expected.tensors:
                    return leaves
                leaves = [leaf.detach() for leaf in leaves]
                if list(map(_tensor_traits, leaves)) == expected.tensors:
                    return leaves
        except (AttributeError, ValueError):
            pass
        return self._flatten_one_by_one(batch, expected)

    def _flatten_one_by_one(self, batch: Nest, expected: Expected) -> list[Tensor]:
        """The leaves as tensors, or the error that says what is wrong with them."""
        nest.assert_same_structure(self._layout.data_spec, batch)
        tensors = []
        for (path, leaf), of_tensor, of_array in zip(
            nest.flatten_with_path(batch), *expected, strict=True
        ):
            if not isinstance(leaf, (Tensor, np.ndarray)):
                raise TypeError(
                    f"{path}: expected a tensor or a numpy array, got a "
                    f"{type(leaf).__name__}"
                )
            shape, dtype, _ = of_tensor
            if _traits(leaf) != (
                of_array if isinstance(leaf, np.ndarray) else (shape, dtype)
            ):
                raise ValueError(
                    f"{path}: expected shape {tuple(shape)} and {dtype}, got "
                    f"{tuple(leaf.shape)} and {leaf.dtype}. The replay buffer was "
                    "built for other data."
                )
            tensors.append(_to_tensor(leaf).detach())
        return tensors


def _to_tensor(leaf: Tensor | np.ndarray) -> Tensor:
    """``leaf`` or a copy of it."""
    # torch warns of arrays that cannot be written, and refuses negative strides.
    return leaf if isinstance(leaf, Tensor) else torch.from_numpy(np.array(leaf))
