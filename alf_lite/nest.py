"""Nests: tuples, lists, dicts and NamedTuples with tensors or anything as leaves.

``()`` is the empty nest and means "absent"; ``None`` has no leaves either. The leaves
of a dict come in the order of its sorted keys, those of a NamedTuple in field order.
More node types join with :func:`register_node`, as the distributions do.

The traversal is optree's. What this module adds: strict structures (a leaf never
silently matches a whole sub-nest) and errors that name the path of the leaf.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import optree
import torch
from torch import Tensor

from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

Nest = Any
_T = TypeVar("_T")

_NAMESPACE = "alf_lite"
# Seldom anything else is a leaf: these are known to be no nodes.
_LEAF_TYPES = {Tensor, torch.nn.Parameter, np.ndarray, TensorSpec, BoundedTensorSpec}


def register_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[Sequence[Nest], Any]],
    unflatten_fn: Callable[[Any, Any], Any],
) -> None:
    """Makes instances of ``cls`` inner nodes of nests.

    Args:
        cls: the exact type; subclasses are registered on their own.
        flatten_fn: object -> (children, metadata). Metadata is hashable and compared
            with ``==`` when structures are compared.
        unflatten_fn: (metadata, children) -> object. It must accept children of any
            type, because a nest of specs is rebuilt with the same nodes.
    """
    optree.register_pytree_node(cls, flatten_fn, unflatten_fn, namespace=_NAMESPACE)


def flatten(nest: Nest) -> list[Any]:
    """The leaves of ``nest`` in their fixed order."""
    if isinstance(nest, Tensor):
        return [nest]
    return optree.tree_leaves(nest, namespace=_NAMESPACE)


def flatten_with_path(nest: Nest) -> list[tuple[str, Any]]:
    """The leaves with their paths, such as ``("observation['arm'][0]", leaf)``."""
    accessors, leaves, _ = optree.tree_flatten_with_accessor(nest, namespace=_NAMESPACE)
    return [(_path(a), leaf) for a, leaf in zip(accessors, leaves, strict=True)]


def map_structure(fn: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """``fn`` applied to the corresponding leaves of nests of one structure.

    Raises:
        ValueError: if the structures differ; the message names the first difference.
    """
    if not others:
        if isinstance(nest, Tensor):
            return fn(nest)
        return optree.tree_map(fn, nest, namespace=_NAMESPACE)
    if isinstance(nest, Tensor) and all(isinstance(n, Tensor) for n in others):
        return fn(nest, *others)
    leaves, structure = optree.tree_flatten(nest, namespace=_NAMESPACE)
    columns = [_leaves_as(structure, nest, other) for other in others]
    return structure.unflatten(map(fn, leaves, *columns))


def map_structure_with_path(fn: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """As :func:`map_structure`; ``fn`` gets the leaf's path as its first argument."""
    assert_same_structure(nest, *others)
    paths = [path for path, _ in flatten_with_path(nest)]
    columns = [flatten(n) for n in (nest, *others)]
    return pack_sequence_as(
        nest, [fn(*row) for row in zip(paths, *columns, strict=True)]
    )


def pack_sequence_as(nest: Nest, flat: Iterable[Any]) -> Nest:
    """A nest with the structure of ``nest`` and the leaves ``flat``.

    Raises:
        ValueError: if the number of leaves differs.
    """
    structure = optree.tree_structure(nest, namespace=_NAMESPACE)
    leaves = list(flat)
    if len(leaves) != structure.num_leaves:
        raise ValueError(
            f"pack_sequence_as: the structure has {structure.num_leaves} leaves, "
            f"got {len(leaves)} values. Structure: {structure}"
        )
    return structure.unflatten(leaves)


def structure(nest: Nest) -> optree.PyTreeSpec:
    """What all nests of one structure have in common, without their leaves."""
    return optree.tree_structure(nest, namespace=_NAMESPACE)


def assert_same_structure(nest: Nest, *others: Nest) -> None:
    """Raises ValueError naming the first difference, if the structures differ."""
    structure = optree.tree_structure(nest, namespace=_NAMESPACE)
    for other in others:
        if optree.tree_structure(other, namespace=_NAMESPACE) != structure:
            raise ValueError(_difference(nest, other))


def flatten_up_to(nest: Nest, other: Nest) -> list[Any]:
    """What ``other`` has where ``nest`` has leaves; there it may be any nest.

    Raises:
        ValueError: naming the first difference, if they differ above that.
    """
    structure = optree.tree_structure(nest, namespace=_NAMESPACE)
    try:
        return structure.flatten_up_to(other)
    except ValueError:
        raise ValueError(_difference(nest, other)) from None


def stack(nests: Sequence[Nest], dim: int = 0) -> Nest:
    """One nest whose leaves stack those of ``nests`` along a new dimension."""
    return _join(nests, torch.stack, dim, "stack")


