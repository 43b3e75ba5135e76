"""Single environments stepped one after the other in the calling process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from alf_lite.environments import single_env
from alf_lite.environments.batch_stacking import Column, RowError, SpaceColumns
from alf_lite.environments.info_keys import InfoKeys, info_names
from alf_lite.environments.open_episodes import (
    OpenEpisode,
    Replay,
    SavedEpisode,
    untouched_globals,
)
from alf_lite.environments.seeds import seeds_of_reset
from alf_lite.errors import EnvError, exception_text


class SerialVectorEnv(VectorEnv):
    """A ``gymnasium.vector.VectorEnv`` in NEXT_STEP mode, without overhead.

    It differs from gymnasium's ``SyncVectorEnv`` in that (1) nothing an environment
    returns is broadcast or rounded, an error names the environment instead, (2) the
    infos hold the declared keys only, (3) ``reset(seed)`` gives the environments seeds
    that have nothing in common with those of ``reset(seed + 1)``, (4) rewards may have
    several parts: an environment with a ``reward_space`` (a Box) returns arrays.

    All arrays returned are the caller's.

    Args:
        env_fns: one per environment.
        info_keys: what the infos hold.

    Raises:
        EnvError: if an environment cannot be built or their spaces differ.
    """

    returns_fresh_arrays = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        info_keys: InfoKeys | None = None,
    ) -> None:
        self.envs: list[gymnasium.Env] = []
        self.num_envs = len(env_fns)
        self._info_keys = InfoKeys() if info_keys is None else info_keys
        self._num_steps = 0
        self._last_infos: list[Any] = []
        try:
            descriptions = [self._build(i, fn) for i, fn in enumerate(env_fns)]
            single_env.check_same_spaces(descriptions)
            self._set_spaces(descriptions[0])
        except BaseException:
            self.close()
            raise

    def _build(
        self, index: int, env_fn: Callable[[], gymnasium.Env]
    ) -> single_env.EnvDescription:
        try:
            env = env_fn()
            description = single_env.describe_env(env)
        except single_env.ENV_FAILURES as error:
            single_env.raise_env_error(
                f"environment {index} of {self.num_envs}: the constructor", error
            )
        self.envs.append(env)
        return description

    def _set_spaces(self, env: single_env.EnvDescription) -> None:
        self._env_id = env.env_id
        self.spec = self.envs[0].spec
        self.render_mode = env.render_mode
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self._observations = SpaceColumns(env.observation_space, "observation")
        self._actions = SpaceColumns(env.action_space, "action")
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)
        self.single_reward_space = env.reward_space
        self._rewards = Column("reward", self.single_reward_space.shape, np.float64)
        self._no_reward: Any = 0.0
        if self._rewards.shape:
            self._no_reward = np.zeros(self._rewards.shape)
        self._terminated = Column("terminated", (), np.bool_)
        self._truncated = Column("truncated", (), np.bool_)
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self.envs]
        self._episodes = [OpenEpisode(env) for env in self.envs]
        self._restored: list[tuple] = [()] * self.num_envs
        self._ended = [True] * self.num_envs  # reset at the next step

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all environments; an int seeds each of them differently.

        Returns:
            Observations [B, ...] and infos.
        """
        seeds = seeds_of_reset(seed, self.num_envs)
        self._num_steps = 0
        self._steps = [env.step for env in self.envs]  # nothing is frozen
        observations, infos = [], []
        for i, env_seed in enumerate(seeds):
            observation, info = self._reset_one(i, env_seed, options)
            observations.append(observation)
            infos.append(info)
        try:
            batch = self._observations.stack(observations)
        except RowError as error:
            self._raise_row_error(error, "reset()")
        self._ended = [False] * self.num_envs
        self._last_observations = observations
        return batch, self._batch_infos(infos, "reset()")

    def step(
        self, actions: Any
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Steps all environments; those that ended before are reset instead.

        Args:
            actions: [B, ...] arrays, an element of ``action_space``.

        Returns:
            Observations [B, ...], rewards [B] or [B, D] float64, terminated and
            truncated [B], infos.
        """
        self._num_steps += 1
        observations: list[Any] = []
        rewards: list[Any] = []
        terminations: list[Any] = []
        truncations: list[Any] = []
        infos: list[Any] = []
        # This loop is what a step costs beside the environments themselves.
        for action, step, ended in zip(
            self._actions.rows(actions), self._steps, self._ended, strict=True
        ):
            if ended:
                observation, info = self._reset_one(len(infos), None, None)
                reward, terminated, truncated = self._no_reward, False, False
            else:
                result = None
                try:
                    result = step(action)
                    observation, reward, terminated, truncated, info = result
                except single_env.ENV_FAILURES as error:
                    self._raise_step_error(len(infos), error, result)
            observations.append(observation)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
            infos.append(info)
        call = "step()"
        if self._num_steps == 1:
            self._check_infos(infos)
        try:
            batch = self._observations.stack(observations)
            reward_batch = self._rewards.stack(rewards)
            terminated_batch = self._terminated.stack(terminations)
            truncated_batch = self._truncated.stack(truncations)
        except RowError as error:
            self._raise_row_error(error, call)
        self._last_observations = observations
        self._ended = (terminated_batch | truncated_batch).tolist()
        return (
            batch,
            reward_batch,
            terminated_batch,
            truncated_batch,
            self._batch_infos(infos, call),
        )

    def freeze(self, rows: np.ndarray) -> None:
        """Steps these environments no more until :meth:`reset`.

        They keep their observation; there is no reward and no end.

        Args:
            rows: [B] bool.
        """
        for i in np.flatnonzero(rows):
            last = self._last_observations[i]
            result: Any = (last, self._no_reward, False, False, {})
            self._steps[i] = functools.partial(_stay, result)
            self._ended[i] = False

    def info_names(self) -> list[str]:
        """The keys that the infos of the last step had, declared or not."""
        return [name for info in self._last_infos for name in info_names(info)]

    def save_episodes(self) -> list[str]:
        """How the open episodes began, see ``OpenEpisode``."""
        return [episode.save() for episode in self._episodes]

    def restore_episodes(
        self, episodes: Mapping[int, SavedEpisode], seeds: Sequence[int]
    ) -> tuple[tuple, dict[int, str]]:
        """Brings episodes back in some environments, or starts new ones there.

        Args:
            episodes: of these environments. The first call names all.
            seeds: [B], of new episodes.

        Returns:
            What ``step`` has returned at the end of each, and why some are new.
        """
        reasons = {}
        for i, saved in episodes.items():
            replay = self._replay(i, saved, seeds[i])
            self._restored[i] = replay.result
            if replay.reason:
                reasons[i] = replay.reason
        observations, rewards, terminated, truncated, infos = zip(
            *self._restored, strict=True
        )
        flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        self._ended = (flags[0] | flags[1]).tolist()
        self._last_observations = list(observations)
        call = "restore_episodes()"
        try:
            batch = self._observations.stack(observations)
            reward_batch = self._rewards.stack(rewards)
        except RowError as error:
            self._raise_row_error(error, call)
        return (
            (batch, reward_batch, *flags, self._batch_infos(list(infos), call)),
            reasons,
        )

    def _replay(self, index: int, saved: SavedEpisode, seed: int) -> Replay:
        def reset(seed: int | None) -> tuple[Any, dict]:
            return self._reset_one(index, seed, None)

        replay = Replay(self.envs[index], self._episodes[index], reset, self._no_reward)
        with untouched_globals() as were_used:
            replay.begin(saved.start)
            replay.step(self._actions.rows(self._actions.tree.join(saved.actions)))
        if were_used() and not replay.reason:
            replay.reason = "it draws from the global generators of the program"
        replay.end(seed)
        return replay

    def render(self) -> tuple[Any, ...]:
        """The frames of all environments."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes all environments, also when some of them raise."""
        for i, env in enumerate(self.envs):
            try:
                env.close()
            except Exception as error:
                text = exception_text(error)
                gymnasium.logger.warn(f"close() of environment {i} raised {text}")

    def _reset_one(
        self, index: int, seed: int | None, options: Any
    ) -> tuple[Any, dict]:
        self._episodes[index].note(seed)
        try:
            observation, info = single_env.reset_env(self.envs[index], seed, options)
            self._observations.tree.check(observation)
        except single_env.ENV_FAILURES as error:
            single_env.raise_env_error(self._where(index, "reset()"), error)
        return observation, info

    def _raise_row_error(self, error: RowError, call: str) -> NoReturn:
        # The copies of rows that were reset in a step say so.
        call = "reset()" if self._ended[error.row] else call
        single_env.raise_env_error(self._where(error.row, call), error)

    def _batch_infos(self, infos: list[Any], call: str) -> dict[str, Any]:
        if not self._info_keys:
            return {}
        self._last_infos = infos
        batch = self._info_keys.allocate(self.num_envs)
        for i, info in enumerate(infos):
            try:
                self._info_keys.write(batch, i, info)
            except Exception as error:
                single_env.raise_env_error(self._where(i, call), error)
        return batch

    def _check_infos(self, infos: list[Any]) -> None:
        for i, info in enumerate(infos):
            try:
                single_env.check_info(info)
            except EnvError as error:
                single_env.raise_env_error(self._where(i, "step()"), error)

    def _raise_step_error(
        self, index: int, error: BaseException, result: Any
    ) -> NoReturn:
        if result is not None:  # it returned something that is not a 5-tuple
            try:
                single_env.check_step_result(result)
            except EnvError as rule:
                error = rule
        single_env.raise_env_error(self._where(index, "step()"), error)

    def _where(self, index: int, call: str) -> str:
        name = f" ({self._env_id})" if self._env_id else ""
        return f"environment {index}{name}, {call} at step {self._num_steps}"


def _stay(result: tuple[Any, ...], action: Any) -> tuple[Any, ...]:
    """The step of an environment that is frozen."""
    return result
