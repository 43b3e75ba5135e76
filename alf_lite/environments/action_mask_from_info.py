"""Action masks of environments that give them in their infos.

In a conf, after ``import alf_lite.environments.action_mask_from_info``::

    create_environment.wrappers = [@ActionMaskFromInfo]
    PPOAlgorithm.action_mask_key = "action_mask"
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.config import configurable
from alf_lite.errors import ConfigError, EnvError

Observation = dict[str, Any]


@configurable
class ActionMaskFromInfo(gymnasium.Wrapper):
    """Moves a mask from the info to the observation, where agents look for it.

    The observation becomes {"action_mask": mask, "observation": what it was}. If it is
    a Dict, the mask becomes one more entry of it. The mask of several components may
    come as one array or as a sequence of arrays, one for each component.

    Args:
        env: its actions are Discrete or MultiDiscrete.
        key: of the mask in every info, and then in every observation.

    Raises:
        ConfigError: if the actions are others, or the observation has such an entry.
    """

    def __init__(self, env: gymnasium.Env, *, key: str = "action_mask") -> None:
        super().__init__(env)
        self._key = key
        self._num_values = _num_values(env.action_space)
        mask_space = spaces.MultiBinary(self._num_values)
        space = env.observation_space
        self._is_dict = isinstance(space, spaces.Dict)
        entries = dict(space) if isinstance(space, spaces.Dict) else {}
        if key in entries:
            raise ConfigError(
                f"ActionMaskFromInfo: the observation has an entry {key!r} already. "
                "If it is the mask, leave the wrapper out."
            )
        if not self._is_dict:
            entries["observation"] = space
        self.observation_space = spaces.Dict({**entries, key: mask_space})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Observation, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._with_mask(observation, info)
        return observation, reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: dict[str, Any]) -> Observation:
        if self._key not in info:
            raise EnvError(
                f"ActionMaskFromInfo: expected {self._key!r} in every info, got "
                f"{sorted(map(str, info))}"
            )
        mask = info[self._key]
        if isinstance(mask, tuple | list):
            mask = np.concatenate([np.reshape(part, -1) for part in mask])
        mask = np.asarray(mask).reshape(-1)
        if mask.size != self._num_values:
            raise EnvError(
                f"ActionMaskFromInfo: info[{self._key!r}] must have one entry for each "
                f"of the {self._num_values} values of {self.action_space}, got "
                f"{mask.size}"
            )
        entries = observation if self._is_dict else {"observation": observation}
        return {**entries, self._key: (mask != 0).astype(np.int8)}


def _num_values(space: gymnasium.Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    raise ConfigError(
        f"ActionMaskFromInfo: expected Discrete or MultiDiscrete actions, got {space}. "
        "Give the mask in the observation of your environment instead."
    )
