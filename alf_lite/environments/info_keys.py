"""The parts of an environment's info dict that become ``TimeStep.env_info``.

gymnasium's infos have no spec: a key may come at some steps only. So the user declares
the keys; where a key is missing the value is zero. A key that nobody has had when the
first episode of a batch ends may be misspelt: that is an error, unless it is marked as
optional. Without torch, see space_tree.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from alf_lite.environments.space_tree import Column, RowError
from alf_lite.errors import ConfigError, EnvError

Infos = dict[str, Any]

_MISSING = object()
_OPTIONAL = "?"  # at the end of a name
_MAX_NAMES = 20  # of a message


class InfoKeys:
    """The declared keys with the shapes of their values.

    Args:
        keys: names of scalars, or a mapping from names to shapes. ``"episode/r"`` is
            the entry ``"r"`` of the dict ``"episode"``. A key that need not come in
            every episode is written ``"goal_time?"``; its name is ``"goal_time"``.

    Raises:
        ConfigError: if it is neither.
    """

    def __init__(self, keys: Sequence[str] | Mapping[str, Sequence[int]] = ()) -> None:
        if isinstance(keys, str):
            raise ConfigError(
                f"env_info_keys: expected a list of names, got {keys!r}. "
                f"Did you mean [{keys!r}]?"
            )
        shapes = keys if isinstance(keys, Mapping) else dict.fromkeys(keys, ())
        for name in shapes:
            if not isinstance(name, str) or not name.removesuffix(_OPTIONAL):
                raise ConfigError(f"env_info_keys: {name!r} is not the name of a key")
        # What builds the same keys again
        self.declared = {name: tuple(shape) for name, shape in shapes.items()}
        # Everything becomes float32: flags, counts and measures are averaged alike.
        self._columns: dict[str, Column] = {}
        for key, shape in self.declared.items():
            name = key.removesuffix(_OPTIONAL)
            self._columns[name] = Column(f"env_info[{name!r}]", shape, np.float32)

    def __bool__(self) -> bool:
        return bool(self._columns)

    @property
    def required(self) -> frozenset[str]:
        """The names that are not optional."""
        return frozenset(self.declared.keys() & self._columns.keys())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each value, without the batch dimension."""
        return {name: column.shape for name, column in self._columns.items()}

    def write(self, batch: Infos, row: int, info: Any) -> None:
        """Writes what ``info`` has into row ``row`` of arrays made by ``allocate``.

        Raises:
            RowError: if a value is not a number or array of the declared shape.
        """
        for name, column in self._columns.items():
            value = _lookup(info, name)
            if value is _MISSING or value is None:
                continue
            try:
                batch[name][row] = column.convert(value)
            except EnvError as error:
                raise RowError(row, str(error)) from None
            batch["_" + name][row] = True

    def allocate(self, num_environments: int) -> Infos:
        """Zeros for each key, and its mask ``"_" + key`` of who has it."""
        batch: Infos = {}
        for name, column in self._columns.items():
            batch[name] = np.zeros((num_environments, *column.shape), column.dtype)
            batch["_" + name] = np.zeros(num_environments, np.bool_)
        return batch

    def read(self, infos: Infos, batch: Mapping[str, np.ndarray]) -> None:
        """Writes the declared keys of a vector environment's infos to ``batch``.

        Rows that the mask does not name, and keys that nobody has, become zero.

        Args:
            infos: as a vector environment returns them.
            batch: of each key, [B, *shape] float32.

        Raises:
            EnvError: if a value is not an array of the declared shape.
        """
        for name, column in self._columns.items():
            _read(infos, name, column, batch[name])


def still_unseen(names: Iterable[str], infos: Infos) -> frozenset[str]:
    """Those of ``names`` that no environment has in a vector environment's infos."""
    return frozenset(
        name
        for name in names
        if _lookup(infos, name) is _MISSING or not _any_has(infos, name)
    )


def raise_unseen(unseen: Iterable[str], seen: Iterable[str]) -> NoReturn:
    """Raises ConfigError for keys that did not come during a whole episode.

    Args:
        unseen: these keys.
        seen: the keys that came.
    """
    names = sorted(set(seen))
    similar = [
        repr(match)
        for name in sorted(unseen)
        for match in difflib.get_close_matches(name, names, n=2)
    ]
    hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if names[_MAX_NAMES:] else "")
    missing = ", ".join(map(repr, sorted(unseen)))
    raise ConfigError(
        f"env_info_keys: {missing} did not come in a whole episode; the infos at its "
        f"end have {f'the keys {shown}' if names else 'no keys'}.{hint} One that need "
        f"not come in every episode is written {min(unseen) + _OPTIONAL!r}."
    )


def info_names(info: Any) -> list[str]:
    """The names by which the parts of ``info`` can be declared."""
    names = []
    for name, value in info.items() if isinstance(info, Mapping) else ():
        if not isinstance(name, str) or name.startswith("_"):
            continue
        if isinstance(value, Mapping):
            names += [f"{name}/{part}" for part in info_names(value)]
        else:
            names.append(name)
    return names


def find(infos: Infos, name: str) -> tuple[Any, Any]:
    """What a vector environment's infos have of a key, and which environments have it.

    Either may be None: nobody has the key; all of them have it.
    """
    found = _lookup(infos, name), _mask(infos, name)
    return (
        None if found[0] is _MISSING else found[0],
        None if found[1] is _MISSING else found[1],
    )


def _any_has(infos: Infos, name: str) -> bool:
    mask = _mask(infos, name)
    # An array or a tensor, on whatever device.
    return mask is _MISSING or bool(mask.any())


def _mask(infos: Infos, name: str) -> Any:
    """Which environments have the key; missing where all of them do."""
    head, _, last = name.rpartition("/")
    return _lookup(
        infos, f"{head}/_{last}" if head and name not in infos else f"_{name}"
    )


def _lookup(info: Any, name: str) -> Any:
    """``info[name]``, or for ``"a/b"`` also ``info["a"]["b"]``."""
    if name in info:
        return info[name]
    head, slash, rest = name.partition("/")
    if slash and isinstance(info.get(head), Mapping):
        return _lookup(info[head], rest)
    return _MISSING


def _read(infos: Infos, name: str, column: Column, result: np.ndarray) -> None:
    num_environments = len(result)
    result.fill(0)
    values = _lookup(infos, name)
    if values is _MISSING:
        return
    mask = _mask(infos, name)
    values = np.asarray(values)
    # An object array holds None where the mask is False.
    rows = np.arange(num_environments) if mask is _MISSING else np.flatnonzero(mask)
    if values.shape[:1] != (num_environments,):
        raise EnvError(
            f"{column.path}: expected one value per environment, got an array of shape "
            f"{values.shape} for {num_environments} environments"
        )
    if values.dtype != object and len(rows) == num_environments:
        result[:] = Column(column.path, result.shape, column.dtype).convert(values)
    else:
        result[rows] = column.stack([values[row] for row in rows])
