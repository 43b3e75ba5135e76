"""Recorded fields as the steps of an environment: which is which, and in what types.

Then sequences of steps: actions, episodes and their ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from alf_lite import nest
from alf_lite.data_structures import Experience, StepType, time_step_spec
from alf_lite.datasets.source import (
    NO_FIRST,
    REQUIRED_FIELDS,
    Arrays,
    RecordedField,
    Source,
    StepSequence,
    are_begins,
    contradiction,
    cut_firsts,
    field_kind,
    inner_firsts,
    join_path,
)
from alf_lite.environments.environment import Environment
from alf_lite.environments.space_specs import RecordedLeaf
from alf_lite.errors import DataError
from alf_lite.nest import path_parts
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec

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
    is_of_agent = "prev_action" in map(field_kind, source.fields)
    action_name = "prev_action" if is_of_agent else "action"
    expected = {name: getattr(spec, name) for name in REQUIRED_FIELDS}
    expected |= _by_path("observation", spec.observation)
    actions = _by_path(action_name, spec.prev_action)
    expected |= actions
    env_info = _by_path("env_info", spec.env_info)
    optional = env_info if zero_missing_env_info else {}
    leaves = recorded_leaves(env, action_name) if source.is_in_environment_units else {}
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
        to_agent = leaves[path].to_agent if path in leaves else None
        matched[name] = MatchedField(path, leaf_spec, dtype, to_agent)
    differences += [
        (path, "nothing", field)
        for path, field in source.fields.items()
        if path not in expected and field_kind(path) in ("observation", action_name)
    ]
    if differences:
        raise DataError(_explain(source, env, differences))
    return matched


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


def recorded_leaves(
    env: Environment, action_name: str = "action"
) -> dict[str, RecordedLeaf]:
    """What converts recorded observations and actions, by the names of the fields.

    Nothing, if agents see and choose what the environment returns and is given.
    """
    values = env.recorded_values
    if values is None:
        return {}
    kinds = ("observation", values.observations), (action_name, values.actions)
    return {
        join_path(name, *keys): leaf
        for name, leaves in kinds
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


class StepAssembler:
    """Turns the sequences of one source into steps of the environment's specs.

    Args:
        name: of the source, for messages.
        matched: the fields to take, with ``action`` for both kinds of actions.
        keep_open_ends: see ``load_replay_buffer``.

    Attributes:
        bad: says where the numbers are that are not finite.
        num_dropped: episodes left out.
        num_actions: that were read.
        num_outside: of these, what was outside of the bounds.
        num_steps: that were read.
        num_beyond: of these, by the names of observations, those beyond their bounds.
    """

    def __init__(
        self,
        name: str,
        matched: Mapping[str, MatchedField],
        keep_open_ends: bool = False,
    ) -> None:
        self._name = name
        self._keep_open_ends = keep_open_ends
        self._matched = matched
        self._recorded = {field_kind(field.path) for field in matched.values()}
        self.bad: list[str] = []
        self.num_dropped = 0
        self.num_actions = self.num_outside = self.num_steps = 0
        self.num_beyond: Counter[str] = Counter()

    def assemble(
        self, sequence: StepSequence, first_step: int, num_skipped: int
    ) -> Arrays:
        """Steps in the order of time.

        Args:
            sequence: chronological.
            first_step: how many steps of its environment came before, for messages.
            num_skipped: oldest steps of the sequence to leave out.

        Returns:
            [T, ...] by the names of the fields; ``action`` is what was executed at a
            step and ``prev_action`` what led to it. Empty arrays if all were bad.

        Raises:
            DataError: if a value does not fit its spec.
        """
        where = (sequence.env_id, first_step + num_skipped)
        steps = self._convert(sequence, num_skipped, where)
        kept = self._good_rows(steps, where)
        if kept is not None:
            steps = {name: array[kept] for name, array in steps.items()}
        _mark_ends(steps["step_type"], kept, self._keep_open_ends)
        self._add_actions(steps)
        self._look_at_observations(steps)
        return steps

    def _convert(
        self, sequence: StepSequence, num_skipped: int, where: tuple[int, int]
    ) -> Arrays:
        """The fields as the specs say; previous actions in place of actions."""
        lengths = {
            len(array) + (field_kind(path) == "action")
            for path, array in sequence.fields.items()
        }
        if len(lengths) > 1:
            sizes = {path: len(array) for path, array in sequence.fields.items()}
            raise DataError(
                f"{self._name}: the fields of one sequence have different lengths: "
                f"{sizes}. Actions are between the steps, one less than those."
            )
        steps = {}
        for name, field in self._matched.items():
            array = sequence.fields[field.path]
            is_between = field_kind(field.path) == "action"
            if is_between:
                # The action at t - 1 led to step t.
                array = array[max(num_skipped - 1, 0) :]
            else:
                array = array[num_skipped:]
            if field.to_agent is not None:
                array = field.to_agent(array)
            converted = self._to_dtype(name, array, field, where)
            if is_between and num_skipped == 0:
                first = np.zeros_like(converted, shape=(1, *converted.shape[1:]))
                converted = np.concatenate([first, converted])
            # Only what an agent does is shifted: an observation may be called so too.
            is_action = field_kind(name) == "action"
            steps[f"prev_{name}" if is_action else name] = converted
        self._check_types(steps, where)
        return steps

    def _check_types(self, steps: Arrays, where: tuple[int, int]) -> None:
        """Raises DataError if the types of the steps contradict each other."""
        step_type = steps["step_type"]
        found = contradiction(step_type)
        # A run may have been interrupted there, but nothing leads to a FIRST.
        no_first = "but its reward or prev_action says that it is no FIRST"
        for firsts, fields, reason in (
            (inner_firsts(step_type), {"reward", "prev_action"}, no_first),
            (cut_firsts(step_type), {"reward"}, NO_FIRST),
        ):
            if found is not None or not len(firsts):
                continue
            came_by = np.zeros(len(firsts), bool)
            for name, array in steps.items():
                if field_kind(name) in self._recorded & fields:
                    came_by |= (array[firsts] != 0).reshape(len(firsts), -1).any(1)
            if came_by.any():
                found = int(firsts[came_by.argmax()]), reason
        if found is not None:
            index, reason = found
            env_id, first_step = where
            raise DataError(
                f"{self._name}: step_type is {step_type[index]} at step "
                f"{first_step + index} of environment {env_id}, {reason}"
            )

    def _to_dtype(
        self, name: str, array: np.ndarray, field: MatchedField, where: tuple[int, int]
    ) -> np.ndarray:
        """A new array of the spec's dtype.

        Raises:
            DataError: if an integer cannot be kept, or is not one of the spec's.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            converted = array.astype(field.dtype)
        if array.dtype.kind in "iu" and not np.can_cast(array.dtype, field.dtype):
            changed = converted.astype(array.dtype) != array
            if changed.any():
                self._refuse(name, array, changed, f"a {field.dtype}", where)
        spec = field.spec
        if field.dtype.kind in "iu" and isinstance(spec, BoundedTensorSpec):
            outside = (converted < spec.minimum) | (converted > spec.maximum)
            if outside.any():
                expected = f"between {spec.minimum.min()} and {spec.maximum.max()}"
                self._refuse(name, array, outside, expected, where)
        if name == "discount":
            outside = (converted < 0) | (converted > 1)
            if outside.any():
                self._refuse(name, array, outside, "between 0 and 1", where)
        return converted

    def _add_actions(self, steps: Arrays) -> None:
        """Adds the action executed at every step, zeros at LAST.

        Environments clip actions: beyond the bounds, the bound itself was executed.
        """
        is_last = steps["step_type"] == StepType.LAST
        is_first = steps["step_type"] == StepType.FIRST
        is_outside = np.zeros(len(is_first), bool)
        for name in [n for n in steps if field_kind(n) == "prev_action"]:
            previous, field_name = steps[name], name.removeprefix("prev_")
            spec = self._matched[field_name].spec
            if spec.is_continuous and isinstance(spec, BoundedTensorSpec):
                is_outside |= _is_beyond(previous, spec)
                np.clip(previous, spec.minimum, spec.maximum, out=previous)
            previous[is_first] = 0
            action = np.zeros_like(previous)
            action[:-1] = previous[1:]
            action[is_last] = 0
            steps[field_name] = action
        self.num_actions += int((~is_first).sum())
        self.num_outside += int((is_outside & ~is_first).sum())

    def _look_at_observations(self, steps: Arrays) -> None:
        """Counts those that the environment could not return."""
        self.num_steps += len(steps["step_type"])
        for name in [n for n in steps if field_kind(n) == "observation"]:
            spec = self._matched[name].spec
            if spec.is_continuous and isinstance(spec, BoundedTensorSpec):
                is_beyond = _is_beyond(steps[name], spec)
                self.num_beyond[name] += int(is_beyond.sum())

    def _refuse(
        self,
        name: str,
        array: np.ndarray,
        wrong: np.ndarray,
        expected: str,
        where: tuple[int, int],
    ) -> None:
        position = _position(name, array, wrong, where)
        raise DataError(f"{self._name}: {position}, expected {expected}")

    def _good_rows(self, steps: Arrays, where: tuple[int, int]) -> np.ndarray | None:
        """The rows of episodes without a bad number; None if that is all."""
        is_bad = np.zeros(len(steps["step_type"]), bool)
        for name, array in steps.items():
            if array.dtype.kind != "f" or np.isfinite(array).all():
                continue
            wrong = ~np.isfinite(array)
            self.bad.append(_position(name, array, wrong, where))
            is_bad |= wrong.reshape(len(array), -1).any(1)
        if not is_bad.any():
            return None
        episodes = (are_begins(steps["step_type"])).cumsum() - 1
        bad_episodes = np.unique(episodes[is_bad])
        self.num_dropped += len(bad_episodes)
        return np.flatnonzero(~np.isin(episodes, bad_episodes))


