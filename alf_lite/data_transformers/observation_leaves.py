"""The parts of an observation that a transformer changes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from alf_lite import nest
from alf_lite.errors import ConfigError
from alf_lite.nest import path_parts
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec


def select_leaves(
    observation_spec: NestedTensorSpec,
    fields: Sequence[str] | None,
    is_suitable: Callable[[TensorSpec], bool],
    needed: str,
) -> dict[str, int]:
    """The leaves to change, sorted by name, and their positions in the flattened spec.

    The name of a leaf is its path with dots, ``"arm.joints.0"``, or ``"observation"``
    if there is only that one leaf.

    Args:
        observation_spec: of one observation.
        fields: names of leaves or of nests of leaves, such as ``"arm"``; None for all
            leaves that are suitable.
        is_suitable: whether the transformer can change such a leaf.
        needed: what a suitable leaf is, for errors.

    Raises:
        ConfigError: if a field does not exist or is not suitable, or if there are none.
    """
    specs = {
        ".".join(path_parts(path)) or "observation": spec
        for path, spec in nest.flatten_with_path(observation_spec)
    }
    names = list(specs)
    if fields is None:
        selected = [name for name in names if is_suitable(specs[name])]
    else:
        _check_fields(fields, names)
        selected = [name for name in names if any(_is_in(name, f) for f in fields)]
        for name in selected:
            if not is_suitable(specs[name]):
                raise ConfigError(f"'{name}' must be {needed}, it is a {specs[name]}")
    if not selected:
        raise ConfigError(f"no part of the observation is {needed}: {specs}")
    return {name: names.index(name) for name in sorted(selected)}


def replace_specs(
    observation_spec: NestedTensorSpec,
    positions: Iterable[int],
    new_spec: Callable[[TensorSpec], TensorSpec],
) -> NestedTensorSpec:
    """``observation_spec`` with ``new_spec`` of the specs at ``positions``."""
    specs = nest.flatten(observation_spec)
    for i in positions:
        specs[i] = new_spec(specs[i])
    return nest.pack_sequence_as(observation_spec, specs)


def _check_fields(fields: Sequence[str], names: Sequence[str]) -> None:
    if isinstance(fields, str):
        raise ConfigError(f"fields must be a list of names, write ['{fields}']")
    for field in fields:
        if not any(_is_in(name, field) for name in names):
            near = difflib.get_close_matches(field, names, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise ConfigError(
                f"the observation has no field '{field}', only {list(names)}.{hint}"
            )


def _is_in(name: str, field: str) -> bool:
    return name == field or name.startswith(f"{field}.")
