"""The paths of leaves, as ``nest.flatten_with_path`` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


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
    kinds = {_kind(step) for step in built}
    if len(kinds) > 1:
        raise ValueError(f"{path!r} has {' and '.join(sorted(kinds))}")
    if kinds == {"indices"}:
        by_index = {int(step[1:-1]): node for step, node in built.items()}
        return tuple(by_index.get(i, ()) for i in range(max(by_index) + 1))
    if kinds == {"keys"}:
        return {step[2:-2]: node for step, node in built.items()}
    fields = {step[1:]: node for step, node in built.items()}
    cls = types.get(path or "<root>")
    if cls is not None and set(fields) <= set(getattr(cls, "_fields", ())):
        return cls(**fields)
    return fields


def _kind(step: str) -> str:
    if step[0] == ".":
        return "fields"
    return "keys" if step[1] in "'\"" else "indices"
