"""The memory through which environments in other processes exchange their data.

Without torch, see space_tree.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from alf_lite.environments.batch_stacking import SpaceColumns
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.processes.shared_memory import ArrayLayout, SharedMemory


class SharedSteps(SharedMemory):
    """Observations, actions, rewards, ends and infos of B environments in one block.

    Both sides build it from the same spaces.
    """

    observations: list[np.ndarray]  # [B, ...] per leaf of the observation space
    actions: list[np.ndarray]  # [B, ...] per leaf of the action space
    rewards: np.ndarray  # [B] or [B, D] float64
    terminated: np.ndarray  # [B] bool
    truncated: np.ndarray  # [B] bool
    infos: dict[str, np.ndarray]  # as InfoKeys.allocate returns them

    def __init__(
        self,
        num_envs: int,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        reward_shape: tuple[int, ...],
        info_keys: InfoKeys,
    ) -> None:
        self.observation_columns = SpaceColumns(observation_space, "observation")
        self.action_columns = SpaceColumns(action_space, "action")
        self._infos = info_keys.allocate(num_envs)
        layouts = [
            ArrayLayout((num_envs, *leaf.shape), leaf.dtype)
            for columns in (self.observation_columns, self.action_columns)
            for leaf in columns.tree.leaves
        ]
        layouts.append(ArrayLayout((num_envs, *reward_shape), np.dtype(np.float64)))
        layouts += [ArrayLayout((num_envs,), np.dtype(np.bool_))] * 2
        layouts += [ArrayLayout(a.shape, a.dtype) for a in self._infos.values()]
        super().__init__(
            layouts,
            f"{num_envs} asynchronous environments",
            "Lower create_environment.num_parallel_environments.",
        )

    def attach(self, descriptor: int) -> None:
        super().attach(descriptor)
        arrays = self.arrays()
        num_observations = len(self.observation_columns.columns)
        num_actions = len(self.action_columns.columns)
        self.observations = arrays[:num_observations]
        self.actions = arrays[num_observations : num_observations + num_actions]
        rest = arrays[num_observations + num_actions :]
        self.rewards, self.terminated, self.truncated = rest[:3]
        self.infos = dict(zip(self._infos, rest[3:], strict=True))

    def write_actions(self, actions: Any) -> None:
        """Copies a batch of actions, [B, ...], for the environments to read.

        Raises:
            ValueError: if a shape differs.
        """
        tree = self.action_columns.tree
        for leaf, array, shared in zip(
            tree.leaves, tree.split(actions), self.actions, strict=True
        ):
            if np.shape(array) != shared.shape:
                raise ValueError(
                    f"{leaf.path}: expected shape {shared.shape}, got {np.shape(array)}"
                )
            np.copyto(shared, array, casting="same_kind")

    def read_observations(self) -> Any:
        """A fresh nest of [B, ...] arrays."""
        arrays = [array.copy() for array in self.observations]
        return self.observation_columns.tree.join(arrays)

    def read_infos(self) -> dict[str, np.ndarray]:
        """Fresh arrays of the declared info keys, with their masks."""
        return {name: array.copy() for name, array in self.infos.items()}

    def write_observation(self, row: int, observation: Any) -> None:
        """Writes what environment ``row`` returned.

        Raises:
            EnvError: if it does not fit the space.
        """
        columns = self.observation_columns
        for column, value, shared in zip(
            columns.columns,
            columns.tree.split(observation),
            self.observations,
            strict=True,
        ):
            shared[row] = column.convert(value)

    def read_action(self, row: int) -> Any:
        """What environment ``row`` is to do; the environment may keep it."""
        return self.action_columns.row(self.actions, row)
