"""Stacks what single environments return into batches, and checks it on the way.

Nothing is broadcast and nothing loses information: an environment that contradicts its
own space is an error that names the environment's row. Without torch, see space_tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from alf_lite.environments.space_tree import LEAF_SPACES, SpaceTree, describe
from alf_lite.errors import EnvError

Nest = Any


class RowError(EnvError):
    """What environment ``row`` returned does not fit."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class Column:
    """One array per environment, all of one shape and dtype.

    Args:
        path: how messages call it.
        shape: of one row.
        dtype: of the batch.
        expected: what messages say was expected; by default dtype and shape.
    """

    def __init__(
        self,
        path: str,
        shape: tuple[int, ...],
        dtype: Any,
        expected: str | None = None,
    ) -> None:
        self.path = path
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._expected = expected or f"{self.dtype} of shape {shape}"

    def stack(self, rows: Sequence[Any]) -> np.ndarray:
        """A fresh batch [len(rows), *shape].

        Raises:
            RowError: naming the first row that does not fit.
        """
        try:
            batch = np.array(rows)
        except ValueError:  # rows of different shapes
            pass
        else:
            if batch.shape == (len(rows), *self.shape):
                if batch.dtype == self.dtype:
                    return batch
                if self.dtype.kind == "f" and batch.dtype.kind in "fiub":
                    return batch.astype(self.dtype)
        batch = np.empty((len(rows), *self.shape), self.dtype)
        for i, row in enumerate(rows):
            try:
                batch[i] = self.convert(row)
            except EnvError as error:
                raise RowError(i, str(error)) from None
        return batch

    def convert(self, value: Any) -> np.ndarray:
        """``value`` as an array of exactly this shape and dtype.

        Raises:
            EnvError: if the shape differs or the values do not fit the dtype.
        """
        try:
            array = np.asarray(value)
        except Exception as error:
            raise self._mismatch(value) from error
        if array.dtype == self.dtype and array.shape == self.shape:
            return array
        if array.shape != self.shape or array.dtype.kind not in "fiub":
            raise self._mismatch(value)
        if self.dtype.kind == "f":
            return array.astype(self.dtype)
        if array.dtype.kind == "f":  # an integer or bool that would be rounded
            raise self._mismatch(value)
        converted = array.astype(self.dtype)
        if not np.array_equal(converted, array):
            raise self._mismatch(value)
        return converted

    def _mismatch(self, value: Any) -> EnvError:
        return EnvError(
            f"{self.path}: expected {self._expected}, got {describe(value)}"
        )


class SpaceColumns:
    """The columns of a space: batches of its elements as nests of arrays.

    Args:
        space: of one environment.
        path: how messages call it, such as ``observation``.

    Raises:
        ConfigError: if a part of the space has no fixed shape.
    """

    def __init__(self, space: Space, path: str) -> None:
        self.tree = SpaceTree(space, path)
        self.columns = [
            Column(
                leaf.path,
                leaf.shape,
                leaf.dtype,
                f"{leaf.dtype} of shape {leaf.shape} for {leaf.space}",
            )
            for leaf in self.tree.leaves
        ]
        self._is_leaf = isinstance(space, LEAF_SPACES)
        # A number of a Box is an array of shape (), one of a Discrete is a number.
        self._are_number_arrays = [
            leaf.shape == () and isinstance(leaf.space, spaces.Box)
            for leaf in self.tree.leaves
        ]

    def stack(self, rows: Sequence[Any]) -> Nest:
        """A fresh batch, a nest of [len(rows), ...] arrays.

        Raises:
            RowError: naming the first row that does not fit, the path and both sides.
        """
        if self._is_leaf:
            return self.columns[0].stack(rows)
        parts = []
        for i, row in enumerate(rows):
            try:
                parts.append(self.tree.split(row))
            except EnvError as error:
                raise RowError(i, str(error)) from None
        transposed = zip(*parts, strict=True)
        return self.tree.join(list(map(Column.stack, self.columns, transposed)))

    def rows(self, batch: Nest) -> Sequence[Any]:
        """The elements of a batch, for one environment each."""
        if self._is_leaf and not self._are_number_arrays[0]:
            return batch
        elements = [
            map(np.asarray, array) if are_number_arrays else array
            for array, are_number_arrays in zip(
                self.tree.split(batch), self._are_number_arrays, strict=True
            )
        ]
        return [self.tree.join(row) for row in zip(*elements, strict=True)]

    def row(self, arrays: Sequence[np.ndarray], index: int) -> Any:
        """A copy of the element of one environment, from the arrays of a batch."""
        leaves = [
            array[index, ...].copy() if is_number_array else array[index].copy()
            for array, is_number_array in zip(
                arrays, self._are_number_arrays, strict=True
            )
        ]
        return self.tree.join(leaves)


def any_true(flags: np.ndarray) -> bool:
    """``flags.any()`` of bools, for few of them in a fraction of the time."""
    return b"\1" in flags.tobytes()


def all_true(flags: np.ndarray) -> bool:
    """``flags.all()`` of bools, for few of them in a fraction of the time."""
    return b"\0" not in flags.tobytes()
