"""The paths of leaves, as ``nest.flatten_with_path`` writes them, taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable
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
