"""Which recorded field becomes which leaf of a step, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from alf_lite import nest
from alf_lite.data_structures import Experience, time_step_spec
from alf_lite.datasets.source import (
    REQUIRED_FIELDS,
    RecordedField,
    Source,
    field_kind,
    join_path,
)
from alf_lite.environments.environment import Environment
from alf_lite.errors import DataError
from alf_lite.nest import path_parts
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Convert = Callable[[np.ndarray], np.ndarray]


class MatchedField(NamedTuple):
    """A field of the source and what it becomes."""

    path: str  # of the source's field
    spec: TensorSpec
    dtype: np.dtype  # of the spec
    to_agent: Convert | None  # from the environment's units, before the dtype changes


def experience_spec(env: Environment) -> Experience:
    """What is stored of every step, however it was recorded."""
    time_step = time_step_spec(
        env.observation_spec, env.action_spec, env.reward_spec, env.env_info_spec
    )
    return Experience(time_step=time_step, action=env.action_spec)


def match_fields(
    source: Source, env: Environment, zero_missing_env_info: bool = False
) -> dict[str, MatchedField]:
    """The fields that are loaded.

    Args:
        source: what they are of.
        env: that they have to fit.
        zero_missing_env_info: leave out what the source has not of ``env_info``.

    Returns:
        By their paths, with ``action`` for both kinds of actions.

    Raises:
        DataError: listing every field that is missing, or has another shape or a dtype
            that cannot become that of the environment, or is not in the environment.
    """
    spec = experience_spec(env).time_step
    action_name = "prev_action" if _has(source, "prev_action") else "action"
    expected = {name: getattr(spec, name) for name in REQUIRED_FIELDS}
    expected |= _by_path("observation", spec.observation)
    actions = _by_path(action_name, spec.prev_action)
    expected |= actions
    env_info = _by_path("env_info", spec.env_info)
    optional = env_info if zero_missing_env_info else {}
    conversions = _conversions(source, env, action_name)
    matched, differences = {}, []
    for path, leaf_spec in {**expected, **env_info}.items():
        found = source.fields.get(path)
        if found is None and path in optional:
            continue
        dtype = leaf_spec.zeros().numpy().dtype
        if not _fits(found, leaf_spec, dtype):
            differences.append((path, f"{tuple(leaf_spec.shape)} {dtype}", found))
            continue
        name = path.replace(action_name, "action", 1) if path in actions else path
        matched[name] = MatchedField(path, leaf_spec, dtype, conversions.get(path))
    differences += [
        (path, "nothing", field)
        for path, field in source.fields.items()
        if path not in expected and field_kind(path) in ("observation", action_name)
    ]
    if differences:
        raise DataError(_explain(source, env, differences))
    return matched


def _has(source: Source, name: str) -> bool:
    return any(field_kind(path) == name for path in source.fields)


def _by_path(name: str, specs: NestedTensorSpec) -> dict[str, TensorSpec]:
    by_path: dict[str, TensorSpec] = {}
    for path, spec in nest.flatten_with_path(specs):
        field = join_path(name, *path_parts(path))
        if field in by_path:
            raise DataError(
                f"two leaves of the environment's {name} would be the recorded field "
                f"{field}: a key must not have a / in it where others are nested"
            )
        by_path[field] = spec
    return by_path


def _conversions(
    source: Source, env: Environment, action_name: str
) -> dict[str, Convert]:
    values = env.recorded_values
    if not source.is_in_environment_units or values is None:
        return {}
    return {
        join_path(name, *keys): leaf.to_agent
        for name, leaves in (
            ("observation", values.observations),
            (action_name, values.actions),
        )
        for keys, leaf in leaves.items()
    }


def _fits(found: RecordedField | None, spec: TensorSpec, dtype: np.dtype) -> bool:
    return (
        found is not None
        and found.shape == tuple(spec.shape)
        and is_convertible(found.dtype, dtype)
    )


def is_convertible(found: np.dtype, expected: np.dtype) -> bool:
    """Whether values may be converted: without loss, or from double precision.

    Of integers it depends on the values, which are compared when they are converted.
    """
    if found.kind not in "biuf":
        return False
    if found.kind == "f":
        return expected.kind == "f" and (found.itemsize <= 8)
    return expected.kind != "b" or found.kind == "b"


def _explain(
    source: Source,
    env: Environment,
    differences: list[tuple[str, str, RecordedField | None]],
) -> str:
    lines = [
        f"  {path}: expected {expected}, found {'nothing' if found is None else found}"
        for path, expected, found in sorted(differences, key=lambda d: d[0])
    ]
    advice = "Was it recorded in another environment?"
    if any(p.startswith("env_info") and f is None for p, _, f in differences):
        advice += (
            " load_replay_buffer.zero_missing_env_info = True takes zeros for what was "
            "not recorded of env_info."
        )
    return (
        f"{source.name} does not fit the environment {env.name}; {len(lines)} "
        f"field{'s differ' if len(lines) > 1 else ' differs'}:\n"
        + "\n".join(lines)
        + f"\n{advice}"
    )
