"""What the process of one environment does: builds it and serves the parent's requests.

Requests and replies are short messages on one pipe, whose first byte says what they
are; the data lies in ``SharedArrays``. Without torch, see space_tree.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from alf_lite.config import shipping as config_shipping
from alf_lite.environments import env_factory, single_env
from alf_lite.environments.info_keys import InfoKeys, info_names
from alf_lite.environments.open_episodes import OpenEpisode, Replay
from alf_lite.environments.row_stacking import Column
from alf_lite.environments.shared_arrays import SharedArrays
from alf_lite.environments.worker_settings import WorkerSettings
from alf_lite.errors import ConfigError, DataError, EnvError

# Requests
ATTACH, RESET, STEP, RENDER, CLOSE = b"a", b"r", b"s", b"f", b"c"
INFO_NAMES = b"i"
SAVE, REPLAY, END_REPLAY = b"m", b"p", b"e"  # see open_episodes
# Replies: the empty message is success, else one of these and its content
DATA, RAISED, BROKEN_CONTRACT, BAD_CONFIG, BAD_DATA = b"d", b"x", b"e", b"c", b"s"


class BuiltEnv(NamedTuple):
    """What the parent is told of an environment."""

    description: single_env.EnvDescription
    config_use: Any  # what building it took from the configuration


def serve(settings: WorkerSettings, requests: Connection) -> None:
    """Answers requests until CLOSE or until the parent's end of the pipe is gone."""
    server = _EnvServer(settings, requests)
    call = server.build
    while True:
        try:
            reply = call()
        except BaseException as error:  # SystemExit and the like must not pass silently
            reply = _failure(error)
        try:
            requests.send_bytes(reply)
            request = requests.recv_bytes()
        except (EOFError, OSError):  # the parent died or closed the pipe
            return
        if request[:1] == CLOSE:
            server.close()
            return
        call = server.handler(request)


class _EnvServer:
    """One environment and its row of the shared arrays."""

    def __init__(self, settings: WorkerSettings, requests: Connection) -> None:
        self._settings = settings
        self._requests = requests
        self._row = settings.env_index
        self._info_keys = InfoKeys(settings.info_keys)
        self._env: Any = None
        self._arrays: Any = None
        self._info: Any = {}  # of the last step, if any key was declared
        self._ended = True

    def handler(self, request: bytes) -> Any:
        kind, content = request[:1], request[1:]
        if kind == STEP:
            return self.step
        if kind == RESET:
            return lambda: self.reset(*reduction.ForkingPickler.loads(content))
        if kind == RENDER:
            return lambda: DATA + _dump(self._env.render())
        if kind == INFO_NAMES:
            return lambda: DATA + _dump(info_names(self._info))
        if kind == SAVE:
            return lambda: DATA + _dump(self._episode.save())
        if kind == REPLAY:
            return lambda: self.replay(*reduction.ForkingPickler.loads(content))
        if kind == END_REPLAY:
            return lambda: self.end_replay(reduction.ForkingPickler.loads(content))
        assert kind == ATTACH, request
        return self.attach

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
        return DATA + _dump(BuiltEnv(description, config_shipping.export_config_use()))

    def attach(self) -> bytes:
        """Maps the shared memory, whose descriptor follows the request."""
        descriptor = reduction.recv_handle(self._requests)
        self._arrays = SharedArrays(
            self._settings.num_envs,
            self._description.observation_space,
            self._description.action_space,
            self._description.reward_space.shape,
            self._info_keys,
        )
        self._arrays.attach(descriptor)
        os.close(descriptor)
        return b""

    def reset(self, seed: int | None, options: Any) -> bytes:
        observation, info = self._reset(seed, options)
        no_reward = np.zeros(self._reward.shape)
        self._write(observation, no_reward, False, False, info)
        return b""

    def _reset(self, seed: int | None, options: Any = None) -> tuple[Any, dict]:
        _seed_global_generators(seed)
        self._episode.note(seed)
        observation, info = single_env.reset_env(self._env, seed, options)
        self._arrays.observation_columns.tree.check(observation)
        return observation, info

    def step(self) -> bytes:
        if self._ended:
            return self.reset(None, None)
        result = self._env.step(self._arrays.read_action(self._row))
        single_env.check_step_result(result)
        self._write(*result)
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
        columns = self._arrays.action_columns
        self._replay.step(columns.row(actions, i) for i in range(len(actions[0])))
        return b""

    def end_replay(self, seed: int) -> bytes:
        """Ends it; the reply says why a new episode has begun, if one has."""
        self._replay.end(seed)
        self._write(*self._replay.result)
        return DATA + _dump(self._replay.reason)

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
        arrays, row = self._arrays, self._row
        arrays.write_observation(row, observation)
        if isinstance(reward, float) and not self._reward.shape:
            arrays.rewards[row] = reward
        else:
            arrays.rewards[row] = self._reward.convert(reward)
        arrays.terminated[row] = self._flags[0].convert(terminated)
        arrays.truncated[row] = self._flags[1].convert(truncated)
        self._ended = bool(arrays.terminated[row] or arrays.truncated[row])
        if self._info_keys:
            for array in arrays.infos.values():
                array[row] = 0
            self._info_keys.write(arrays.infos, row, info)
            self._info = info


def _seed_global_generators(seed: int | None) -> None:
    """Seeds what an environment may use beside its own generator."""
    if seed is None:
        return
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - it is the environments that use it
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _failure(error: BaseException) -> bytes:
    missing = single_env.missing_value(error)
    if missing is not None:
        kind, text = BAD_CONFIG, missing
    elif isinstance(error, EnvError):
        kind, text = BROKEN_CONTRACT, str(error)
    elif isinstance(error, DataError):
        kind, text = BAD_DATA, str(error)
    elif isinstance(error, ConfigError):
        kind, text = BAD_CONFIG, str(error)
    else:
        kind = RAISED
        text = single_env.failure_text(error)
    # Text, because not every exception can be pickled.
    return kind + text.encode("utf-8", errors="backslashreplace")


def _dump(value: Any) -> bytes:
    return bytes(reduction.ForkingPickler.dumps(value))
