"""What builds TimeSteps, and what no observation, reward or action may be."""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from alf_lite.data_structures import TimeStep
from alf_lite.environments import space_specs
from alf_lite.environments.environment import StepRow
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.space_tree import SpaceLeaf, SpaceTree
from alf_lite.errors import DivergedError, EnvError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

Nest = Any
# Bounds of so many elements at most are held for every environment of the batch.
_MAX_ELEMENTS = 1 << 16
NOT_NEXT_STEP = (
    "the step after the end of an episode must be the reset (reward 0, not terminated, "
    "not truncated), as AutoresetMode.NEXT_STEP says. Check the vector environment's "
    "metadata['autoreset_mode']."
)


class TimeSteps(abc.ABC):
    """Remembers which episodes ended, and makes a TimeStep of each step.

    Args:
        vector_env: whose steps they are; only its spaces and its size are looked at.
        spec: of a step of a single environment.
        info_keys: what becomes ``env_info``.
    """

    def __init__(
        self, vector_env: VectorEnv, spec: TimeStep, info_keys: InfoKeys
    ) -> None:
        self._observation_tree = SpaceTree(
            vector_env.single_observation_space, "observation"
        )
        self._action_tree = SpaceTree(vector_env.single_action_space, "action")
        self._spec = spec
        self._info_keys = info_keys
        self._batch_size = int(vector_env.num_envs)

    @abc.abstractmethod
    def first(self, observation: Any, infos: dict[str, Any]) -> TimeStep:
        """The FIRST steps after a reset of all environments."""

    @abc.abstractmethod
    def convert_action(self, action: Nest, row: StepRow | None = None) -> Nest:
        """What the vector environment is given; keeps the agent's action.

        Args:
            action: nest of tensors [B, ...].
            row: where numpy writes the step that comes next; None: one that nobody
                else has.

        Raises:
            TypeError, ValueError: if ``action`` does not fit the action spec.
            DivergedError: if it is not finite.
        """

    @abc.abstractmethod
    def next(
        self,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        infos: dict[str, Any],
    ) -> TimeStep:
        """The step that the last ``convert_action`` has led to.

        Raises:
            EnvError: if the environment contradicts its spaces or NEXT_STEP.
        """


class ObservationBounds:
    """Checks a batch of observations against the bounds of their space.

    NaN and infinite values are errors, and so are integers, which stand for a choice. A
    Box of floats is only a promise: the first violation of each environment is a
    warning.
    """

    def __init__(self, leaf: SpaceLeaf, spec: TensorSpec, batch_size: int) -> None:
        self._path = leaf.path
        self._space = leaf.space
        self._warns = spec.is_continuous
        dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype
        self._largest = _largest(dtype)
        low, high = self._largest
        if isinstance(spec, BoundedTensorSpec):
            # An infinite bound still excludes infinity.
            low = np.maximum(spec.minimum, np.asarray(low, dtype))
            high = np.minimum(spec.maximum, np.asarray(high, dtype))
        self._is_unbounded = not isinstance(spec, BoundedTensorSpec)
        shape = (batch_size, *leaf.shape)
        self._low = np.broadcast_to(np.asarray(low, dtype), shape)
        self._high = np.broadcast_to(np.asarray(high, dtype), shape)
        # Every value of this dtype is allowed, as in images.
        self.checks_nothing = dtype.kind in "iub" and bool(
            (self._low == self._largest[0]).all()
            and (self._high == self._largest[1]).all()
        )
        if self._low.size <= _MAX_ELEMENTS:  # compared in half the time
            self._low = np.ascontiguousarray(self._low)
            self._high = np.ascontiguousarray(self._high)
        self._fits = np.ones((2, *shape), np.bool_)  # used again at every check
        self._fits_low, self._fits_high = self._fits
        self._all_fit = self._fits.tobytes()

    def check(self, array: np.ndarray) -> None:
        """Raises EnvError or warns, if something in [B, ...] is not as it must be."""
        if self._is_unbounded and math.isfinite(np.vdot(array, array)):
            return
        # Two comparisons find NaN, infinity and what is out of bounds.
        np.greater_equal(array, self._low, self._fits_low)
        np.less_equal(array, self._high, self._fits_high)
        # For few bools this takes a fraction of the time of all().
        if self._fits.tobytes() != self._all_fit:
            self._report(array)

    def _report(self, array: np.ndarray) -> None:
        if array.dtype.kind == "f":
            raise_if_not_finite(self._path, array)
        wrong = (array < self._low) | (array > self._high)
        if not self._warns:
            where = np.unravel_index(int(wrong.argmax()), wrong.shape)
            raise EnvError(
                f"environment {where[0]} returned {self._path}{element_text(where)} = "
                f"{self._in_space(array, where)}, which is not in {self._space}"
            )
        self._low, self._high = self._low.copy(), self._high.copy()
        for row in np.flatnonzero(wrong.reshape(len(wrong), -1).any(1)):
            element = np.unravel_index(int(wrong[row].argmax()), wrong[row].shape)
            where = (row, *element)
            warnings.warn(
                f"environment {row} returned {self._path}{element_text(where)} = "
                f"{array[where]}, outside of its bounds [{self._low[where]}, "
                f"{self._high[where]}]. Said once per environment; its observations "
                "are used as they are.",
                stacklevel=2,
            )
            self._low[row], self._high[row] = self._largest

    def _in_space(self, array: np.ndarray, where: tuple[Any, ...]) -> int:
        """The value as the environment returned it."""
        offset = space_specs.offset(self._space)
        if isinstance(offset, np.ndarray):
            offset = offset[where[1:]]
        return int(array[where]) + int(offset or 0)


def raise_if_not_finite(path: str, array: np.ndarray) -> None:
    """Raises EnvError naming the environment and the element, if one is not finite."""
    wrong = ~np.isfinite(array)
    if wrong.any():
        where = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise EnvError(
            f"environment {where[0]} returned {path}{element_text(where)} = "
            f"{array[where]} ({array.dtype})"
        )


def check_action(
    path: str, action: Any, shape: Sequence[int], is_discrete: bool
) -> None:
    """Raises TypeError or ValueError, if ``action`` is no tensor as it must be.

    Args:
        path: of the leaf.
        action: of the agent.
        shape: [B, ...].
        is_discrete: whether it must be of integers.
    """
    if not isinstance(action, Tensor):
        raise TypeError(f"{path}: expected a tensor, got {type(action)}")
    if action.shape != shape:
        raise ValueError(
            f"{path}: expected shape {tuple(shape)} (batch first), got "
            f"{tuple(action.shape)}"
        )
    if is_discrete and action.is_floating_point():
        raise TypeError(f"{path}: expected integers, got {action.dtype}")


def check_action_is_finite(path: str, array: np.ndarray) -> None:
    """Raises DivergedError naming the first element that is NaN or infinite."""
    wrong = ~np.isfinite(array)
    if wrong.any():
        where = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise DivergedError(
            f"the policy chose {path}{element_text(where)} = {array[where]} for "
            f"environment {where[0]}: its parameters or its inputs are not finite any "
            "more"
        )


def element_text(where: tuple[Any, ...]) -> str:
    """``[2]`` or ``[1, 3]`` for the element inside of a row; nothing for a scalar."""
    return f"[{', '.join(str(int(i)) for i in where[1:])}]" if where[1:] else ""


def _largest(dtype: np.dtype) -> tuple[Any, Any]:
    """The smallest and the largest finite value of a dtype."""
    if dtype.kind == "b":
        return False, True
    info = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return info.min, info.max
