"""Shows the last frames of the episode at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.data_structures import Experience, StepType, TimeStep
from alf_lite.data_transformers.data_transformer import (
    DataTransformer,
    TransformStage,
    WindowOrigin,
    replace_specs,
    select_leaves,
)
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, NestedTensorSpec, TensorSpec
from alf_lite.utils.tensor_utils import expand_dims_as

Nest = Any


@configurable
class FrameStacker(DataTransformer):
    """Joins every frame of the observation with those of the steps before it.

    The oldest frame comes first. Steps before the episode's first one count as copies
    of that. Replay buffers keep one frame per step; in a window that crosses the end of
    an episode, the next episode starts with copies of its own first frame.

    Args:
        observation_spec: of one raw observation.
        reward_spec: of one raw reward.
        stack_size: how many frames are joined.
        stack_axis: the dimension of a frame along which they are joined: -1 for vectors
            and for images [H, W, C], 0 for images [C, H, W].
        fields: names of the parts to stack, such as ``["camera"]``; None for all that
            have a dimension.

    Raises:
        ConfigError: if a field does not exist or has no such dimension, or
            ``stack_size`` is below 1.
    """

    stage = TransformStage.HISTORY
    keeps_entries_apart = True

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = TensorSpec(()),
        *,
        stack_size: int = 4,
        stack_axis: int = -1,
        fields: Sequence[str] | None = None,
    ) -> None:
        if stack_size < 1:
            raise ConfigError(
                f"FrameStacker: stack_size must be at least 1, got {stack_size}"
            )
        positions = select_leaves(
            observation_spec, fields, lambda spec: spec.ndim > 0, "of rank 1 or more"
        )
        specs = nest.flatten(observation_spec)
        for name, i in positions.items():
            if not -specs[i].ndim <= stack_axis < specs[i].ndim:
                raise ConfigError(
                    f"FrameStacker: '{name}' has shape {tuple(specs[i].shape)}, so "
                    f"there is no stack_axis {stack_axis}"
                )
        super().__init__(observation_spec, reward_spec)
        self.transformed_observation_spec = replace_specs(
            observation_spec,
            positions.values(),
            lambda spec: _stacked_spec(spec, stack_size, stack_axis),
        )
        self.state_spec = {
            name: TensorSpec((stack_size - 1, *specs[i].shape), specs[i].dtype)
            for name, i in positions.items()
        }
        self.num_history_steps = stack_size - 1
        self._stack_size = stack_size
        # Name → position of the leaf and the dimension of its frames to join along.
        self._leaves = {
            name: (i, stack_axis % specs[i].ndim) for name, i in positions.items()
        }
        # Name → [environments so far, S - 1, ...], the last frames of the open episodes
        self._unroll_history: dict[str, Tensor] = {}

    def transform_rewards(self, rewards: Tensor) -> Tensor:
        return rewards

    def transform_timestep(
        self, time_step: TimeStep, state: Nest
    ) -> tuple[TimeStep, Nest]:
        leaves = nest.flatten(time_step.observation)
        is_first = time_step.is_first()
        new_state = {}
        for name, (i, axis) in self._leaves.items():
            frame = leaves[i].unsqueeze(1)
            frames = torch.cat([state[name], frame], dim=1)  # [B, stack_size, ...]
            frames = torch.where(expand_dims_as(is_first, frames), frame, frames)
            new_state[name] = frames[:, 1:]
            leaves[i] = _join(frames, 1, axis)
        return _with_leaves(time_step, leaves), new_state

    def transform_experience(
        self, experience: Experience, source: WindowOrigin | None = None
    ) -> Experience:
        num_history = self.num_history_steps
        if source is None or source.num_history_steps < num_history:
            raise ValueError(
                f"FrameStacker needs {num_history} steps before every window: put them "
                "there by WindowOrigin.with_history and pass the source it returns"
            )
        raw = experience.time_step
        leaves = nest.flatten(raw.observation)
        rows = _stack_rows(raw.step_type, self._stack_size)  # [B, T, stack_size]
        experience = nest.map_structure(lambda t: t[:, num_history:], experience)
        stacked = nest.flatten(experience.time_step.observation)
        for i, axis in self._leaves.values():
            stacked[i] = _join(_take(leaves[i], rows), 2, axis)
        return experience._replace(
            time_step=_with_leaves(experience.time_step, stacked)
        )

    def transform_unroll(self, time_steps: TimeStep) -> TimeStep:
        """Remembers the last frames of each environment for the next unroll."""
        num_history = self.num_history_steps
        step_type = time_steps.step_type.transpose(0, 1)  # [B, T]
        batch_size = step_type.shape[0]
        columns = _environments(time_steps)
        self._make_room(columns, step_type.device)
        # The frames of the history are stacked already as far as their episode goes.
        mid = step_type.new_full((batch_size, num_history), int(StepType.MID))
        rows = _stack_rows(torch.cat([mid, step_type], dim=1), self._stack_size)
        leaves = nest.flatten(time_steps.observation)
        for name, (i, axis) in self._leaves.items():
            history = self._unroll_history[name]
            frames = torch.cat([history[columns], leaves[i].transpose(0, 1)], dim=1)
            stacks = _take(frames, rows)  # [B, T, stack_size, ...]
            history[columns] = stacks[:, -1, 1:]
            leaves[i] = _join(stacks, 2, axis).transpose(0, 1)
        return _with_leaves(time_steps, leaves)

    def _make_room(self, columns: Tensor | slice, device: torch.device) -> None:
        """Adds zeros for environments that are new."""
        if isinstance(columns, slice):
            size: int = columns.stop
        else:
            size = int(columns.max()) + 1
        for name, spec in self.state_spec.items():
            frames = self._unroll_history.get(name, spec.zeros((0,))).to(device)
            num_missing = size - len(frames)
            if num_missing > 0:
                new = frames.new_zeros((num_missing, *frames.shape[1:]))
                frames = torch.cat([frames, new])
            self._unroll_history[name] = frames

    def training_state_dict(self) -> dict[str, Any]:
        history = self._unroll_history
        return {name: frames.cpu().clone() for name, frames in history.items()}

    def load_training_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._unroll_history = {n: frames.clone() for n, frames in state_dict.items()}


def _environments(time_steps: TimeStep) -> Tensor | slice:
    """Which environment each column is, of steps [T, B, ...].

    The columns of steps on a GPU, which nobody waits for, are always the same ones.
    """
    env_id = time_steps.env_id
    if isinstance(env_id, Tensor) and env_id.is_cpu:
        return env_id[0].long()
    return slice(0, time_steps.step_type.shape[1])


def _stack_rows(step_type: Tensor, stack_size: int) -> Tensor:
    """Which rows of [B, H+T, ...] make the stacks of the last T steps.

    Args:
        step_type: [B, H+T] with H = stack_size - 1.
        stack_size: S.

    Returns:
        [B, T, S] int64, oldest first, none before the first step of its episode.
    """
    num_rows = step_type.shape[1]
    row = torch.arange(num_rows, device=step_type.device)
    begins = step_type == int(StepType.FIRST)
    # A step after a LAST begins an episode also where recorded data has no FIRST.
    begins[:, 1:] |= step_type[:, :-1] == int(StepType.LAST)
    episode_begin = torch.where(begins, row, 0).cummax(dim=1).values
    trained = row[stack_size - 1 :]
    age = torch.arange(stack_size - 1, -1, -1, device=step_type.device)
    return torch.maximum(
        trained.unsqueeze(1) - age, episode_begin[:, stack_size - 1 :].unsqueeze(2)
    )


def _take(frames: Tensor, rows: Tensor) -> Tensor:
    """[B, N, ...] frames and [B, T, S] rows below N → [B, T, S, ...]."""
    batch_size, num_rows = frames.shape[:2]
    first = torch.arange(batch_size, device=rows.device) * num_rows
    taken = frames.flatten(0, 1).index_select(
        0, (rows + first.view(-1, 1, 1)).flatten()
    )
    return taken.unflatten(0, rows.shape)


def _join(frames: Tensor, stack_dim: int, axis: int) -> Tensor:
    """[..., S, *frame] → [..., *joined]: joined along dimension ``axis`` of a frame."""
    dim = stack_dim + axis
    return frames.movedim(stack_dim, dim).flatten(dim, dim + 1)


def _with_leaves(time_step: TimeStep, leaves: list[Tensor]) -> TimeStep:
    observation = nest.pack_sequence_as(time_step.observation, leaves)
    return time_step._replace(observation=observation)


def _stacked_spec(spec: TensorSpec, stack_size: int, axis: int) -> TensorSpec:
    shape = list(spec.shape)
    shape[axis] *= stack_size
    if not isinstance(spec, BoundedTensorSpec):
        return TensorSpec(shape, spec.dtype)
    return BoundedTensorSpec(
        shape,
        spec.dtype,
        np.concatenate([spec.minimum] * stack_size, axis),
        np.concatenate([spec.maximum] * stack_size, axis),
    )
