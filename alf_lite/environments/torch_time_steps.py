"""Builds TimeSteps out of what a vector environment returns as torch tensors.

Everything stays on the environment's device, and nothing waits for the device at every
step: on a GPU, values are checked every ``_GPU_CHECK_INTERVAL`` steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor

from alf_lite.data_structures import TimeStep
from alf_lite.environments import info_keys, space_specs
from alf_lite.environments.environment import StepRow
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.space_tree import SpaceLeaf
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
_GPU_CHECK_INTERVAL = 64  # steps


class TorchObservationLeaf:
    """Reads and checks one leaf of a batch of observations."""

    def __init__(self, leaf: SpaceLeaf, batch_size: int, device: torch.device) -> None:
        self.leaf = leaf
        self._spec = space_specs.observation_leaf_spec(leaf)
        self._shape = (batch_size, *leaf.shape)
        self._bounds = ObservationBounds(leaf, self._spec, batch_size)
        self._offset = _constant(space_specs.offset(leaf.space), device)
        self.bad = torch.zeros(batch_size, dtype=torch.bool, device=device)

    def read(self, value: Any, copy: bool, check: bool) -> Tensor:
        """A tensor [B, ...] of the spec's dtype; ``bad`` collects what is not valid."""
        path, dtype = self.leaf.path, self._spec.dtype
        if not isinstance(value, Tensor):
            raise EnvError(f"{path}: expected a torch tensor, got {type(value)}")
        fits = value.is_floating_point() == dtype.is_floating_point
        if value.shape != self._shape or not fits:
            raise EnvError(
                f"{path}: expected {dtype} of shape {self._shape}, got {value.dtype} "
                f"of shape {tuple(value.shape)}"
            )
        tensor = value.to(dtype)
        if self._offset is not None:
            tensor = tensor - self._offset
        elif copy and tensor is value:
            tensor = value.clone()
        if dtype.is_floating_point:
            finite = tensor.isfinite().reshape(self._shape[0], -1).all(1)
            self.bad = self.bad | ~finite
        if check and not self._bounds.checks_nothing:
            self._bounds.check(tensor.numpy(force=True))
        return tensor


class TorchActionLeaf:
    """Converts one leaf of a batch of actions."""

    def __init__(self, leaf: SpaceLeaf, batch_size: int, device: torch.device) -> None:
        self._path = leaf.path
        self._spec = space_specs.action_leaf_spec(leaf)
        self._shape = (batch_size, *leaf.shape)
        self._device = device
        self._dtype = torch.from_numpy(np.empty(0, leaf.dtype)).dtype
        if self._spec.is_continuous:
            assert isinstance(leaf.space, spaces.Box), leaf
            # Not every device has double precision.
            dtype = torch.float32 if device.type == "mps" else torch.float64
            constants = (
                torch.as_tensor(c, dtype=dtype, device=device)
                for c in space_specs.rescaling(leaf.space)
            )
            self._scale, self._shift, self._low, self._high = constants
        else:
            self._offset = _constant(space_specs.action_offset(leaf.space), device)

    def zeros(self) -> Tensor:
        return torch.zeros(self._shape, dtype=self._spec.dtype, device=self._device)

    def read(self, action: Any) -> Tensor:
        """A fresh tensor [B, ...] of the action as the agent chose it."""
        check_action(self._path, action, self._shape, self._spec.is_discrete)
        return action.detach().to(self._device, self._spec.dtype, copy=True)

    def check(self, action: Tensor) -> None:
        """Raises DivergedError, if ``action`` is not finite."""
        if self._spec.is_continuous:
            check_action_is_finite(self._path, action.numpy(force=True))

    def to_environment(self, action: Tensor) -> Tensor:
        """What the environment is given for the agent's action, [B, ...]."""
        if self._spec.is_discrete:
            shifted = action if self._offset is None else action + self._offset
            return shifted.to(self._dtype, copy=True)
        scaled = action * self._scale + self._shift
        return scaled.maximum(self._low).minimum(self._high).to(self._dtype)


def _constant(value: Any, device: torch.device) -> Any:
    return None if value is None else torch.as_tensor(value, device=device)


def expand_mask(mask: Tensor, tensor: Tensor) -> Tensor:
    """``mask`` [B] with as many dimensions as ``tensor`` [B, ...]."""
    return mask.reshape(-1, *[1] * (tensor.ndim - 1))