def _is_beyond(values: np.ndarray, spec: BoundedTensorSpec) -> np.ndarray:
    """[T] whether an element of [T, ...] is outside of its bounds, but for rounding."""
    beyond = (values < spec.minimum - 1e-3) | (values > spec.maximum + 1e-3)
    return np.asarray(beyond.any(axis=tuple(range(1, beyond.ndim))))


def _mark_ends(
    step_type: np.ndarray, kept: np.ndarray | None, keep_open_ends: bool
) -> None:
    """Makes every step LAST that the next one does not continue.

    The discounts stay as they are: it is bootstrapped as at a time limit. With
    ``keep_open_ends``, only where steps between them were left out.
    """
    if not len(step_type):
        return
    is_end = np.append(step_type[1:] == StepType.FIRST, True) & (not keep_open_ends)
    if kept is not None:
        is_end[:-1] |= np.diff(kept) > 1
    step_type[is_end] = StepType.LAST


def _position(
    name: str, array: np.ndarray, wrong: np.ndarray, where: tuple[int, int]
) -> str:
    """Which element is the first of those that are wrong, and how many there are."""
    index = np.unravel_index(int(wrong.argmax()), wrong.shape)
    element = "".join(f"[{i}]" for i in index[1:])
    env_id, first_step = where
    count = int(wrong.sum())
    more = f" ({count} such values)" if count > 1 else ""
    return (
        f"{name}{element} is {array[index]} at step {first_step + index[0]} of "
        f"environment {env_id}{more}"
    )
