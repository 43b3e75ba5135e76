"""What is in a source of recorded steps: counts, returns, and what is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from alf_lite import nest
from alf_lite.data_structures import StepType
from alf_lite.datasets.source import (
    RecordedField,
    Segments,
    Source,
    StepSequence,
    field_kind,
    join_path,
    seams,
)
from alf_lite.environments.environment import Environment
from alf_lite.environments.space_specs import RecordedLeaf
from alf_lite.errors import DataError
from alf_lite.nest import path_parts
from alf_lite.tensor_specs import BoundedTensorSpec

# Values that are looked at together: what compares them needs memory too.
_CHUNK_VALUES = 2**22
_MAX_PLACES = 10


class Bounds(NamedTuple):
    """The lowest and highest values that a field may have; broadcast to its shape."""

    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass
class Findings:
    """Values of one kind that are wrong."""

    count: int = 0  # values
    places: list[str] = dataclasses.field(default_factory=list)  # the first few

    def add(
        self, name: str, wrong: np.ndarray, values: np.ndarray, env_id: int, first: int
    ) -> None:
        """Takes in those of ``values`` [T, ...], the first at step ``first``."""
        if not wrong.any():
            return
        self.count += int(wrong.sum())
        for index in np.argwhere(wrong)[: _MAX_PLACES - len(self.places)].tolist():
            element = "".join(f"[{i}]" for i in index[1:])
            self.places.append(
                f"{name}{element} is {values[tuple(index)]} at step "
                f"{first + index[0]} of environment {env_id}"
            )


@dataclasses.dataclass
class Statistics:
    """Of all steps of a source, as they are recorded.

    A transition is trainable if its step is not LAST and the step after it is stored,
    and continues the episode.
    """

    fields: Mapping[str, RecordedField]
    num_environments: int
    total_steps: int = 0
    trainable_transitions: int = 0
    num_terminations: int = 0  # LAST with discount 0
    num_truncations: int = 0  # LAST with another discount
    returns: list[float] = dataclasses.field(default_factory=list)
    # ↑ of the complete episodes; of a reward with several parts, their sum
    lengths: list[int] = dataclasses.field(default_factory=list)
    # ↑ of the same episodes, in environment steps
    num_seams: int = 0
    seams: list[str] = dataclasses.field(default_factory=list)  # the first few
    has_bounds: bool = False  # whether values were compared with bounds
    not_finite: Findings = dataclasses.field(default_factory=Findings)
    out_of_bounds: Findings = dataclasses.field(default_factory=Findings)

    @property
    def complete_episodes(self) -> int:
        """Episodes of which all steps, FIRST to LAST, are stored."""
        return len(self.returns)

    @property
    def average_return(self) -> float | None:
        """Of the complete episodes; None if there is none."""
        return float(np.mean(self.returns)) if self.returns else None


def summarize(source: Source, bounds: Mapping[str, Bounds] | None = None) -> Statistics:
    """Reads all of a source.

    Args:
        source: what to read.
        bounds: of its fields, by name; others are not compared with anything.

    Raises:
        DataError: if the source is damaged.
    """
    result = Statistics(
        source.fields, len(source.lengths), has_bounds=bounds is not None
    )
    newest: dict[int, int] = {}  # environment → the step type it ended with so far
    num_seen = [0] * len(source.lengths)
    for sequence in source.sequences():
        step_type = sequence.fields["step_type"]
        if len(step_type) == 0:
            continue
        _check_step_types(source.name, step_type, sequence.env_id)
        first = num_seen[sequence.env_id]
        previous = newest.get(sequence.env_id)
        places = (first + seams(step_type)).tolist()
        if previous is not None and seams(np.array([previous, step_type[0]])).size:
            places.insert(0, first)
        _count_seams(result, places, sequence.env_id)
        _count_steps(result, sequence)
        _look_at_values(result, sequence, first, bounds or {})
        newest[sequence.env_id] = int(step_type[-1])
        num_seen[sequence.env_id] += len(step_type)
    result.total_steps = sum(num_seen)
    return result


def _check_step_types(name: str, step_type: np.ndarray, env_id: int) -> None:
    wrong = ~np.isin(step_type, [int(t) for t in StepType])
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"{name}: step_type is {step_type[place]} at step {place} of a sequence of "
            f"environment {env_id}, expected 0, 1 or 2"
        )


def _count_seams(result: Statistics, places: list[int], env_id: int) -> None:
    result.num_seams += len(places)
    for place in places[: _MAX_PLACES - len(result.seams)]:
        result.seams.append(f"before step {place} of environment {env_id}")


def _count_steps(result: Statistics, sequence: StepSequence) -> None:
    step_type, discount = sequence.fields["step_type"], sequence.fields["discount"]
    is_last = step_type == StepType.LAST
    continues = ~is_last[:-1] & (step_type[1:] != StepType.FIRST)
    result.trainable_transitions += int(continues.sum())
    num_terminations = int((is_last & (discount == 0)).sum())
    result.num_terminations += num_terminations
    result.num_truncations += int(is_last.sum()) - num_terminations
    segments = Segments.of(step_type)
    reward = sequence.fields["reward"].astype(np.float64)
    reward = reward.reshape(len(step_type), -1).sum(1)
    # The reward of a FIRST step belongs to no transition.
    reward[step_type == StepType.FIRST] = 0.0
    returns = np.add.reduceat(reward, segments.begins)
    lengths = segments.ends - segments.begins - 1
    result.returns += returns[segments.is_complete].tolist()
    result.lengths += lengths[segments.is_complete].tolist()


def _look_at_values(
    result: Statistics, sequence: StepSequence, first: int, bounds: Mapping[str, Bounds]
) -> None:
    is_first = sequence.fields["step_type"] == StepType.FIRST
    is_last = sequence.fields["step_type"] == StepType.LAST
    # What stands where no action was taken is of no account.
    all_unused = {"prev_action": is_first, "action": is_last}
    for name, array in sequence.fields.items():
        unused = all_unused.get(field_kind(name))
        num_rows = max(1, _CHUNK_VALUES // max(1, array[:1].size))
        for begin in range(0, len(array), num_rows):
            values = array[begin : begin + num_rows]
            place = values, sequence.env_id, first + begin
            if array.dtype.kind == "f":
                result.not_finite.add(name, ~np.isfinite(values), *place)
            if name in bounds:
                # Not so for NaN, which is found as such.
                low, high = bounds[name]
                outside = (values < low) | (values > high)
                if unused is not None:
                    outside[unused[begin : begin + len(values)]] = False
                result.out_of_bounds.add(name, outside, *place)


def spec_bounds(source: Source, env: Environment) -> dict[str, Bounds]:
    """By the names of the fields; in the environment's units if the source is.

    Args:
        source: what has observations, and ``action`` or ``prev_action``.
        env: that it is said to be of.

    Raises:
        DataError: if its fields are not there, or have other shapes.
    """
    values = env.recorded_values if source.is_in_environment_units else None
    observations = values.observations if values is not None else {}
    actions = values.actions if values is not None else {}
    bounds = {}
    kinds = {field_kind(field) for field in source.fields}
    for name, specs, leaves in (
        ("observation", env.observation_spec, observations),
        ("action", env.action_spec, actions),
        ("prev_action", env.action_spec, actions),
    ):
        for path, spec in nest.flatten_with_path(specs) if name in kinds else ():
            keys = tuple(path_parts(path))
            field = join_path(name, *keys)
            found = source.fields.get(field)
            if found is None or found.shape != tuple(spec.shape):
                has = "is missing" if found is None else f"has the shape {found.shape}"
                raise DataError(
                    f"{source.name}: {field} {has}, in {env.name} it has "
                    f"{tuple(spec.shape)}. Name the environment of the steps."
                )
            if isinstance(spec, BoundedTensorSpec):
                bounds[field] = _bounds(spec, leaves.get(keys))
    return bounds


def _bounds(spec: BoundedTensorSpec, leaf: RecordedLeaf | None) -> Bounds:
    low, high = spec.minimum, spec.maximum
    if leaf is None:
        return Bounds(low, high)
    return Bounds(leaf.to_environment(low), leaf.to_environment(high))
