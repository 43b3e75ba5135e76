"""Batches of EnvPool's environments, which step in threads of C++.

``create_environment.vectorization_mode = "envpool"`` makes one. The ids are EnvPool's
(``envpool.list_all_envs()``): ``CartPole-v1`` and ``HalfCheetah-v5`` are as those of
gymnasium; ``Pong-v5`` comes preprocessed, with four frames stacked.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from alf_lite.environments import single_env
from alf_lite.errors import ConfigError, needs_extra


class EnvPoolVectorEnv(gymnasium.vector.VectorEnv):
    """``num_envs`` environments of EnvPool.

    EnvPool takes a seed only where a pool is made, so that a reset with a seed makes a
    new one. A reset without a seed goes on with the generators of the pool.

    Args:
        env_name: EnvPool's id.
        num_envs: B.
        seed: of the first pool.
        options: for ``envpool.make``, such as ``num_threads`` or ``frame_skip``.

    Raises:
        ConfigError: if EnvPool is missing, or knows no such environment or option.
        EnvError: if it cannot make the environment.
    """

    def __init__(
        self, env_name: str, num_envs: int, seed: int, options: Mapping[str, Any]
    ) -> None:
        self._make_options = {
            **options,
            "env_type": "gymnasium",
            "num_envs": num_envs,
        }
        self._env_name = env_name
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        _check(env_name, options)
        self.num_envs = num_envs
        self._is_fresh = True
        self._pool = self._make_pool(seed)
        self.single_observation_space = _with_real_bounds(self._pool.observation_space)
        self.single_action_space = self._pool.action_space
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None and not (self._is_fresh and seed == self._seed):
            if not isinstance(seed, int):
                raise ConfigError(f"{self._env_name}: EnvPool takes one seed for all")
            self._pool.close()
            self._pool = self._make_pool(seed)
        self._is_fresh = False
        return self._pool.reset()

    def step(
        self, actions: Any
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        return self._pool.step(actions)

    def render(self) -> tuple[Any, ...] | None:
        frames = self._pool.render()
        return None if frames is None else tuple(frames)

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()

    def _make_pool(self, seed: int) -> Any:
        envpool = _import_envpool()
        self._seed = seed
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # Its seeds have 32 bits, and a sign.
                pool = envpool.make(
                    self._env_name, seed=seed % 2**31, **self._make_options
                )
                # It gives bounds of float64 to spaces of float32, and keeps the spaces.
                _ = pool.observation_space, pool.action_space
                return pool
        except single_env.ENV_FAILURES as error:
            single_env.raise_env_error(f"envpool.make({self._env_name!r})", error)


def _import_envpool() -> Any:
    with needs_extra("vectorization_mode='envpool'", "envpool"):
        import envpool
    return envpool


def _check(env_name: str, options: Mapping[str, Any]) -> None:
    """Refuses ids and options that EnvPool does not know."""
    envpool = _import_envpool()
    names = envpool.list_all_envs()
    if env_name not in names:
        raise ConfigError(
            f"EnvPool has no environment {env_name!r}.{_did_you_mean(env_name, names)}"
        )
    known = [*envpool.make_spec(env_name).config._fields, "render_mode"]
    for option in options:
        if option not in known or option == "num_envs":
            raise ConfigError(
                f"create_environment.env_kwargs: EnvPool's {env_name} has no option "
                f"{option!r}.{_did_you_mean(option, known)}"
            )


def _did_you_mean(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=5, cutoff=0.6)
    return f" Did you mean {', '.join(map(repr, close))}?" if close else ""


def _with_real_bounds(space: spaces.Space) -> spaces.Space:
    """Some of its spaces are said to begin at the least positive number of float32."""
    if not (isinstance(space, spaces.Box) and space.dtype.kind == "f"):
        return space
    limits = np.finfo(np.float32)
    low = np.where((space.low == limits.tiny) | (space.low <= limits.min), -np.inf, 0)
    high = np.where(space.high >= limits.max, np.inf, 0)
    return spaces.Box(
        np.where(low < 0, low, space.low).astype(space.dtype),
        np.where(high > 0, high, space.high).astype(space.dtype),
        dtype=space.dtype.type,
    )
