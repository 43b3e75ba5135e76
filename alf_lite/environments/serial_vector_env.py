"""Single environments stepped one after the other in the calling process."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np

from alf_lite.environments import single_env
from alf_lite.environments.info_keys import InfoKeys, info_names
from alf_lite.environments.open_episodes import (
    OpenEpisode,
    Replay,
    untouched_globals,
)
from alf_lite.environments.single_env import (
    LARGEST_REWARD,
    BatchOfSingleEnvs,
    Ends,
    OwnStep,
    SavedEpisode,
)
from alf_lite.environments.space_tree import Column, RowError, SpaceColumns
from alf_lite.errors import AlfLiteError, EnvError, exception_text, failure_text

_logger = logging.getLogger(__name__)

_REWARD_TYPES = (float, np.float64)

_batches: weakref.WeakSet[SerialVectorEnv] = weakref.WeakSet()  # of this process
_batches_lock = threading.Lock()


class SerialVectorEnv(BatchOfSingleEnvs):
    """Steps its environments in turn, with little overhead.

    One whose ``step`` or ``reset`` raises can be tried again: its episode is given up,
    and ``restarted`` says so.

    Args:
        env_fns: one per environment.
        info_keys: what the infos hold.
        num_retries: how often an environment may fail until an episode of it ends.
        renew_fns: one per environment, which build it anew after a failure; None:
            it is reset.

    Raises:
        EnvError: if an environment cannot be built, their spaces differ, or two of them
            are the same object, here or in another batch that is open.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        info_keys: InfoKeys | None = None,
        *,
        num_retries: int = 0,
        renew_fns: Sequence[Callable[[], gymnasium.Env]] | None = None,
    ) -> None:
        super().__init__(len(env_fns), info_keys)
        self._num_retries = num_retries
        self._renew_fns = renew_fns
        self._num_failures = [0] * self.num_envs  # since an episode has ended
        self._seeds: Sequence[int | None] = [None] * self.num_envs
        self._attributes: dict[str, Any] = {}  # that were set
        self.envs: list[gymnasium.Env] = []
        self._has_infos = bool(self._info_keys)
        self._last_infos: Sequence[Any] = ()
        self._last_observations: Sequence[Any] = ()
        owners = _owners()
        try:
            self._set_spaces(
                [self._build(i, fn, owners) for i, fn in enumerate(env_fns)]
            )
        except BaseException:
            self.close()
            raise
        with _batches_lock:
            _batches.add(self)

    def _build(
        self, index: int, env_fn: Callable[[], gymnasium.Env], owners: dict[int, _Owner]
    ) -> single_env.EnvDescription:
        where = f"environment {index} of {self.num_envs}"
        try:
            env = env_fn()
            description = single_env.describe_env(env)
            inner = env.unwrapped
        except single_env.ENV_FAILURES as error:
            single_env.raise_env_error(f"{where}: the constructor", error)
        if id(inner) in owners:  # and is not closed: it belongs to the other one
            raise EnvError(
                f"{where} is the same {type(inner).__name__} object as "
                f"{owners[id(inner)].name}: each would break off the other's "
                "episodes. Return a new environment at every call, as in "
                "lambda: MyEnv(), or close() the environments that it belongs to."
            )
        owners[id(inner)] = _Owner(inner, f"environment {index}")
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
        is_plain = not (self._is_nested or self._has_infos)
        self._is_one = self.num_envs == 1 and is_plain and not self._rewards.shape
        self._terminated = Column("terminated", (), np.bool_)
        self._truncated = Column("truncated", (), np.bool_)
        self._usual_steps: list[Callable[[Any], Any]] = []
        self._unfreeze()
        self._episodes = [OpenEpisode(env) for env in self.envs]
        self._restored: list[tuple] = [()] * self.num_envs
        self._set_ended(np.ones(self.num_envs, np.bool_))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        self._check_open()
        self._seeds = seeds = single_env.seeds_of_reset(seed, self.num_envs)
        self._num_steps = 0
        self._unfreeze()
        observations, infos = [], []
        for i, env_seed in enumerate(seeds):
            observation, info = self._reset_one(i, env_seed, options)
            observations.append(observation)
            infos.append(info)
        try:
            batch = self._observations.stack(observations)
        except RowError as error:
            self._raise_row_error(error, "reset()")
        self._set_ended(None)
        self._last_observations = observations
        return batch, self._batch_infos(infos, "reset()")

    def take_step(self, actions: Any) -> OwnStep:
        self._num_steps += 1
        actions = actions if self._are_rows else self._actions.rows(actions)
        pairs = zip(self._steps, actions, strict=True)
        results: list[Any] = []
        self.restarted = None
        # This loop is what a step costs beside the environments themselves.
        try:
            for step, action in pairs:
                results.append(step(action))
        except single_env.ENV_FAILURES as error:
            self._go_on(pairs, results, error)
        try:
            if self._is_one:
                usual = self._one_usual_step(results[0])
                if usual is not None:
                    return usual
            observations, rewards, terminated, truncated, infos = zip(
                *results, strict=True
            )
        except single_env.ENV_FAILURES as error:
            self._raise_step_error(results, error)
        if self._num_steps == 1:
            self._check_infos(infos)
        try:
            if self._is_nested:
                batch = self._observations.stack(observations)
            else:
                batch = _stack(observations, self._observations.columns[0])
            reward_batch = _stack(rewards, self._rewards)
            ends = self._ends(terminated, truncated)
        except RowError as error:
            self._raise_row_error(error, "step()")
        self._last_observations = observations
        self._note_ends(ends)
        return batch, reward_batch, ends, self._batch_infos(infos, "step()")

    def _one_usual_step(self, result: Any) -> OwnStep | None:
        """What one environment has returned, if there is nothing to convert or to end.

        It takes a third of the time that several of them need.
        """
        if type(result) is not tuple or len(result) != 5 or self._num_steps == 1:
            return None
        observation, reward, terminated, truncated, _ = result
        column = self._observations.columns[0]
        if (
            terminated is not False
            or truncated is not False
            or type(reward) not in _REWARD_TYPES
            or not -LARGEST_REWARD < reward < LARGEST_REWARD
            or type(observation) is not np.ndarray
            or observation.dtype != column.dtype
            or observation.shape != column.shape
        ):
            return None
        self._last_observations = (observation,)
        if self._ended is not None:
            self._set_ended(None)
        return observation[None], reward, None, {}

    def _ends(self, terminated: tuple, truncated: tuple) -> Ends | None:
        """Which episodes have ended; None if no one has."""
        try:
            flags = np.array(terminated + truncated)
        except ValueError:  # of different shapes
            flags = np.array(None)
        if flags.dtype != np.bool_ or flags.ndim != 1:
            flags = np.concatenate(
                (self._terminated.stack(terminated), self._truncated.stack(truncated))
            )
        if b"\1" not in flags.tobytes():  # for few bools faster than any()
            return None
        return flags[: self.num_envs], flags[self.num_envs :]

    def _unfreeze(self) -> None:
        self._usual_steps = [env.step for env in self.envs]

    def _set_ended(self, ended: np.ndarray | None) -> None:
        """Says which environments are reset at the next step; None: no one."""
        self._ended = ended
        self._steps = self._usual_steps
        if ended is not None:
            self._steps = self._usual_steps.copy()
            for i in np.flatnonzero(ended).tolist():
                self._steps[i] = functools.partial(self._begin_episode, i)

    def _note_ends(self, ends: Ends | None) -> None:
        if ends is not None:
            ended = ends[0] | ends[1]
            self._set_ended(ended)
            for i in np.flatnonzero(ended).tolist() if self.num_restarts else ():
                self._num_failures[i] = 0
        elif self._ended is not None:
            self._set_ended(None)

    def _begin_episode(self, index: int, action: Any) -> tuple[Any, ...]:
        """The step of an environment whose episode has ended."""
        observation, info = self._reset_one(index, None, None)
        return observation, self._no_reward, False, False, info

    def freeze(self, rows: np.ndarray) -> None:
        for i in np.flatnonzero(rows).tolist():
            last = self._last_observations[i]
            result: Any = (last, self._no_reward, False, False, {})
            self._steps[i] = self._usual_steps[i] = functools.partial(_stay, result)

    def set_attribute(self, name: str, value: Any) -> None:
        self._attributes[name] = value
        for env in self.envs:
            single_env.set_env_attribute(env, name, value)

    def info_names(self) -> list[str]:
        return [name for info in self._last_infos for name in info_names(info)]

    def save_episodes(self) -> list[str]:
        return [episode.save() for episode in self._episodes]

    def restore_episodes(
        self, episodes: Mapping[int, SavedEpisode], seeds: Sequence[int]
    ) -> tuple[tuple, dict[int, str]]:
        self._check_open()
        reasons = {}
        self._seeds = seeds
        for i, saved in episodes.items():
            replay = self._replay(i, saved, seeds[i])
            self._restored[i] = replay.result
            if replay.reason:
                reasons[i] = replay.reason
        observations, rewards, terminated, truncated, infos = zip(
            *self._restored, strict=True
        )
        flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        self._set_ended(flags[0] | flags[1])
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

    def render_rows(self, rows: Sequence[int]) -> list[Any]:
        return [self.envs[row].render() for row in rows]

    def close_extras(self, **kwargs: Any) -> None:
        """Closes all environments, also when some of them raise."""
        self._steps = self._usual_steps = [single_env.step_closed] * self.num_envs
        for i in range(len(self.envs)):
            self._close_one(i)

    def _close_one(self, index: int) -> None:
        try:
            self.envs[index].close()
        except Exception as error:
            text = exception_text(error)
            gymnasium.logger.warn(f"close() of environment {index} raised {text}")

    def _reset_one(
        self, index: int, seed: int | None, options: Any
    ) -> tuple[Any, dict]:
        while True:
            try:
                observation, info = self._episodes[index].reset(seed, options)
                if self._is_nested:
                    self._observations.tree.check(observation)
                return observation, info
            except single_env.ENV_FAILURES as error:
                seed = self._recover(index, "reset()", error, seed)

    # Environments that fail

    def _go_on(
        self, pairs: Iterator[tuple], results: list[Any], error: BaseException
    ) -> None:
        """Has the one whose step has raised begin anew, and steps those behind it.

        Args:
            pairs: of those behind it.
            results: of those before it; gets the others.
            error: that was raised.
        """
        while len(results) < self.num_envs:
            index = len(results)
            if self._ended is not None and self._ended[index]:
                raise error  # of a reset, which was tried again
            seed = self._recover(index, "step()", error, None)
            observation, info = self._reset_one(index, seed, None)
            if self.restarted is None:
                self.restarted = np.zeros(self.num_envs, np.bool_)
            self.restarted[index] = True
            results.append((observation, self._no_reward, False, False, info))
            try:
                for step, action in pairs:
                    results.append(step(action))
            except single_env.ENV_FAILURES as another:
                error = another

    def _recover(
        self, index: int, call: str, error: BaseException, seed: int | None
    ) -> int | None:
        """Counts a failure, and builds the environment anew if it shall be.

        Returns:
            The seed of the reset that comes next.

        Raises:
            EnvError: if there were too many; if it is not the environment that failed.
        """
        while True:
            self._count_failure(index, call, error)
            if self._renew_fns is None:
                return seed
            try:
                return self._renew(index, self._renew_fns[index])
            except single_env.ENV_FAILURES as another:
                call, error = "the constructor", another

    def _count_failure(self, index: int, call: str, error: BaseException) -> None:
        where = self._at_step(index, call)
        number = self._num_failures[index] + 1
        if number > self._num_retries or isinstance(error, AlfLiteError):
            single_env.raise_env_error(where, error)
        self._num_failures[index] = number
        self.num_restarts += 1
        _logger.warning(
            "%s raised %s. Its episode is given up, and it is %s (%d of %d times until "
            "an episode ends).",
            where,
            failure_text(error).splitlines()[0],
            "reset" if self._renew_fns is None else "built anew",
            number,
            self._num_retries,
        )

    def _renew(self, index: int, env_fn: Callable[[], gymnasium.Env]) -> int | None:
        self._close_one(index)
        self.envs[index] = env = env_fn()
        self._episodes[index] = OpenEpisode(env)
        self._usual_steps[index] = env.step
        if self._ended is None or not self._ended[index]:
            self._steps[index] = env.step
        for name, value in self._attributes.items():
            single_env.set_env_attribute(env, name, value)
        seed = self._seeds[index]
        if seed is None:
            return None
        return single_env.environment_seeds(seed, self.num_restarts + 1)[-1]

    def _raise_row_error(self, error: RowError, call: str) -> NoReturn:
        # The copies of rows that were reset in a step say so.
        if self._ended is not None and self._ended[error.row]:
            call = "reset()"
        single_env.raise_env_error(self._at_step(error.row, call), error)

    def _batch_infos(self, infos: Sequence[Any], call: str) -> dict[str, Any]:
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

    def _check_infos(self, infos: Sequence[Any]) -> None:
        for i, info in enumerate(infos):
            try:
                single_env.check_info(info)
            except EnvError as error:
                single_env.raise_env_error(self._at_step(i, "step()"), error)

    def _at_step(self, index: int, call: str) -> str:
        return self._where(index, f"{call} at step {self._num_steps}")

    def _raise_step_error(self, results: list[Any], error: BaseException) -> NoReturn:
        """Raises EnvError: one of the results is not what it must be."""
        index = 0
        for i, result in enumerate(results):
            try:
                single_env.check_step_result(result)
            except EnvError as rule:
                index, error = i, rule
                break
        single_env.raise_env_error(self._at_step(index, "step()"), error)


class _Owner(NamedTuple):
    """Which environment of a batch an object is."""

    env: Any  # held, so that its id is not given to another one
    name: str


def _owners() -> dict[int, _Owner]:
    """The innermost environments of all open batches, which wrappers share, by id."""
    with _batches_lock:
        batches = [batch for batch in _batches if not batch.closed]
    return {
        id(env.unwrapped): _Owner(env.unwrapped, f"environment {i} of another batch")
        for batch in batches
        for i, env in enumerate(batch.envs)
    }


def _stack(rows: Sequence[Any], column: Column) -> np.ndarray:
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
