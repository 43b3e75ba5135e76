"""Writes TimeSteps out of what a vector environment returns as numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.environments import space_specs
from alf_lite.environments.environment import StepRow, step_rows
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.single_env import LARGEST_REWARD, Ends
from alf_lite.environments.space_tree import Column, SpaceLeaf
from alf_lite.environments.time_steps import (
    NOT_NEXT_STEP,
    ObservationBounds,
    TimeSteps,
    check_action,
    check_action_is_finite,
    raise_if_not_finite,
)
from alf_lite.errors import EnvError

Nest = Any
# Rows that nobody has given are allocated together, as many as fit into this.
_CHUNK_BYTES = 65536
_MAX_CHUNK_ROWS = 32


class ObservationLeaf:
    """Reads one leaf of a batch of observations.

    Args:
        leaf: of the observation space.
        batch_size: B.
    """

    def __init__(self, leaf: SpaceLeaf, batch_size: int) -> None:
        shape = (batch_size, *leaf.shape)
        self._column = Column(
            leaf.path,
            shape,
            leaf.dtype,
            f"{leaf.dtype} of shape {shape} for {batch_size} x {leaf.space}",
        )
        spec = space_specs.observation_leaf_spec(leaf)
        self._offset = space_specs.offset(leaf.space)
        target = torch.empty(0, dtype=spec.dtype).numpy().dtype
        self._is_cast = target != leaf.dtype
        bounds = ObservationBounds(leaf, spec, batch_size)
        self._check = None if bounds.checks_nothing else bounds.check

    def convert(self, value: Any) -> np.ndarray:
        """``value`` as an array [B, ...] of the space's dtype."""
        return self._column.convert(value)

    def write(self, value: np.ndarray, out: np.ndarray) -> None:
        """Copies ``value`` [B, ...] to ``out``, which has the spec's dtype, and checks.

        Raises:
            EnvError: naming the path, the environment and the element.
        """
        if self._is_cast:
            with np.errstate(over="ignore"):  # what overflows is found below
                out[...] = value
        else:
            out[...] = value
        if self._offset is not None:
            out -= self._offset
        if self._check is not None:
            self._check(out)


class ActionLeaf:
    """Converts one leaf of a batch of actions.

    Args:
        leaf: of the action space.
        batch_size: B.
    """

    def __init__(self, leaf: SpaceLeaf, batch_size: int) -> None:
        self._path = leaf.path
        # What the environment may change; of numbers it gets copies.
        self.may_be_changed = leaf.shape != ()
        spec = space_specs.action_leaf_spec(leaf)
        self._shape = torch.Size((batch_size, *leaf.shape))
        self._dtype = leaf.dtype
        self._is_continuous = spec.is_continuous
        if spec.is_continuous:
            assert isinstance(leaf.space, spaces.Box), leaf
            self._scale, self._shift, self._low, self._high = space_specs.rescaling(
                leaf.space
            )
            # Most robots are driven in [-1, 1] anyway.
            self._is_rescaled = bool((self._scale != 1).any() or self._shift.any())
            low, high = self._low.astype(np.float32), self._high.astype(np.float32)
            is_exact = bool((low == self._low).all() and (high == self._high).all())
            if is_exact and not self._is_rescaled:
                self._low, self._high = low, high
        else:
            self._offset = space_specs.action_offset(leaf.space)

    def to_environment(self, action: Tensor, chosen: np.ndarray) -> np.ndarray:
        """What the environment is given for the agent's action, [B, ...].

        Args:
            action: [B, ...]; the caller may use the memory again.
            chosen: gets the action as the agent chose it.

        Raises:
            TypeError: if ``action`` is not a tensor of the spec's kind of dtype.
            ValueError: if its shape is not [B, ...].
            DivergedError: if it is not finite.
        """
        if not (
            isinstance(action, Tensor)
            and action.shape == self._shape
            and (self._is_continuous or not action.dtype.is_floating_point)
        ):
            check_action(self._path, action, self._shape, not self._is_continuous)
        chosen[...] = action.numpy(force=True)
        if not self._is_continuous:
            shifted = chosen if self._offset is None else chosen + self._offset
            return shifted.astype(self._dtype)
        if not math.isfinite(np.vdot(chosen, chosen)):
            check_action_is_finite(self._path, chosen)
        if self._is_rescaled:
            chosen = chosen * self._scale + self._shift
        return np.minimum(np.maximum(chosen, self._low), self._high).astype(self._dtype)