class TorchTimeSteps(TimeSteps):
    """As ``NumpyTimeSteps``, for tensors on any device.

    Args:
        vector_env: see ``TimeSteps``, as for the others.
        copy: whether the environment may change its tensors later.
        device: of the environment's tensors.
    """

    def __init__(
        self,
        vector_env: VectorEnv,
        spec: TimeStep,
        declared: InfoKeys,
        *,
        copy: bool,
        device: torch.device,
    ) -> None:
        super().__init__(vector_env, spec, declared)
        batch_size = self._batch_size
        self._info_shapes = declared.shapes
        self._device = device
        self._copy = copy
        self._observations = [
            TorchObservationLeaf(leaf, batch_size, device)
            for leaf in self._observation_tree.leaves
        ]
        self._actions = [
            TorchActionLeaf(leaf, batch_size, device)
            for leaf in self._action_tree.leaves
        ]
        self._reward_shape = (batch_size, *spec.reward.shape)
        self._env_id = torch.arange(batch_size, dtype=torch.int32, device=device)
        self._ended = torch.zeros(batch_size, dtype=torch.bool, device=device)
        self._action: list[Tensor] = []
        # [B], what went wrong since the last check
        self._bad_reward = torch.zeros_like(self._ended)
        self._bad_reset = torch.zeros_like(self._ended)
        self._interval = 1 if device.type == "cpu" else _GPU_CHECK_INTERVAL
        self._steps_until_check = self._interval

    def first(self, observation: Any, infos: dict[str, Any]) -> TimeStep:
        self._observation_tree.check(observation)
        self._ended = torch.zeros_like(self._ended)
        self._steps_until_check = 1
        step_type = torch.zeros_like(self._env_id)
        reward = torch.zeros(self._reward_shape, device=self._device)
        discount = torch.ones(self._batch_size, device=self._device)
        self._action = [leaf.zeros() for leaf in self._actions]
        return self._time_step(step_type, reward, discount, observation, infos)

    def convert_action(self, action: Nest, row: StepRow | None = None) -> Nest:
        tensors = self._action_tree.split(action)
        self._action = list(map(TorchActionLeaf.read, self._actions, tensors))
        if self._steps_until_check == 1:
            for leaf, tensor in zip(self._actions, self._action, strict=True):
                leaf.check(tensor)
        converted = map(TorchActionLeaf.to_environment, self._actions, self._action)
        return self._action_tree.join(list(converted))

    def next(
        self,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        infos: dict[str, Any],
    ) -> TimeStep:
        first = self._ended
        reward = self._tensor("reward", reward, self._reward_shape)
        reward = reward.to(torch.float32, copy=True)
        shape = (self._batch_size,)
        terminated = self._tensor("terminated", terminated, shape).bool()
        ended = terminated | self._tensor("truncated", truncated, shape).bool()
        step_type = 1 + ended.int() - first.int()
        discount = 1 - terminated.float()
        self._action = [
            tensor.masked_fill(expand_mask(first, tensor), 0) for tensor in self._action
        ]
        rewards = reward.reshape(self._batch_size, -1)
        self._bad_reward = self._bad_reward | ~rewards.isfinite().all(1)
        self._bad_reset = self._bad_reset | (first & (ended | (rewards != 0).any(1)))
        self._ended = ended
        if self._steps_until_check == 1:
            self._check_rewards(reward)
        return self._time_step(step_type, reward, discount, observation, infos)

    def _check_rewards(self, reward: Tensor) -> None:
        if self._bad_reward.any():
            raise_if_not_finite("reward", reward.numpy(force=True))
            raise EnvError(self._earlier("reward", self._bad_reward, "not finite"))
        if self._bad_reset.any():
            raise EnvError(
                self._earlier("reward", self._bad_reset, "not 0, or an end,")
                + f" at the step after an end: {NOT_NEXT_STEP}"
            )

    def _earlier(self, path: str, bad: Tensor, what: str) -> str:
        row = int(bad.int().argmax())
        when = "" if self._interval == 1 else f" in the last {self._interval} steps"
        return f"environment {row} returned {path} that is {what}{when}"

    def _time_step(
        self,
        step_type: Tensor,
        reward: Tensor,
        discount: Tensor,
        observation: Any,
        infos: dict[str, Any],
    ) -> TimeStep:
        self._steps_until_check -= 1
        due = self._steps_until_check == 0
        if due:
            self._steps_until_check = self._interval
        values = self._observation_tree.split(observation)
        tensors = [
            leaf.read(value, self._copy, due)
            for leaf, value in zip(self._observations, values, strict=True)
        ]
        if due:
            self._check_earlier_observations()
        return TimeStep(
            step_type=step_type,
            reward=reward,
            discount=discount,
            observation=self._observation_tree.join(tensors),
            prev_action=self._action_tree.join(self._action),
            env_id=self._env_id,
            env_info=self._read_infos(infos),
        )

    def _check_earlier_observations(self) -> None:
        for leaf in self._observations:
            if leaf.bad.any():
                path = leaf.leaf.path
                raise EnvError(
                    self._earlier(path, leaf.bad, "not finite or out of range")
                )

    def _tensor(self, path: str, value: Any, shape: tuple[int, ...]) -> Tensor:
        tensor = torch.as_tensor(value, device=self._device)
        if tensor.shape != shape:
            raise EnvError(f"{path}: expected shape {shape}, got {tuple(tensor.shape)}")
        return tensor

    def _read_infos(self, infos: dict[str, Any]) -> dict[str, Tensor] | tuple:
        if not self._info_shapes:
            return ()
        result = {}
        for name, shape in self._info_shapes.items():
            expected = (self._batch_size, *shape)
            value, mask = info_keys.find(infos, name)
            if value is None:
                result[name] = torch.zeros(expected, device=self._device)
                continue
            path = f"env_info[{name!r}]"
            tensor = self._tensor(path, value, expected).to(torch.float32, copy=True)
            if mask is not None:
                missing = ~torch.as_tensor(mask, device=self._device).bool()
                tensor = tensor.masked_fill(expand_mask(missing, tensor), 0)
            result[name] = tensor
        return result
