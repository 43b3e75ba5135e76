"""Checked numpy arrays of what metrics and reward statistics read from time steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.nest_paths import leaf_name

Nest = Any


class StepArrays(NamedTuple):
    """An unroll of T steps of B environments."""

    is_first: np.ndarray  # [T, B]
    is_last: np.ndarray  # [T, B]
    discounts: np.ndarray  # [T, B, 1] float64
    rewards: np.ndarray  # [T, B, elements of the reward] float64
    infos: np.ndarray  # [T, B, elements of all parts of env_info] float64
    env_ids: np.ndarray  # [B], which environment each column is


def step_arrays(
    time_step: TimeStep,
    reward_spec: TensorSpec,
    env_info_spec: NestedTensorSpec = (),
    batch_size: int | None = None,
) -> StepArrays:
    """Converts time steps [T, B, ...].

    Args:
        time_step: ``env_id`` says which environment each column is, the same for all
            T; if it is absent, column b is environment b.
        reward_spec: of one reward.
        env_info_spec: of the env_info of one step; () to leave it out.
        batch_size: number of environments; every ``env_id`` is below it.

    Raises:
        ValueError: if shapes or ids are not as the specs say.
    """
    step_type = _to_numpy("step_type", time_step.step_type)
    if step_type.ndim != 2:
        raise ValueError(f"step_type: expected the shape [T, B], got {step_type.shape}")
    outer_dims = step_type.shape
    return StepArrays(
        is_first=step_type == StepType.FIRST,
        is_last=step_type == StepType.LAST,
        discounts=_to_rows("discount", time_step.discount, TensorSpec(), outer_dims),
        rewards=_to_rows("reward", time_step.reward, reward_spec, outer_dims),
        infos=_info_rows(time_step.env_info, env_info_spec, outer_dims),
        env_ids=_env_ids(time_step.env_id, outer_dims, batch_size),
    )


def _env_ids(
    env_id: Tensor | tuple, outer_dims: tuple[int, ...], batch_size: int | None
) -> np.ndarray:
    if isinstance(env_id, tuple):  # absent
        env_ids = np.arange(outer_dims[1])
    else:
        by_step = _to_numpy("env_id", env_id)
        if by_step.shape != outer_dims or (by_step != by_step[:1]).any():
            raise ValueError(
                f"env_id: expected the shape {outer_dims} and one environment per "
                f"column, got the shape {by_step.shape}: {by_step.tolist()}"
            )
        env_ids = by_step[0] if len(by_step) else np.arange(outer_dims[1])
    ids = env_ids.tolist()
    if ids and (min(ids) < 0 or (batch_size is not None and max(ids) >= batch_size)):
        raise ValueError(
            f"env_id: expected ids in [0, {batch_size or '∞'}), got {ids}. The batch "
            "size must be the number of environments."
        )
    if len(set(ids)) < len(ids):
        raise ValueError(f"env_id: {ids} names an environment twice")
    return env_ids


def _info_rows(
    env_info: Nest, env_info_spec: NestedTensorSpec, outer_dims: tuple[int, ...]
) -> np.ndarray:
    named_specs = nest.flatten_with_path(env_info_spec)
    if not named_specs:
        return np.zeros((*outer_dims, 0))
    nest.assert_same_structure(env_info_spec, env_info)
    rows = [
        _to_rows(leaf_name("env_info", path), part, spec, outer_dims)
        for (path, spec), part in zip(named_specs, nest.flatten(env_info), strict=True)
    ]
    return np.concatenate(rows, axis=2)


def _to_rows(
    name: str, tensor: Tensor | tuple, spec: TensorSpec, outer_dims: tuple[int, ...]
) -> np.ndarray:
    """[T, B, *spec.shape] → [T, B, spec.numel] float64."""
    array = _to_numpy(name, tensor)
    expected = (*outer_dims, *spec.shape)
    if array.shape != expected:
        raise ValueError(
            f"{name}: expected the shape {expected} with [T, B] = {list(outer_dims)}, "
            f"got {array.shape}"
        )
    return array.reshape(*outer_dims, spec.numel).astype(np.float64)


def _to_numpy(name: str, tensor: Tensor | tuple) -> np.ndarray:
    if isinstance(tensor, tuple):
        raise ValueError(f"{name}: expected a tensor [T, B, ...], it is absent")
    return tensor.detach().cpu().numpy()
