"""What the process of one environment does: builds it and serves the parent's requests.

Requests and replies are short messages on one pipe; the data lies in ``SharedSteps``.
Without torch, see space_tree.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np

from alf_lite.config import shipping as config_shipping
from alf_lite.environments import env_factory, single_env
from alf_lite.environments.info_keys import InfoKeys, info_names
from alf_lite.environments.open_episodes import OpenEpisode, Replay
from alf_lite.environments.space_tree import Column, SpaceColumns
from alf_lite.errors import ConfigError
from alf_lite.processes.child_main import Parent, StopRequested
from alf_lite.processes.shared_memory import ArrayLayout, SharedMemory

# The first byte of a request. A reply is empty or pickled.
ATTACH, RESET, STEP, RENDER = b"a", b"r", b"s", b"f"
INFO_NAMES, SET_ATTRIBUTE = b"i", b"t"
SAVE, REPLAY, END_REPLAY = b"m", b"p", b"e"  # see open_episodes


class EnvSettings(NamedTuple):
    """What the process of one environment must know."""

    env_index: int  # of the environment in its batch
    num_envs: int
    factory: bytes  # see env_factory.dump_factory
    info_keys: dict[str, tuple[int, ...]]  # InfoKeys.declared
    seed: int | None


class BuiltEnv(NamedTuple):
    """What the parent is told of an environment."""

    description: single_env.EnvDescription
    config_use: Any  # what building it took from the configuration


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


def serve(settings: EnvSettings, parent: Parent) -> NoReturn:
    """Answers requests until the parent's end of the pipe is closed."""
    server = _EnvServer(settings, parent)
    try:
        parent.send(server.build())
        while True:
            request = parent.receive()
            parent.send(server.answer(request[:1], request[1:]))
    except StopRequested:
        server.close()
        raise
    except BaseException as error:
        missing = single_env.missing_value(error)
        if missing is None:
            raise
        raise ConfigError(missing) from error


class _EnvServer:
    """One environment and its row of the shared steps."""

    def __init__(self, settings: EnvSettings, parent: Parent) -> None:
        self._settings = settings
        self._parent = parent
        self._row = settings.env_index
        self._info_keys = InfoKeys(settings.info_keys)
        self._env: Any = None
        self._steps: Any = None
        self._info: Any = {}  # of the last step, if any key was declared
        self._ended = True
        self._handlers: dict[bytes, Callable[..., bytes]] = {
            ATTACH: self.attach,
            RESET: self.reset,
            RENDER: lambda: _dump(self._env.render()),
            SET_ATTRIBUTE: self.set_attribute,
            INFO_NAMES: lambda: _dump(info_names(self._info)),
            SAVE: lambda: _dump(self._episode.save()),
            REPLAY: self.replay,
            END_REPLAY: self.end_replay,
        }

    def answer(self, kind: bytes, content: bytes) -> bytes:
        """The reply to a request."""
        if kind == STEP:
            return self.step()
        arguments = reduction.ForkingPickler.loads(content) if content else ()
        return self._handlers[kind](*arguments)

    def build(self) -> bytes:
        """Builds the environment; the reply describes it."""
        _seed_global_generators(self._settings.seed)
        self._env = env_factory.load_factory(self._settings.factory)()
        description = single_env.describe_env(self._env)
        self._description = description
        self._episode = OpenEpisode(self._env, owns_globals=True)
        self._reward = Column("reward", description.reward_space.shape, np.float64)
        self._flags = [
            Column(name, (), np.bool_) for name in ("terminated", "truncated")
        ]
        return _dump(BuiltEnv(description, config_shipping.export_config_use()))

    def attach(self) -> bytes:
        """Maps the shared memory, whose descriptor follows the request."""
        self._steps = SharedSteps(
            self._settings.num_envs,
            self._description.observation_space,
            self._description.action_space,
            self._description.reward_space.shape,
            self._info_keys,
        )
        self._parent.attach(self._steps)
        return b""

    def reset(self, seed: int | None, options: Any) -> bytes:
        observation, info = self._reset(seed, options)
        no_reward = np.zeros(self._reward.shape)
        self._write(observation, no_reward, False, False, info)
        return b""

    def _reset(self, seed: int | None, options: Any = None) -> tuple[Any, dict]:
        _seed_global_generators(seed)
        observation, info = self._episode.reset(seed, options)
        self._steps.observation_columns.tree.check(observation)
        return observation, info

    def step(self) -> bytes:
        if self._ended:
            return self.reset(None, None)
        result = self._env.step(self._steps.read_action(self._row))
        single_env.check_step_result(result)
        self._write(*result)
        return b""

    def set_attribute(self, name: str, value: Any) -> bytes:
        single_env.set_env_attribute(self._env, name, value)
        return b""

    def replay(self, start: str | None, actions: list[np.ndarray]) -> bytes:
        """Begins to bring an episode back, or goes on with it.

        Args:
            start: what SAVE has returned; None to go on.
            actions: [N, ...] for each leaf of the action space.
        """
        if start is not None:
            no_reward = np.zeros(self._reward.shape)
            self._replay = Replay(self._env, self._episode, self._reset, no_reward)
            self._replay.begin(start)
        columns = self._steps.action_columns
        self._replay.step(columns.row(actions, i) for i in range(len(actions[0])))
        return b""

    def end_replay(self, seed: int) -> bytes:
        """Ends it; the reply says why a new episode has begun, if one has."""
        self._replay.end(seed)
        self._write(*self._replay.result)
        return _dump(self._replay.reason)

    def close(self) -> None:
        """Closes the environment; what it raises goes to stderr."""
        try:
            if self._env is not None:
                self._env.close()
        except Exception:
            traceback.print_exc()

    def _write(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> None:
        steps, row = self._steps, self._row
        steps.write_observation(row, observation)
        if isinstance(reward, float) and not self._reward.shape:
            steps.rewards[row] = reward
        else:
            steps.rewards[row] = self._reward.convert(reward)
        steps.terminated[row] = self._flags[0].convert(terminated)
        steps.truncated[row] = self._flags[1].convert(truncated)
        self._ended = bool(steps.terminated[row] or steps.truncated[row])
        if self._info_keys:
            for array in steps.infos.values():
                array[row] = 0
            self._info_keys.write(steps.infos, row, info)
            self._info = info


def _seed_global_generators(seed: int | None) -> None:
    """Seeds what an environment may use beside its own generator."""
    if seed is None:
        return
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - it is the environments that use it
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _dump(value: Any) -> bytes:
    return bytes(reduction.ForkingPickler.dumps(value))
