"""The bounds that an environment's specs set for the fields of a source."""

from __future__ import annotations

from alf_lite import nest
from alf_lite.datasets.source import Source, join_path
from alf_lite.datasets.statistics import Bounds
from alf_lite.environments.environment import Environment
from alf_lite.environments.recorded_values import RecordedLeaf
from alf_lite.tensor_specs import BoundedTensorSpec
from alf_lite.utils.nest_paths import path_parts


def spec_bounds(source: Source, env: Environment) -> dict[str, Bounds]:
    """By the names of the fields; in the environment's units if the source is.

    Args:
        source: what has observations, and ``action`` or ``prev_action``.
        env: that it is said to be of.
    """
    values = env.recorded_values if source.is_in_environment_units else None
    observations = values.observations if values is not None else {}
    actions = values.actions if values is not None else {}
    bounds = {}
    for name, specs, leaves in (
        ("observation", env.observation_spec, observations),
        ("action", env.action_spec, actions),
        ("prev_action", env.action_spec, actions),
    ):
        for path, spec in nest.flatten_with_path(specs):
            keys = tuple(path_parts(path))
            field = join_path(name, *keys)
            if field in source.fields and isinstance(spec, BoundedTensorSpec):
                bounds[field] = _bounds(spec, leaves.get(keys))
    return bounds


def _bounds(spec: BoundedTensorSpec, leaf: RecordedLeaf | None) -> Bounds:
    low, high = spec.minimum, spec.maximum
    if leaf is None:
        return Bounds(low, high)
    return Bounds(leaf.to_environment(low), leaf.to_environment(high))