class NumpyTimeSteps(TimeSteps):
    """Writes each step into a row of memory."""

    def __init__(
        self, vector_env: VectorEnv, spec: TimeStep, info_keys: InfoKeys
    ) -> None:
        super().__init__(vector_env, spec, info_keys)
        batch_size = self._batch_size
        self._observations = [
            ObservationLeaf(leaf, batch_size) for leaf in self._observation_tree.leaves
        ]
        self._actions = [
            ActionLeaf(leaf, batch_size) for leaf in self._action_tree.leaves
        ]
        self._may_be_changed = any(leaf.may_be_changed for leaf in self._actions)
        # Spaces without nesting are not taken apart.
        self._only_observation = (
            self._observations[0] if self._observation_tree.is_leaf else None
        )
        self._only_action = self._actions[0] if self._action_tree.is_leaf else None
        self._rewards = Column("reward", (batch_size, *spec.reward.shape), np.float64)
        self._flags = [
            Column(name, (batch_size,), np.bool_)
            for name in ("terminated", "truncated")
        ]
        # Where episodes have ended, and where the last step was the first one of a
        # later episode; None: nowhere.
        self._ended: np.ndarray | None = None
        self.started: np.ndarray | None = None
        self._converted: list[np.ndarray] = []  # given last, for each leaf
        self._row: StepRow  # of the step that comes next
        self._spare_rows: Iterator[StepRow] = iter(())

    def rows_of(self, memory: TimeStep) -> Sequence[StepRow]:
        """The rows of ``memory`` [N, B, ...], for ``convert_action``."""
        nest.assert_same_structure(self._spec, memory)
        for (path, spec), tensor in zip(
            nest.flatten_with_path(self._spec), nest.flatten(memory), strict=True
        ):
            shape = (self._batch_size, *spec.shape)
            if tensor.shape[1:] != shape or tensor.dtype != spec.dtype:
                raise ValueError(
                    f"memory{path}: expected rows of shape {shape} {spec.dtype}, got "
                    f"{tuple(tensor.shape[1:])} {tensor.dtype}"
                )
        return self._rows(memory)

    def _rows(self, memory: TimeStep) -> Sequence[StepRow]:
        memory.env_id[:] = torch.arange(self._batch_size, dtype=torch.int32)
        return step_rows(memory)

    def first(self, observation: Any, infos: dict[str, Any]) -> TimeStep:
        self._observation_tree.check(observation)
        observation = self._converted_observation(observation)
        self._ended = self.started = None
        row = self._spare_row()
        row.step_type.fill(0)
        row.reward.fill(0)
        row.discount.fill(1)
        for array in row.prev_action:
            array.fill(0)
        self._write(observation, infos, row)
        return row.time_step

    def convert_action(self, action: Nest, row: StepRow | None = None) -> Nest:
        self._row = row = self._spare_row() if row is None else row
        if self._only_action is not None:
            given = self._only_action.to_environment(action, row.prev_action[0])
            self._converted = [given]
            return given
        tensors = self._action_tree.split(action)
        self._converted = list(
            map(ActionLeaf.to_environment, self._actions, tensors, row.prev_action)
        )
        return self._action_tree.join(self._converted)

    def given(self) -> list[np.ndarray]:
        """What the last ``convert_action`` gave for each leaf; nobody changes it."""
        if not self._may_be_changed:
            return self._converted
        return [
            given.copy() if leaf.may_be_changed else given
            for leaf, given in zip(self._actions, self._converted, strict=True)
        ]

    def next(
        self,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        infos: dict[str, Any],
    ) -> TimeStep:
        terminated = self._flags[0].convert(terminated)
        truncated = self._flags[1].convert(truncated)
        reward = self._rewards.convert(reward)
        ended = terminated | truncated
        self._check_start(reward, ended)
        ends = (terminated, truncated) if b"\1" in ended.tobytes() else None
        observation = self._converted_observation(observation)
        return self.next_own(observation, reward, ends, infos)

    def _converted_observation(self, observation: Any) -> Any:
        if self._only_observation is not None:
            return self._only_observation.convert(observation)
        values = self._observation_tree.split(observation)
        return self._observation_tree.join(
            list(map(ObservationLeaf.convert, self._observations, values))
        )

    def note_restarts(self, restarted: np.ndarray) -> None:
        """Says where the step that comes next begins an episode though none ended.

        Args:
            restarted: [B] bool.
        """
        ended = self._ended
        self._ended = restarted if ended is None else ended | restarted

    def next_own(
        self,
        observation: Any,
        reward: np.ndarray | float,
        ends: Ends | None,
        infos: dict[str, Any],
    ) -> TimeStep:
        """As :meth:`next`, of what ``BatchOfSingleEnvs.take_step`` has returned.

        The arrays have the right shapes and dtypes, and the step after an end is the
        reset.
        """
        row = self._row
        if isinstance(reward, np.ndarray):
            _check_rewards(reward)
        row.reward[...] = reward
        row.step_type.fill(1)
        row.discount.fill(1)
        self.started = started = self._ended
        if started is not None:
            np.putmask(row.step_type, started, 0)
            for array in row.prev_action:
                array[started] = 0
        self._ended = None
        if ends is not None:
            terminated, truncated = ends
            self._ended = terminated | truncated
            np.putmask(row.step_type, self._ended, 2)
            np.putmask(row.discount, terminated, 0)
        self._write(observation, infos, row)
        return row.time_step

    def replayed(self, is_first: np.ndarray, *result: Any) -> TimeStep:
        """The step that replayed episodes have come to; ``prev_action`` is not known.

        Args:
            is_first: [B], where no action was taken yet.
            *result: what :meth:`next` takes.
        """
        self._row = self._spare_row()
        for array in self._row.prev_action:
            array.fill(0)
        self._ended = is_first if is_first.any() else None
        return self.next(*result)

    def _check_start(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """Raises EnvError, if the step after an end is not the reset."""
        first = self._ended
        if first is not None and (
            b"\1" in (first & ended).tobytes() or np.count_nonzero(reward[first])
        ):
            wrong = first & (ended | reward.reshape(len(reward), -1).any(1))
            index = int(wrong.argmax())
            raise EnvError(
                f"environment {index} returned reward {reward[index]}, ended "
                f"{ended[index]} at the step after an end: {NOT_NEXT_STEP}"
            )

    def _write(self, observation: Any, infos: dict[str, Any], row: StepRow) -> None:
        if self._only_observation is not None:
            self._only_observation.write(observation, row.observation[0])
        else:
            values = self._observation_tree.split(observation)
            for leaf, value, out in zip(
                self._observations, values, row.observation, strict=True
            ):
                leaf.write(value, out)
        if row.env_info:
            self._info_keys.read(infos, row.env_info)

    def _spare_row(self) -> StepRow:
        """A row that nobody else has."""
        row = next(self._spare_rows, None)
        if row is None:
            num_bytes = self._batch_size * sum(
                spec.numel * spec.dtype.itemsize for spec in nest.flatten(self._spec)
            )
            num_rows = min(max(_CHUNK_BYTES // num_bytes, 1), _MAX_CHUNK_ROWS)
            with torch.inference_mode(False):
                memory = nest.map_structure(
                    lambda spec: torch.empty(
                        (num_rows, self._batch_size, *spec.shape), dtype=spec.dtype
                    ),
                    self._spec,
                )
            self._spare_rows = iter(self._rows(memory))
            row = next(self._spare_rows)
        return row


def _check_rewards(rewards: np.ndarray) -> None:
    """Raises EnvError, if one is not finite in float32."""
    # Not so for NaN, infinity and what may overflow.
    if not np.vdot(rewards, rewards) < LARGEST_REWARD**2:
        with np.errstate(over="ignore"):
            raise_if_not_finite("reward", rewards.astype(np.float32))
