"""Spaces of gymnasium: their leaves, and batches of their elements, checked.

The leaves come in the order of ``alf_lite.nest``. Where what single environments return
is stacked into batches, nothing is broadcast and nothing loses information: an
environment that contradicts its own space is an error that names the environment's row.

Imported in the processes of asynchronous environments, so without torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from alf_lite.errors import ConfigError, EnvError

Nest = Any

LEAF_SPACES = (
    spaces.Box,
    spaces.Discrete,
    spaces.MultiDiscrete,
    spaces.MultiBinary,
)

_HINTS = {
    spaces.Text: "encode the text as a fixed number of integers (MultiDiscrete)",
    spaces.Sequence: "pad it to a Box of fixed shape",
    spaces.Graph: "pad nodes and edges to Boxes of fixed shape in a Dict",
    spaces.OneOf: "use a Dict of the choice (Discrete) and all alternatives",
}


def describe(value: Any) -> str:
    """What came, in a few words for a message."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} of shape {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


class SpaceLeaf(NamedTuple):
    """One Box, Discrete, MultiDiscrete or MultiBinary inside a space."""

    path: str  # such as observation['arm'][0]
    keys: tuple[Any, ...]  # what leads from the root to the leaf
    space: Space
    shape: tuple[int, ...]
    dtype: np.dtype


class SpaceTree:
    """The structure of a space, and what takes values of this structure apart.

    Args:
        space: any nesting of Dict and Tuple.
        path: how messages call its root, such as ``observation``.

    Raises:
        ConfigError: naming the path and the space, if a part has no fixed shape, or
            there is none.

    Attributes:
        leaves: in the order of ``split``.
        is_leaf: whether the space is its only leaf.
    """

    def __init__(self, space: Space, path: str) -> None:
        self.space = space
        self.path = path
        self.leaves = list(_leaves(space, path, ()))
        if not self.leaves:
            raise ConfigError(f"{path}: the space {space} is empty")
        self.is_leaf = isinstance(space, LEAF_SPACES)
        self._structure = _structure(space)

    def split(self, value: Nest) -> list[Any]:
        """The leaves of ``value``; dicts in the order of their sorted keys.

        Raises:
            EnvError: naming the path, if a part is missing.
        """
        if self.is_leaf:
            return [value]
        try:
            return [_get(value, leaf.keys) for leaf in self.leaves]
        except (KeyError, IndexError, TypeError):
            self.check(value)
            raise

    def join(self, leaves: Sequence[Any]) -> Nest:
        """A nest of dicts and tuples with the given leaves."""
        if self.is_leaf:
            return leaves[0]
        return _join(self._structure, iter(leaves))

    def check(self, value: Any) -> None:
        """Compares keys and lengths with the space; leaves are not looked at.

        Raises:
            EnvError: naming the path, what was expected and what came.
        """
        _check_structure(self.space, value, self.path)


def _get(value: Nest, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def _structure(space: Space) -> Any:
    """Dicts with sorted keys and tuples, with None for every leaf."""
    if isinstance(space, spaces.Dict):
        return {key: _structure(space[key]) for key in sorted(space.keys())}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_structure, space.spaces))
    return None


def _join(structure: Any, leaves: Iterator[Any]) -> Nest:
    if structure is None:
        return next(leaves)
    if type(structure) is dict:
        return {key: _join(part, leaves) for key, part in structure.items()}
    return tuple([_join(part, leaves) for part in structure])


def _check_structure(space: Space, value: Any, path: str) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping):
            raise EnvError(f"{path}: expected a dict, got {describe(value)}")
        missing = sorted(set(space.keys()) - set(value.keys()), key=str)
        extra = sorted(set(value.keys()) - set(space.keys()), key=str)
        if missing or extra:
            raise EnvError(
                f"{path}: expected the keys {sorted(space.keys())}, "
                f"got {sorted(value.keys(), key=str)}: missing {missing}, "
                f"unexpected {extra}"
            )
        for key, part in space.items():
            _check_structure(part, value[key], f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list):
            raise EnvError(f"{path}: expected a tuple, got {describe(value)}")
        if len(value) != len(space.spaces):
            raise EnvError(
                f"{path}: expected a tuple of length {len(space.spaces)}, "
                f"got length {len(value)}"
            )
        for i, part in enumerate(space.spaces):
            _check_structure(part, value[i], f"{path}[{i}]")


def _leaves(space: Space, path: str, keys: tuple[Any, ...]) -> Iterator[SpaceLeaf]:
    if isinstance(space, spaces.Dict):
        for key in sorted(space.keys()):
            yield from _leaves(space[key], f"{path}[{key!r}]", (*keys, key))
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from _leaves(part, f"{path}[{i}]", (*keys, i))
    elif isinstance(space, LEAF_SPACES):
        assert space.shape is not None, space
        yield SpaceLeaf(path, keys, space, space.shape, np.dtype(space.dtype))
    else:
        hint = _HINTS.get(
            type(space), "convert it with a wrapper around the environment"
        )
        raise ConfigError(
            f"{path}: the space {space} has no fixed shape. Supported are Box, "
            "Discrete, MultiDiscrete and MultiBinary in Dict and Tuple. Suggestion: "
            f"{hint}, with gymnasium.wrappers.TransformObservation or TransformAction."
        )


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

    Attributes:
        tree: of the space.
        columns: of its leaves.
        is_sequence: whether a batch is the sequence of its elements.
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
        # A number of a Box is an array of shape (), one of a Discrete is a number.
        self._are_number_arrays = [
            leaf.shape == () and isinstance(leaf.space, spaces.Box)
            for leaf in self.tree.leaves
        ]
        self.is_sequence = self.tree.is_leaf and not self._are_number_arrays[0]

    def stack(self, rows: Sequence[Any]) -> Nest:
        """A fresh batch, a nest of [len(rows), ...] arrays.

        Raises:
            RowError: naming the first row that does not fit, the path and both sides.
        """
        if self.tree.is_leaf:
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
        if self.is_sequence:
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
