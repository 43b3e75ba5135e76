"""How one time step, a nest of tensors, lies in one row of bytes.

All leaves of a step stand side by side, so that one copy moves the whole step and one
gather serves all leaves. A leaf is then a strided view of the rows.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import optree
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any

_NAMESPACE = "alf_lite"  # that of alf_lite.nest

# One step of a path such as ``time_step.observation['arm'][0]``.
_PATH_STEP = re.compile(r"\.?(\w+)|\['([^']*)'\]|\[(\d+)\]")

# All of them tensors, or all of them numpy arrays.
Leaves = list[Any]

_traits = operator.attrgetter("shape", "dtype")
_tensor_traits = operator.attrgetter("shape", "dtype", "requires_grad")


class Leaf(NamedTuple):
    """Where one leaf lies in the row."""

    path: str
    shape: torch.Size  # of one step
    dtype: torch.dtype
    offset: int  # bytes; a multiple of the dtype's size

    @property
    def num_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def of_rows(self, rows: Tensor) -> Tensor:
        """The leaf [*outer_dims, *shape] of uint8 rows [*outer_dims, row_bytes]."""
        return self.of_items(rows.view(self.dtype))

    def of_items(self, items: Tensor) -> Tensor:
        """The leaf [*outer_dims, *shape] of rows that are viewed as its dtype."""
        first = self.offset // self.dtype.itemsize
        if not self.shape:
            return items[..., first]
        leaf = items[..., first : first + self.shape.numel()]
        return leaf if len(self.shape) == 1 else leaf.unflatten(-1, self.shape)


class Expected(NamedTuple):
    """What the leaves of a batch have to be, in their order."""

    tensors: list[tuple]  # shape, dtype and that there is no gradient
    arrays: list[tuple]  # shape and dtype; where numpy has no such one, torch's


class PackedSteps:
    """Rows [*dims] on the CPU, whose leaves are made where they are looked at.

    The view of an array costs a fraction of that of a tensor, and is made of all leaves
    at once.

    Args:
        fields: the rows, with one field for each leaf.
        layout: of a row.
    """

    def __init__(self, fields: np.ndarray, layout: RowLayout) -> None:
        self._fields = fields
        self._layout = layout

    def part(self, index: Any, fields: tuple[str, ...]) -> tuple[Nest, ...]:
        """Nests of tensors [*dims of the result, ...], views of some rows.

        Args:
            index: of the rows, as numpy has it.
            fields: paths such as ``time_step.observation``, a nest for each.
        """
        return self._layout.unpack(self._fields, index, fields)

    def copy_from(self, index: Any, path: str, source: PackedSteps, rows: Any) -> None:
        """Fills some rows of the field ``path`` with other rows of ``source``."""
        for name in self._layout.part((path,))[0]:
            self._fields[name][index] = source._fields[name][rows]

    def array(self, path: str) -> np.ndarray:
        """One leaf of all rows [*dims, *shape], as a view."""
        (name,), _, _ = self._layout.part((path,))
        return self._fields[name]

    def narrow(self, begin: int, end: int) -> PackedSteps:
        """Those from ``begin`` to ``end`` (exclusive) of the first dimension."""
        return PackedSteps(self._fields[begin:end], self._layout)


class RowLayout:
    """The places of all leaves of a nest in a row of ``row_bytes`` bytes.

    Args:
        data_spec: nest of TensorSpecs; the nodes may be distributions.
        placed: where the leaves are, by their paths, and how wide a row is, for rows
            that exist already and may hold more. None chooses the places.

    Raises:
        ValueError: if the nest has no leaves or the leaves hold no data, or are not
            what ``placed`` says.
        TypeError: if a leaf is not a TensorSpec.
    """

    def __init__(
        self,
        data_spec: NestedTensorSpec,
        placed: tuple[Mapping[str, Leaf], int] | None = None,
    ) -> None:
        self.data_spec = data_spec
        self._structure = optree.tree_structure(data_spec, namespace=_NAMESPACE)
        specs = nest.flatten_with_path(data_spec)
        for path, spec in specs:
            if not isinstance(spec, TensorSpec):
                raise TypeError(
                    f"data_spec: {path} must be a TensorSpec, got a "
                    f"{type(spec).__name__}. nest.extract_spec makes the specs of a "
                    "nest of tensors."
                )
        if placed is None:
            self.leaves, self.row_bytes = _place(specs)
        else:
            self.leaves, self.row_bytes = _find_placed(specs, placed[0]), placed[1]
        if self.row_bytes == 0:
            raise ValueError(f"data_spec: there is nothing to store in {data_spec}")
        self._array_names = [str(i) for i in range(len(self.leaves))]
        self._array_dtype = np.dtype(
            {
                "names": self._array_names,
                "formats": [(_array_dtype(x.dtype), x.shape) for x in self.leaves],
                "offsets": [leaf.offset for leaf in self.leaves],
                "itemsize": self.row_bytes,
            }
        )
        # Those that numpy does not know, such as bfloat16.
        self._foreign_dtypes = [
            (i, dtype)
            for i, (_, _, dtype, _) in enumerate(self.leaves)
            if numpy_dtype(dtype) is None
        ]
        # fields → names of their arrays, which of them numpy does not know, structure
        self._parts: dict[tuple[str, ...], tuple[list[str], list[Any], Any]] = {}
        # A training run uses few shapes; one that uses many shall not hoard memory.
        self.expect = functools.lru_cache(maxsize=64)(self._expect)

    def pack(self, leaves: list[Any]) -> Nest:
        """A nest with the structure of the spec."""
        return self._structure.unflatten(leaves)

    def views(self, rows: Tensor) -> list[Tensor]:
        """The leaves of ``rows`` as views.

        Args:
            rows: uint8 [*outer_dims, row_bytes], contiguous.

        Returns:
            One view [*outer_dims, *shape] per leaf.
        """
        items = {dtype: rows.view(dtype) for dtype in {x.dtype for x in self.leaves}}
        return [leaf.of_items(items[leaf.dtype]) for leaf in self.leaves]

    def array_views(self, rows: np.ndarray) -> list[Tensor]:
        """The leaves of ``rows`` as views, for rows on the CPU.

        Args:
            rows: [*outer_dims] with one element of ``row_bytes`` bytes per row. As
                :meth:`views`, but with half of the overhead.
        """
        fields = rows.view(self._array_dtype)
        leaves = [torch.from_numpy(fields[name]) for name in self._array_names]
        for i, dtype in self._foreign_dtypes:
            leaves[i] = leaves[i].view(dtype)
        return leaves

    def packed(self, rows: np.ndarray) -> PackedSteps:
        """``rows``, to be looked at in parts; as for :meth:`array_views`."""
        return PackedSteps(rows.view(self._array_dtype), self)

    def unpack(
        self, arrays: np.ndarray, index: Any, fields: tuple[str, ...]
    ) -> tuple[Nest, ...]:
        """Some fields of some rows, in their nests: views, if numpy makes views of it.

        Args:
            arrays: rows [*outer_dims] with one array for each leaf.
            index: of the rows; others are not read.
            fields: paths such as ``time_step.observation``.
        """
        names, changed, structure = self.part(fields)
        rows = arrays[index]
        tensors = [torch.from_numpy(rows[name]) for name in names]
        for i, dtype in changed:
            tensors[i] = tensors[i].view(dtype)
        if structure.num_nodes == len(tensors) + 1:  # a tuple: most of the time
            return tuple(tensors)
        nests: Any = structure.unflatten(tensors)
        return nests

    def part(self, fields: tuple[str, ...]) -> tuple[list[str], list[Any], Any]:
        """Names of their arrays, which of them numpy does not know, the structure."""
        part = self._parts.get(fields)
        if part is None:
            places: Nest = tuple(map(self.select, fields))
            leaves, structure = optree.tree_flatten(places, namespace=_NAMESPACE)
            names = [self._array_names[i] for i in leaves]
            foreign = dict(self._foreign_dtypes)
            changed = [(k, foreign[i]) for k, i in enumerate(leaves) if i in foreign]
            part = self._parts[fields] = names, changed, structure
        return part

    def fields(self, rows: Tensor) -> list[np.ndarray]:
        """The leaves of ``rows`` as arrays that are views, for rows on the CPU.

        Args:
            rows: uint8 [*outer_dims, row_bytes], contiguous.

        Returns:
            One array [*outer_dims, *shape] per leaf.
        """
        fields = rows.numpy().view(self._array_dtype)[..., 0]
        return [fields[name] for name in self._array_names]

    def select(self, field: str) -> Nest:
        """The indices of the leaves at or below a path, in the nest found there.

        Args:
            field: path such as ``time_step.observation`` or ``action['arm']``.

        Raises:
            ValueError: if there is no such field; lists those there are.
        """
        for i, leaf in enumerate(self.leaves):
            if leaf.path == field:
                return i
        node = self.pack(list(range(len(self.leaves))))
        position = 0
        try:
            while position < len(field):
                step = _PATH_STEP.match(field, position)
                if step is None:
                    raise KeyError(field[position:])
                name, key, index = step.groups()
                if name is not None:
                    node = getattr(node, name)
                else:
                    node = node[int(index) if key is None else key]
                position = step.end()
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(
                f"there is no field {field!r}; the leaves are "
                f"{', '.join(leaf.path for leaf in self.leaves)}"
            ) from error
        return node

    def find(self, name: str) -> int:
        """The index of the one leaf with this name.

        Raises:
            ValueError: if there is no such leaf or more than one.
        """
        is_it = re.compile(rf"\b{re.escape(name)}\W*$")
        paths = [leaf.path for leaf in self.leaves]
        found = [i for i, path in enumerate(paths) if is_it.search(path)]
        if len(found) != 1:
            raise ValueError(
                f"expected one leaf named {name}, found {len(found)} among "
                f"{', '.join(paths)}"
            )
        return found[0]

    def _expect(self, *outer_dims: int) -> Expected:
        """What the leaves of a batch have to be, for :meth:`flatten`."""
        tensors, arrays = [], []
        for leaf in self.leaves:
            shape = torch.Size((*outer_dims, *leaf.shape))
            tensors.append((shape, leaf.dtype, False))
            arrays.append((shape, numpy_dtype(leaf.dtype) or leaf.dtype))
        return Expected(tensors, arrays)

    def flatten(
        self, batch: Nest, expected: Expected, keep_arrays: bool = True
    ) -> Leaves:
        """The leaves of ``batch``, detached.

        Args:
            batch: nest of tensors and numpy arrays.
            expected: from ``expect``.
            keep_arrays: whether a batch of numpy arrays is left as it is.

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
                if keep_arrays and list(map(_traits, leaves)) == expected.arrays:
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
        nest.assert_same_structure(self.data_spec, batch)
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