def unstack(nest: Nest) -> list[Nest]:
    """The reverse of :func:`stack` with ``dim=0``: views of tensors or arrays."""
    leaves, structure = optree.tree_flatten(nest, namespace=_NAMESPACE)
    columns = [leaf.unbind(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return [structure.unflatten(row) for row in zip(*columns, strict=True)]


def cat(nests: Sequence[Nest], dim: int = 0) -> Nest:
    """One nest whose leaves concatenate those of ``nests``."""
    return _join(nests, torch.cat, dim, "cat")


def narrow(nest: Nest, begin: int, end: int | None, dim: int = 0) -> Nest:
    """``[begin:end]`` along a dimension (0 or more) of every leaf."""
    rows = slice(begin, end)
    if isinstance(nest, Tensor):
        return nest[(slice(None),) * dim + (rows,)]
    leaves, structure = optree.tree_flatten(nest, namespace=_NAMESPACE)
    if not leaves or rows.indices(leaves[0].shape[dim]) == (0, leaves[0].shape[dim], 1):
        return nest
    # As fast as writing t[begin:end] for every leaf; Tensor.narrow takes half longer.
    take = operator.itemgetter((slice(None),) * dim + (rows,) if dim else rows)
    return structure.unflatten(map(take, leaves))


def extract_spec(nest: Nest, from_dim: int = 1) -> Nest:
    """The TensorSpec of every leaf, without its first ``from_dim`` dimensions."""
    return map_structure(lambda t: TensorSpec.from_tensor(t, from_dim), nest)


def zeros(specs: Nest, outer_dims: Sequence[int] = ()) -> Nest:
    """Zero tensors for a nest of specs, each of shape ``outer_dims + spec.shape``."""
    return map_structure(lambda spec: spec.zeros(outer_dims), specs)


def is_empty(nest: Nest) -> bool:
    """Whether the nest has no leaves."""
    if isinstance(nest, tuple):  # asked at every step, of tuples in most cases
        return all(map(is_empty, nest))
    if isinstance(nest, dict):  # torch.compile cannot trace optree's structure of it
        return all(map(is_empty, nest.values()))
    return optree.tree_structure(nest, namespace=_NAMESPACE).num_leaves == 0


def batch_size(nest: Nest) -> int:
    """The size of the first dimension, which all leaves must share."""
    sizes = {leaf.shape[0] for leaf in flatten(nest)}
    if not sizes:
        raise ValueError("batch_size: the nest has no leaves")
    if len(sizes) > 1:
        by_path = {path: leaf.shape[0] for path, leaf in flatten_with_path(nest)}
        raise ValueError(f"batch_size: the leaves disagree: {by_path}")
    return sizes.pop()


def _join(
    nests: Sequence[Nest], join: Callable[..., Tensor], dim: int, name: str
) -> Nest:
    if not nests:
        raise ValueError(f"{name}: no nests to join")
    leaves, structure = optree.tree_flatten(nests[0], namespace=_NAMESPACE)
    columns = [leaves]
    columns += [_leaves_as(structure, nests[0], other) for other in nests[1:]]
    return structure.unflatten(
        [join(column, dim) for column in zip(*columns, strict=True)]
    )


def _leaves_as(structure: Any, expected: Nest, nest: Nest) -> list[Any]:
    """The leaves of ``nest``, which must have the structure of ``expected``.

    Raises:
        ValueError: naming the first difference.
    """
    try:
        # In a fraction of the time that flattening takes, but a leaf matches a nest.
        leaves = structure.flatten_up_to(nest)
    except ValueError:
        raise ValueError(_difference(expected, nest)) from None
    if _LEAF_TYPES.issuperset(map(type, leaves)):
        return leaves
    leaves, other_structure = optree.tree_flatten(nest, namespace=_NAMESPACE)
    if other_structure != structure:
        raise ValueError(_difference(expected, nest))
    return leaves


def _path(accessor: optree.PyTreeAccessor) -> str:
    # codify writes "root.field['key'][0]"; the root's own name says nothing.
    return accessor.codify("").removeprefix(".") or "<root>"


def _difference(expected: Nest, got: Nest, path: str = "") -> str:
    """The first difference of two structures, in words."""
    where = path or "<root>"
    try:
        expected_children, got_children = _children(expected), _children(got)
    except ValueError as error:  # pragma: no cover - optree's own wording
        return f"{where}: {error}"
    if expected_children is None or got_children is None:
        return (
            f"nest structures differ at {where}: expected {_describe(expected)}, "
            f"got {_describe(got)}"
        )
    if type(expected) is not type(got):
        return (
            f"nest structures differ at {where}: expected a "
            f"{type(expected).__name__}, got a {type(got).__name__}"
        )
    expected_entries, got_entries = expected_children[2], got_children[2]
    if list(expected_entries) != list(got_entries):
        missing = [e for e in expected_entries if e not in got_entries]
        extra = [e for e in got_entries if e not in expected_entries]
        return (
            f"nest structures differ at {where}: missing {missing}, unexpected {extra}"
        )
    if expected_children[1] != got_children[1]:
        return (
            f"nest structures differ at {where}: {type(expected).__name__} nodes of "
            f"different kinds: {expected_children[1]} and {got_children[1]}"
        )
    fields = getattr(type(expected), "_fields", None)
    for entry, e, g in zip(
        expected_entries, expected_children[0], got_children[0], strict=True
    ):
        structures = [optree.tree_structure(n, namespace=_NAMESPACE) for n in (e, g)]
        if structures[0] != structures[1]:
            step = f".{fields[entry]}" if fields else f"[{entry!r}]"
            return _difference(e, g, (path + step).removeprefix("."))
    return f"nest structures differ at {where}"  # pragma: no cover - not reachable


def _children(nest: Nest) -> Any:
    """Children, metadata and entries of a node; None of a leaf."""
    if not _is_node(nest):
        return None
    return optree.tree_flatten_one_level(nest, namespace=_NAMESPACE)


def _is_node(nest: Nest) -> bool:
    structure = optree.tree_structure(nest, namespace=_NAMESPACE)
    return not optree.treespec_is_leaf(structure)


def _describe(nest: Nest) -> str:
    if isinstance(nest, Tensor):
        return f"a tensor of shape {tuple(nest.shape)}"
    if not _is_node(nest):
        return f"a leaf of type {type(nest).__name__}"
    if is_empty(nest):
        return f"an empty nest ({nest!r})"
    return f"a {type(nest).__name__} with {len(flatten(nest))} leaves"


# The paths of leaves, as ``flatten_with_path`` writes them


def path_parts(path: str) -> list[str]:
    """The keys, fields and indices of a path, outermost first.

    ``"observation['arm'][0]"`` has the parts ``["observation", "arm", "0"]``; the path
    of a nest that is one leaf has none.
    """
    if path == "<root>":
        return []
    # ['key'], ["key"], [index] or field
    parts = re.findall(r"\['(.*?)'\]|\[\"(.*?)\"\]|\[(.*?)\]|([^.\[]+)", path)
    return ["".join(groups) for groups in parts]


def leaf_name(root: str, path: str, separator: str = ".") -> str:
    """A name for messages and summaries, such as ``"observation.arm.0"``."""
    return separator.join((root, *path_parts(path)))


def at_path(path: str, make: Callable[[Any], _T], leaf: Any) -> _T:
    """``make(leaf)``, whose messages know nothing of the path of the leaf."""
    try:
        return make(leaf)
    except ValueError as error:
        raise ValueError(str(error).replace("<root>", path)) from error


def build_nest(leaves: Mapping[str, Any], types: Mapping[str, type]) -> Any:
    """A nest with leaves at given paths.

    A path does not say of which NamedTuple a field is: a node with fields becomes what
    ``types`` has for its path, if that has all of these fields, or else a dict. Indices
    become a tuple, in which ``()`` stands where there is no leaf.

    Args:
        leaves: path -> leaf.
        types: path -> NamedTuple; ``"<root>"`` is the outermost one.

    Raises:
        ValueError: if the paths contradict each other.
    """
    steps = [(_steps(path), leaf) for path, leaf in leaves.items()]
    return _build("", steps, types)


def _steps(path: str) -> list[str]:
    """A path in pieces, such as ``[".observation", "['arm']", "[0]"]``."""
    if path == "<root>":
        return []
    # The parameters of a distribution have indices of their own.
    path = re.sub(r"\[<flat index (\d+)>\]", r"[\1]", path)
    pieces = re.findall(r"\['.*?'\]|\[\".*?\"\]|\[\d+\]|\.?[^.\[]+", path)
    if "".join(pieces) != path:
        raise ValueError(f"{path!r} is not the path of a leaf")
    return [piece if piece[0] in ".[" else f".{piece}" for piece in pieces]


def _build(
    path: str, leaves: list[tuple[list[str], Any]], types: Mapping[str, type]
) -> Any:
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    children: dict[str, list[tuple[list[str], Any]]] = {}
    for steps, leaf in leaves:
        if not steps:
            raise ValueError(f"{path!r} is a leaf and has leaves below it")
        children.setdefault(steps[0], []).append((steps[1:], leaf))
    built = {
        step: _build((path + step).removeprefix("."), below, types)
        for step, below in children.items()
    }
    return _node(path, built, types.get(path or "<root>"))


def _node(path: str, built: dict[str, Any], cls: type | None) -> Any:
    """What has these children; ``cls``, if it has fields of their names."""
    kinds = {_kind(step) for step in built}
    if len(kinds) > 1:
        raise ValueError(f"{path!r} has {' and '.join(sorted(kinds))}")
    if kinds == {"indices"}:
        by_index = {int(step[1:-1]): node for step, node in built.items()}
        return tuple(by_index.get(i, ()) for i in range(max(by_index) + 1))
    if kinds == {"keys"}:
        return {step[2:-2]: node for step, node in built.items()}
    fields = {step[1:]: node for step, node in built.items()}
    if cls is not None and set(fields) <= set(getattr(cls, "_fields", ())):
        return cls(**fields)
    return fields


def _kind(step: str) -> str:
    if step[0] == ".":
        return "fields"
    return "keys" if step[1] in "'\"" else "indices"
