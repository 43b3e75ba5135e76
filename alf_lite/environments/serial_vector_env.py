"""Single environments stepped one after the other in the calling process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np

from alf_lite.environments import single_env
from alf_lite.environments.info_keys import InfoKeys, info_names
from alf_lite.environments.open_episodes import (
    OpenEpisode,
    Replay,
    untouched_globals,
)
from alf_lite.environments.single_env import BatchOfSingleEnvs, SavedEpisode
from alf_lite.environments.space_tree import Column, RowError, SpaceColumns
from alf_lite.errors import EnvError, exception_text


class SerialVectorEnv(BatchOfSingleEnvs):
    """Steps its environments in turn, with little overhead.

    Args:
        env_fns: one per environment.
        info_keys: what the infos hold.

    Raises:
        EnvError: if an environment cannot be built or their spaces differ.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        info_keys: InfoKeys | None = None,
    ) -> None:
        super().__init__(len(env_fns), info_keys)
        self.envs: list[gymnasium.Env] = []
        self._has_infos = bool(self._info_keys)
        self._last_infos: list[Any] = []
        try:
            self._set_spaces([self._build(i, fn) for i, fn in enumerate(env_fns)])
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

    def _set_spaces(self, descriptions: Sequence[single_env.EnvDescription]) -> None:
        super()._set_spaces(descriptions)
        self.spec = self.envs[0].spec
        self._observations = SpaceColumns(self.single_observation_space, "observation")
        self._is_nested = not self._observations.tree.is_leaf
        self._actions = SpaceColumns(self.single_action_space, "action")
        # Whether a batch of actions is the sequence of what environments are given.
        self._are_rows = self._actions.is_sequence
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
        seeds = single_env.seeds_of_reset(seed, self.num_envs)
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
        self._num_steps += 1
        observations: list[Any] = []
        rewards: list[Any] = []
        terminations: list[Any] = []
        truncations: list[Any] = []
        infos: list[Any] = []
        # This loop is what a step costs beside the environments themselves.
        for action, step, ended in zip(
            actions if self._are_rows else self._actions.rows(actions),
            self._steps,
            self._ended,
            strict=True,
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
            if self._is_nested:
                batch = self._observations.stack(observations)
            else:
                batch = _stack(observations, self._observations.columns[0])
            reward_batch = _stack(rewards, self._rewards)
            terminated_batch = _stack(terminations, self._terminated)
            truncated_batch = _stack(truncations, self._truncated)
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
        for i in np.flatnonzero(rows):
            last = self._last_observations[i]
            result: Any = (last, self._no_reward, False, False, {})
            self._steps[i] = functools.partial(_stay, result)
            self._ended[i] = False

    def set_attribute(self, name: str, value: Any) -> None:
        for env in self.envs:
            single_env.set_env_attribute(env, name, value)

    def info_names(self) -> list[str]:
        return [name for info in self._last_infos for name in info_names(info)]

    def save_episodes(self) -> list[str]:
        return [episode.save() for episode in self._episodes]

    def restore_episodes(
        self, episodes: Mapping[int, SavedEpisode], seeds: Sequence[int]
    ) -> tuple[tuple, dict[int, str]]:
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
        try:
            observation, info = self._episodes[index].reset(seed, options)
            if self._is_nested:
                self._observations.tree.check(observation)
        except single_env.ENV_FAILURES as error:
            single_env.raise_env_error(self._at_step(index, "reset()"), error)
        return observation, info

    def _raise_row_error(self, error: RowError, call: str) -> NoReturn:
        # The copies of rows that were reset in a step say so.
        call = "reset()" if self._ended[error.row] else call
        single_env.raise_env_error(self._at_step(error.row, call), error)

    def _batch_infos(self, infos: list[Any], call: str) -> dict[str, Any]:
        if not self._has_infos:
            return {}
        self._last_infos = infos
        batch = self._info_keys.allocate(self.num_envs)
        for i, info in enumerate(infos):
            try:
                self._info_keys.write(batch, i, info)
            except Exception as error:
                single_env.raise_env_error(self._at_step(i, call), error)
        return batch

    def _check_infos(self, infos: list[Any]) -> None:
        for i, info in enumerate(infos):
            try:
                single_env.check_info(info)
            except EnvError as error:
                single_env.raise_env_error(self._at_step(i, "step()"), error)

    def _at_step(self, index: int, call: str) -> str:
        return self._where(index, f"{call} at step {self._num_steps}")

    def _raise_step_error(
        self, index: int, error: BaseException, result: Any
    ) -> NoReturn:
        if result is not None:  # it returned something that is not a 5-tuple
            try:
                single_env.check_step_result(result)
            except EnvError as rule:
                error = rule
        single_env.raise_env_error(self._at_step(index, "step()"), error)


def _stack(rows: list[Any], column: Column) -> np.ndarray:
    """As ``column.stack``, decided here in most cases."""
    try:
        batch = np.array(rows)
    except ValueError:  # of different shapes
        return column.stack(rows)
    is_right = batch.dtype == column.dtype and batch.shape[1:] == column.shape
    return batch if is_right else column.stack(rows)


def _stay(result: tuple[Any, ...], action: Any) -> tuple[Any, ...]:
    """The step of an environment that is frozen."""
    return result
