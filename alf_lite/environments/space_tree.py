"""The leaves of a gymnasium space, in the order of ``alf_lite.nest``.

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
    """

    def __init__(self, space: Space, path: str) -> None:
        self.space = space
        self.path = path
        self.leaves = list(_leaves(space, path, ()))
        if not self.leaves:
            raise ConfigError(f"{path}: the space {space} is empty")
        self._is_leaf = isinstance(space, LEAF_SPACES)

    def split(self, value: Nest) -> list[Any]:
        """The leaves of ``value``; dicts in the order of their sorted keys.

        Raises:
            EnvError: naming the path, if a part is missing.
        """
        if self._is_leaf:
            return [value]
        try:
            return [_get(value, leaf.keys) for leaf in self.leaves]
        except (KeyError, IndexError, TypeError):
            self.check(value)
            raise

    def join(self, leaves: Sequence[Any]) -> Nest:
        """A nest of dicts and tuples with the given leaves."""
        if self._is_leaf:
            return leaves[0]
        return _join(self.space, iter(leaves))

    def check(self, value: Any) -> None:
        """Compares keys and lengths with the space; leaves are not looked at.

        Raises:
            EnvError: naming the path, what was expected and what came.
        """
        _check_structure(self.space, value, self.path)


def describe(value: Any) -> str:
    """What came, in a few words for a message."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} of shape {value.shape}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _get(value: Nest, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def _join(space: Space, leaves: Iterator[Any]) -> Nest:
    if isinstance(space, spaces.Dict):
        return {key: _join(space[key], leaves) for key in sorted(space.keys())}
    if isinstance(space, spaces.Tuple):
        return tuple(_join(part, leaves) for part in space.spaces)
    return next(leaves)


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
            f"{path}: the space {space} has no fixed shape that tensors could have. "
            "Supported are Box, Discrete, MultiDiscrete and MultiBinary in any nesting "
            f"of Dict and Tuple. Suggestion: {hint}, with gymnasium.wrappers."
            "TransformObservation or TransformAction."
        )