def _place(specs: list[tuple[str, TensorSpec]]) -> tuple[list[Leaf], int]:
    """Lays out the leaves and returns them, in the order of the nest, and the width.

    Wide dtypes come first: every offset is then a multiple of its dtype's size.
    """
    order = sorted(range(len(specs)), key=lambda i: -specs[i][1].dtype.itemsize)
    leaves: dict[int, Leaf] = {}
    offset = 0
    for i in order:
        path, spec = specs[i]
        leaves[i] = Leaf(path, spec.shape, spec.dtype, offset)
        offset += leaves[i].num_bytes
    widest = max((spec.dtype.itemsize for _, spec in specs), default=1)
    return [leaves[i] for i in range(len(specs))], -(-offset // widest) * widest


def dtype_name(dtype: torch.dtype) -> str:
    """Such as ``float32``."""
    return str(dtype).removeprefix("torch.")


def _find_placed(
    specs: list[tuple[str, TensorSpec]], placed: Mapping[str, Leaf]
) -> list[Leaf]:
    """The leaves in the order of the nest.

    Raises:
        ValueError: if one is missing or has another shape or dtype.
    """
    for path, spec in specs:
        leaf = placed.get(path)
        if leaf is None or (leaf.shape, leaf.dtype) != (spec.shape, spec.dtype):
            raise ValueError(f"{path}: expected {spec}, the rows have {leaf}")
    return [placed[path] for path, _ in specs]


def numpy_dtype(dtype: torch.dtype) -> np.dtype | None:
    """The same one of numpy, if there is one: there is none for bfloat16."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def _array_dtype(dtype: torch.dtype) -> np.dtype:
    """The numpy dtype of this name, or an integer of the same size."""
    return numpy_dtype(dtype) or np.dtype(f"i{dtype.itemsize}")


def _to_tensor(leaf: Tensor | np.ndarray) -> Tensor:
    """``leaf`` or a copy of it."""
    # torch warns of arrays that cannot be written, and refuses negative strides.
    return leaf if isinstance(leaf, Tensor) else torch.from_numpy(np.array(leaf))
