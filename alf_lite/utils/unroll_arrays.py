"""Unrolls as numpy arrays for metrics and reward statistics, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from alf_lite import nest
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.nest import leaf_name
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any
_MAX_KNOWN = 16  # unroll workers have a few each
_FIRST, _LAST = int(StepType.FIRST), int(StepType.LAST)


class UnrollArrays(NamedTuple):
    """An unroll of T steps of B environments, the owner of its arrays."""

    is_first: np.ndarray  # [T, B]
    is_last: np.ndarray  # [T, B]
    discounts: np.ndarray  # [T, B, 1] float64
    rewards: np.ndarray  # [T, B, elements of the reward] float64
    infos: np.ndarray  # [T, B, elements of all parts of env_info] float64
    env_ids: np.ndarray  # [B], which environment each column is; not to be changed


class _Views(NamedTuple):
    """What is read of time steps, in their memory."""

    step_type: np.ndarray = np.zeros((0, 0))  # [T, B]
    discount: np.ndarray = np.zeros((0, 0, 1))  # [T, B, 1]
    reward: np.ndarray = np.zeros((0, 0, 1))  # [T, B, elements of the reward]
    infos: Sequence[np.ndarray] = ()  # [T, B, elements] of each part of env_info
    env_id: np.ndarray = np.zeros((0, 0))  # [T, B]
    share_memory: bool = False  # and not copies of it


class UnrollReader:
    """Converts time steps [T, B, ...] and checks them.

    Args:
        reward_spec: of one reward.
        env_info_spec: of the env_info of one step; () to leave it out.
        batch_size: number of environments; every ``env_id`` is below it.
    """

    def __init__(
        self,
        reward_spec: TensorSpec,
        env_info_spec: NestedTensorSpec = (),
        batch_size: int | None = None,
    ) -> None:
        self._reward_shape = tuple(reward_spec.shape)
        self._env_info_spec = env_info_spec
        self._batch_size = batch_size
        self._info_leaves = [
            (leaf_name("env_info", path), spec)
            for path, spec in nest.flatten_with_path(env_info_spec)
        ]
        self._env_ids_now = np.arange(0)  # [B], valid
        self._known_key: tuple = ()  # of the steps that have them
        # By their id, steps that come again in the same memory, and views of it.
        self._known: dict[int, tuple[TimeStep, _Views]] = {}

    def read(self, time_step: TimeStep) -> UnrollArrays:
        """Copies what the arrays are made of.

        Args:
            time_step: ``env_id`` says which environment each column is, the same for
                all T; if it is absent, column b is environment b.

        Returns:
            The arrays. ``env_ids`` is the same object until other ids come.

        Raises:
            ValueError: if shapes or ids are not as the specs say.
        """
        if id(time_step) in self._known:  # and alive, so that no other one has its id
            _, views = self._known[id(time_step)]
        else:
            views = self._views(time_step)
            if views.share_memory:
                if len(self._known) == _MAX_KNOWN:
                    self._known.clear()
                self._known[id(time_step)] = time_step, views
        step_type = views.step_type
        return UnrollArrays(
            is_first=step_type == _FIRST,
            is_last=step_type == _LAST,
            discounts=views.discount.astype(np.float64),
            rewards=views.reward.astype(np.float64),
            infos=self._info_rows(views.infos, step_type.shape),
            env_ids=self._env_ids(views.env_id, step_type.shape),
        )

    def _views(self, time_step: TimeStep) -> _Views:
        """What is read of a time step, checked but for the ids."""
        step_type = time_step.step_type.numpy(force=True)
        if step_type.ndim != 2:
            raise ValueError(
                f"step_type: expected the shape [T, B], got {step_type.shape}"
            )
        outer_dims = step_type.shape
        env_id = time_step.env_id
        if isinstance(env_id, tuple):  # absent
            by_step = np.broadcast_to(np.arange(outer_dims[1]), outer_dims)
        else:
            by_step = env_id.numpy(force=True)
        if self._info_leaves:
            nest.assert_same_structure(self._env_info_spec, time_step.env_info)
        read = nest.flatten(time_step._replace(observation=(), prev_action=()))
        return _Views(
            step_type,
            _rows_of("discount", time_step.discount, (), outer_dims),
            _rows_of("reward", time_step.reward, self._reward_shape, outer_dims),
            [
                _rows_of(name, part, spec.shape, outer_dims)
                for (name, spec), part in zip(
                    self._info_leaves, nest.flatten(time_step.env_info), strict=False
                )
            ],
            by_step,
            share_memory=all(
                t.is_cpu and t.is_contiguous() and not t.requires_grad for t in read
            ),
        )

    def _env_ids(self, by_step: np.ndarray, outer_dims: tuple[int, ...]) -> np.ndarray:
        key = (outer_dims, by_step.shape, by_step.tobytes())
        if key != self._known_key:  # seldom
            self._set_env_ids(by_step, outer_dims)
            self._known_key = key
        return self._env_ids_now

    def _set_env_ids(self, by_step: np.ndarray, outer_dims: tuple[int, ...]) -> None:
        if by_step.shape != outer_dims or (by_step != by_step[:1]).any():
            raise ValueError(
                f"env_id: expected the shape {outer_dims} and one environment per "
                f"column, got the shape {by_step.shape}: {by_step.tolist()}"
            )
        env_ids = by_step[0] if len(by_step) else np.arange(outer_dims[1])
        if np.array_equal(env_ids, self._env_ids_now):
            return  # of another number of steps
        ids, size = env_ids.tolist(), self._batch_size
        if ids and (min(ids) < 0 or (size is not None and max(ids) >= size)):
            raise ValueError(
                f"env_id: expected ids in [0, {size or '∞'}), got {ids}. The batch "
                "size must be the number of environments."
            )
        if len(set(ids)) < len(ids):
            raise ValueError(f"env_id: {ids} names an environment twice")
        self._env_ids_now = env_ids.copy()

    def _info_rows(
        self, infos: Sequence[np.ndarray], outer_dims: tuple[int, ...]
    ) -> np.ndarray:
        if not infos:
            return np.zeros((*outer_dims, 0))
        return np.concatenate([rows.astype(np.float64) for rows in infos], axis=2)


def join(parts: Sequence[UnrollArrays]) -> UnrollArrays:
    """Consecutive unrolls of the same environments as one."""
    if len(parts) == 1:
        return parts[0]
    fields = map(np.concatenate, zip(*(part[:-1] for part in parts), strict=True))
    return UnrollArrays._make((*fields, parts[0].env_ids))


def _rows_of(
    name: str, tensor: Any, shape: tuple[int, ...], outer_dims: tuple[int, ...]
) -> np.ndarray:
    """[T, B, *shape] → a view [T, B, elements of the shape], if it can be one."""
    array = tensor.numpy(force=True)
    expected = (*outer_dims, *shape)
    if array.shape != expected:
        raise ValueError(
            f"{name}: expected the shape {expected} with [T, B] = {list(outer_dims)}, "
            f"got {array.shape}"
        )
    return array.reshape(*outer_dims, math.prod(shape))
