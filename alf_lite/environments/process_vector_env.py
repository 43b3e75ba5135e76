"""Single environments that step at the same time, each in a process of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from alf_lite.config import shipping as config_shipping
from alf_lite.environments import single_env, worker_loop
from alf_lite.environments.env_factory import dump_factory
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.open_episodes import SavedEpisode
from alf_lite.environments.seeds import environment_seeds
from alf_lite.environments.shared_arrays import SharedArrays
from alf_lite.environments.worker_loop import BuiltEnv
from alf_lite.environments.worker_processes import WorkerProcesses
from alf_lite.environments.worker_settings import WorkerSettings
from alf_lite.errors import ConfigError, EnvError

_REPLAYED_AT_ONCE = 256  # steps


class ProcessVectorEnv(VectorEnv):
    """A ``gymnasium.vector.VectorEnv`` in NEXT_STEP mode, one process per environment.

    It gives exactly what ``SerialVectorEnv`` gives for the same seeds. It pays when an
    environment takes longer than about 0.3 ms per step and there are cores for it.

    An environment that raises, dies or hangs is an EnvError that names it; after any
    error all processes are gone and this object is closed. The processes ignore Ctrl-C
    and SIGTERM, end with the parent however that ends, and see no CUDA device.

    Args:
        env_fns: one per environment, picklable. They run in the processes only.
        info_keys: what the infos hold.
        seed: seeds python's and numpy's global generators before the environments are
            built; ``reset`` seeds them again.
        timeout_seconds: for building, for each reset and for each step.

    Raises:
        EnvError: if an environment cannot be built or their spaces differ.
        ConfigError: if an ``env_fn`` cannot be sent to a process.
    """

    returns_fresh_arrays = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        info_keys: InfoKeys | None = None,
        *,
        seed: int | None = None,
        timeout_seconds: float = 300.0,
    ) -> None:
        if os.name != "posix":
            self.closed = True
            raise ConfigError(
                "asynchronous environments need Linux or macOS: use "
                "vectorization_mode='sync'"
            )
        self.num_envs = len(env_fns)
        self._pid = os.getpid()
        self._num_steps = 0
        self._awake: Sequence[int] = range(self.num_envs)  # those that are stepped
        info_keys = InfoKeys() if info_keys is None else info_keys
        self._has_infos = bool(info_keys)
        self._workers = WorkerProcesses(
            self._settings(env_fns, info_keys, seed), timeout_seconds
        )
        try:
            built = [
                reduction.ForkingPickler.loads(reply)
                for reply in self._replies("the constructor")
            ]
            self._set_spaces(built)
            self._share_memory(info_keys)
        except BaseException:
            self._fail()
            raise

    def _settings(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        info_keys: InfoKeys,
        seed: int | None,
    ) -> list[WorkerSettings]:
        dumped = {id(env_fn): dump_factory(env_fn) for env_fn in env_fns}
        seeds: Sequence[int | None] = [None] * self.num_envs
        if seed is not None:
            seeds = environment_seeds(seed, self.num_envs)
        # Linux would kill the children as soon as the thread that starts them ends.
        is_main = threading.current_thread() is threading.main_thread()
        return [
            WorkerSettings(
                env_index=i,
                num_envs=self.num_envs,
                factory=dumped[id(env_fn)],
                info_keys=info_keys.declared,
                seed=seeds[i],
                parent_pid=os.getpid(),
                dies_with_parent=is_main,
            )
            for i, env_fn in enumerate(env_fns)
        ]

    def _set_spaces(self, built: list[BuiltEnv]) -> None:
        single_env.check_same_spaces([one.description for one in built])
        for one in built:
            config_shipping.import_config_use(one.config_use)
        first = built[0].description
        self._workers.name = first.env_id or ""
        self.render_mode = first.render_mode
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.single_reward_space = first.reward_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)

    def _share_memory(self, info_keys: InfoKeys) -> None:
        self._arrays = SharedArrays(
            self.num_envs,
            self.single_observation_space,
            self.single_action_space,
            self.single_reward_space.shape,
            info_keys,
        )
        descriptor = self._arrays.create()
        try:
            self._workers.request(worker_loop.ATTACH)
            for i, pid in enumerate(self._workers.pids):
                reduction.send_handle(self._workers.connection(i), descriptor, pid)
            self._replies("its start")
        finally:
            os.close(descriptor)

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
        seeds: Sequence[int | None]
        if seed is None:
            seeds = [None] * self.num_envs
        elif isinstance(seed, int | np.integer):
            seeds = environment_seeds(int(seed), self.num_envs)
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} seeds, got {len(seeds)}")
        self._check_open()
        self._num_steps = 0
        self._awake = range(self.num_envs)
        self._workers.request_each(
            [
                worker_loop.RESET + bytes(reduction.ForkingPickler.dumps((s, options)))
                for s in seeds
            ]
        )
        self._replies("reset() at step 0")
        return self._arrays.read_observations(), self._read_infos()

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
        self._check_open()
        self._arrays.write_actions(actions)
        self._num_steps += 1
        self._workers.request(worker_loop.STEP, self._awake)
        self._replies(f"step() at step {self._num_steps}", self._awake)
        return self._read_step()

    def _read_step(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict]:
        arrays = self._arrays
        return (
            arrays.read_observations(),
            arrays.rewards.copy(),
            arrays.terminated.copy(),
            arrays.truncated.copy(),
            self._read_infos(),
        )

    def freeze(self, rows: np.ndarray) -> None:
        """Steps these environments no more until :meth:`reset`.

        They keep their observation; there is no reward and no end.

        Args:
            rows: [B] bool.
        """
        self._awake = [i for i in self._awake if not rows[i]]
        arrays = self._arrays
        for array in (arrays.rewards, arrays.terminated, arrays.truncated):
            array[rows] = 0
        for array in arrays.infos.values():
            array[rows] = 0

    def info_names(self) -> list[str]:
        """The keys that the infos of the last step had, declared or not."""
        self._workers.request(worker_loop.INFO_NAMES)
        replies = map(reduction.ForkingPickler.loads, self._replies("its infos"))
        return [name for names in replies for name in names]

    def save_episodes(self) -> list[str]:
        """How the open episodes began, see ``OpenEpisode``."""
        self._check_open()
        self._workers.request(worker_loop.SAVE)
        replies = self._replies("save_episodes()")
        return [reduction.ForkingPickler.loads(reply) for reply in replies]

    def restore_episodes(
        self, episodes: Mapping[int, SavedEpisode], seeds: Sequence[int]
    ) -> tuple[tuple, dict[int, str]]:
        """As that of ``SerialVectorEnv``."""
        self._check_open()
        lengths = [len(saved.actions[0]) for saved in episodes.values()]
        # In pieces, each of which has the time that a step has.
        for first in range(0, max(lengths) + 1, _REPLAYED_AT_ONCE):
            piece = slice(first, first + _REPLAYED_AT_ONCE)
            pieces = {
                i: (
                    None if first else saved.start,
                    [leaf[piece] for leaf in saved.actions],
                )
                for i, saved in episodes.items()
            }
            self._ask(worker_loop.REPLAY, pieces)
        replies = self._ask(worker_loop.END_REPLAY, {i: seeds[i] for i in episodes})
        reasons = {i: reduction.ForkingPickler.loads(replies[i]) for i in episodes}
        return self._read_step(), {i: text for i, text in reasons.items() if text}

    def _ask(self, kind: bytes, contents: Mapping[int, Any]) -> list[bytes]:
        """Sends some processes a request each, and waits for their replies."""
        for i, content in contents.items():
            dumped = bytes(reduction.ForkingPickler.dumps(content))
            self._workers.request(kind + dumped, [i])
        return self._replies("restore_episodes()", list(contents))

    def render(self) -> tuple[Any, ...]:
        """The frames of all environments."""
        self._check_open()
        self._workers.request(worker_loop.RENDER)
        replies = self._replies("render()")
        return tuple(reduction.ForkingPickler.loads(reply) for reply in replies)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments; after two seconds their processes are killed."""
        # A copy of this object in a forked process does not own the environments.
        if os.getpid() == self._pid:
            self._workers.close()

    def _replies(self, call: str, indices: Sequence[int] | None = None) -> list[bytes]:
        try:
            return self._workers.replies(call, indices)
        except BaseException:
            self._fail()
            raise

    def _fail(self) -> None:
        # Also after Ctrl-C: replies of the interrupted call would pass for later ones.
        self._workers.kill()
        self.closed = True

    def _read_infos(self) -> dict[str, np.ndarray]:
        return self._arrays.read_infos() if self._has_infos else {}

    def _check_open(self) -> None:
        if self.closed:
            raise EnvError(
                "these environments are closed: close() was called, or one of them "
                "failed before"
            )
