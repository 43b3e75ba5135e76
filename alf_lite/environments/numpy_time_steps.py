"""Builds TimeSteps out of what a vector environment returns as numpy arrays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from alf_lite.data_structures import TimeStep
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.numpy_actions import ActionLeaf
from alf_lite.environments.numpy_observations import ObservationLeaf
from alf_lite.environments.observation_bounds import raise_if_not_finite
from alf_lite.environments.row_stacking import Column
from alf_lite.environments.space_tree import SpaceTree
from alf_lite.errors import EnvError

Nest = Any

# The sum of squares below which every reward fits into float32.
_LARGE_SQUARE = 1e76
_NOT_NEXT_STEP = (
    "the step after the end of an episode must be the reset (reward 0, not terminated, "
    "not truncated), as AutoresetMode.NEXT_STEP says. Check the vector environment's "
    "metadata['autoreset_mode']."
)


class NumpyTimeSteps:
    """Remembers which episodes ended, and turns each step into a TimeStep.

    Args:
        observation_space: of a single environment.
        action_space: of a single environment.
        reward_shape: of a single reward.
        info_keys: what becomes ``env_info``.
        batch_size: B.
        copy: whether the environment may change its arrays later.
        trusted: whether rewards and flags are arrays of the right shapes and dtypes.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        reward_shape: tuple[int, ...],
        info_keys: InfoKeys,
        batch_size: int,
        copy: bool,
        trusted: bool = False,
    ) -> None:
        self._batch_size = batch_size
        self._info_keys = info_keys
        self._trusted = trusted
        self._observation_tree = SpaceTree(observation_space, "observation")
        self._observations = [
            ObservationLeaf(leaf, batch_size, copy)
            for leaf in self._observation_tree.leaves
        ]
        self._action_tree = SpaceTree(action_space, "action")
        self._actions = [
            ActionLeaf(leaf, batch_size) for leaf in self._action_tree.leaves
        ]
        self._rewards = Column("reward", (batch_size, *reward_shape), np.float64)
        self._flags = [
            Column(name, (batch_size,), np.bool_)
            for name in ("terminated", "truncated")
        ]
        self._env_id = torch.arange(batch_size, dtype=torch.int32)
        # Copying these is faster than making new ones.
        self._mid = np.ones(batch_size, np.int32)
        self._one = np.ones(batch_size, np.float32)
        self._ended = np.zeros(batch_size, np.bool_)
        self._num_ended = 0
        self._action: list[np.ndarray] = []  # the agent's, per leaf

    def first(self, observation: Any, infos: dict[str, Any]) -> TimeStep:
        """The FIRST steps after a reset of all environments."""
        self._observation_tree.check(observation)
        self._ended = np.zeros(self._batch_size, np.bool_)
        self._num_ended = 0
        reward = np.zeros(self._rewards.shape, np.float32)
        action = [np.zeros(leaf.shape, leaf.agent_dtype) for leaf in self._actions]
        return self._time_step(
            np.zeros_like(self._mid),
            reward,
            self._one.copy(),
            self._read_observation(observation),
            action,
            infos,
        )

    def convert_action(self, action: Nest) -> Nest:
        """What the vector environment is given, and keeps the agent's action.

        Raises:
            TypeError, ValueError: if ``action`` does not fit the action spec.
            DivergedError: if it is not finite.
        """
        tensors = self._action_tree.split(action)
        self._action = list(map(ActionLeaf.read, self._actions, tensors))
        converted = map(ActionLeaf.to_environment, self._actions, self._action)
        return self._action_tree.join(list(converted))

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
        if not self._trusted:
            terminated = self._flags[0].convert(terminated)
            truncated = self._flags[1].convert(truncated)
            reward = self._rewards.convert(reward)
        ended = terminated | truncated
        # Not so for NaN, infinity and what may overflow.
        if not np.vdot(reward, reward) < _LARGE_SQUARE:
            with np.errstate(over="ignore"):
                raise_if_not_finite("reward", reward.astype(np.float32))
        reward = reward.astype(np.float32)
        step_type, discount = self._mid.copy(), self._one.copy()
        num_ended = int(np.count_nonzero(ended))
        if num_ended:
            step_type[ended] = 2
            discount[terminated] = 0.0
        if self._num_ended:
            self._start_episodes(step_type, reward, ended)
        self._ended, self._num_ended = ended, num_ended
        observed = self._read_observation(observation)
        return self._time_step(
            step_type, reward, discount, observed, self._action, infos
        )

    def _start_episodes(
        self, step_type: np.ndarray, reward: np.ndarray, ended: np.ndarray
    ) -> None:
        first = self._ended
        wrong = first & (ended | reward.reshape(len(reward), -1).any(1))
        if wrong.any():
            row = int(wrong.argmax())
            raise EnvError(
                f"environment {row} returned reward {reward[row]}, ended {ended[row]} "
                f"at the step after an end: {_NOT_NEXT_STEP}"
            )
        step_type[first] = 0
        for array in self._action:
            array[first] = 0

    def _read_observation(self, observation: Any) -> Nest:
        values = self._observation_tree.split(observation)
        arrays = map(ObservationLeaf.read, self._observations, values)
        return self._observation_tree.join(list(map(torch.from_numpy, arrays)))

    def _time_step(
        self,
        step_type: np.ndarray,
        reward: np.ndarray,
        discount: np.ndarray,
        observation: Nest,
        action: list[np.ndarray],
        infos: dict[str, Any],
    ) -> TimeStep:
        return TimeStep(
            step_type=torch.from_numpy(step_type),
            reward=torch.from_numpy(reward),
            discount=torch.from_numpy(discount),
            observation=observation,
            prev_action=self._action_tree.join(list(map(torch.from_numpy, action))),
            env_id=self._env_id,
            env_info=self._read_infos(infos),
        )

    def _read_infos(self, infos: dict[str, Any]) -> dict[str, Tensor] | tuple:
        if not self._info_keys:
            return ()
        arrays = self._info_keys.read(infos, self._batch_size)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
