"""Single environments that step at the same time, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import reduction
from typing import Any

import gymnasium
import numpy as np

from alf_lite.config import shipping as config_shipping
from alf_lite.environments import env_server, single_env
from alf_lite.environments.env_factory import dump_factory
from alf_lite.environments.env_server import BuiltEnv, EnvSettings, SharedSteps
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.single_env import BatchOfSingleEnvs, OwnStep, SavedEpisode
from alf_lite.errors import ConfigError, EnvError
from alf_lite.processes.child_main import error_of
from alf_lite.processes.child_process import (
    ChildDiedError,
    ChildGroup,
    ChildProcess,
    ChildSilentError,
)

_REPLAYED_AT_ONCE = 256  # steps


class ProcessVectorEnv(BatchOfSingleEnvs):
    """Steps its environments at the same time, in one process each.

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
        super().__init__(len(env_fns), info_keys)
        self._pid = os.getpid()
        self._awake: Sequence[int] = range(self.num_envs)  # those that are stepped
        self._timeout_seconds = timeout_seconds
        self._processes = ChildGroup(
            env_server.serve, name="environment", method="spawn", is_daemon=True
        )
        try:
            self._start(env_fns, seed)
            built: list[BuiltEnv] = list(map(_load, self._replies("the constructor")))
            for one in built:
                config_shipping.import_config_use(one.config_use)
            self._set_spaces([one.description for one in built])
            self._share_memory()
        except BaseException:
            self._fail()
            raise

    def _start(
        self, env_fns: Sequence[Callable[[], gymnasium.Env]], seed: int | None
    ) -> None:
        dumped = {id(env_fn): dump_factory(env_fn) for env_fn in env_fns}
        seeds = single_env.seeds_of_reset(seed, self.num_envs)
        for i, env_fn in enumerate(env_fns):
            settings = EnvSettings(
                env_index=i,
                num_envs=self.num_envs,
                factory=dumped[id(env_fn)],
                info_keys=self._info_keys.declared,
                seed=seeds[i],
            )
            self._processes.start(settings, i)

    def _share_memory(self) -> None:
        self._steps = SharedSteps(
            self.num_envs,
            self.single_observation_space,
            self.single_action_space,
            self.single_reward_space.shape,
            self._info_keys,
        )
        descriptor = self._steps.create()
        try:
            self._request(env_server.ATTACH)
            for process in self._processes.children:
                process.send_descriptor(descriptor)
            self._replies("its start")
        finally:
            os.close(descriptor)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        seeds = single_env.seeds_of_reset(seed, self.num_envs)
        self._check_open()
        self._num_steps = 0
        self._awake = range(self.num_envs)
        self._ask(
            env_server.RESET,
            {i: (one, options) for i, one in enumerate(seeds)},
            "reset() at step 0",
        )
        return self._steps.read_observations(), self._steps.read_infos()

    def take_step(self, actions: Any) -> OwnStep:
        self._check_open()
        self._steps.write_actions(actions)
        self._num_steps += 1
        self._request(env_server.STEP, self._awake)
        self._replies(f"step() at step {self._num_steps}", self._awake)
        observations, rewards, terminated, truncated, infos = self._read_step()
        is_end = terminated.any() or truncated.any()
        return observations, rewards, (terminated, truncated) if is_end else None, infos

    def _read_step(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict]:
        steps = self._steps
        return (
            steps.read_observations(),
            steps.rewards.copy(),
            steps.terminated.copy(),
            steps.truncated.copy(),
            self._steps.read_infos(),
        )

    def freeze(self, rows: np.ndarray) -> None:
        self._awake = [i for i in self._awake if not rows[i]]
        steps = self._steps
        for array in (steps.rewards, steps.terminated, steps.truncated):
            array[rows] = 0
        for array in steps.infos.values():
            array[rows] = 0

    def set_attribute(self, name: str, value: Any) -> None:
        self._check_open()
        arguments = dict.fromkeys(range(self.num_envs), (name, value))
        self._ask(env_server.SET_ATTRIBUTE, arguments, f"set_attribute({name!r})")

    def info_names(self) -> list[str]:
        answers = self._answers(env_server.INFO_NAMES, "its infos")
        return [name for names in answers for name in names]

    def save_episodes(self) -> list[str]:
        return self._answers(env_server.SAVE, "save_episodes()")

    def restore_episodes(
        self, episodes: Mapping[int, SavedEpisode], seeds: Sequence[int]
    ) -> tuple[tuple, dict[int, str]]:
        self._check_open()
        call = "restore_episodes()"
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
            self._ask(env_server.REPLAY, pieces, call)
        seed_of = {i: (seeds[i],) for i in episodes}
        replies = self._ask(env_server.END_REPLAY, seed_of, call)
        reasons = {i: _load(replies[i]) for i in episodes}
        return self._read_step(), {i: text for i, text in reasons.items() if text}

    def render(self) -> tuple[Any, ...]:
        """The frames of all environments."""
        return tuple(self._answers(env_server.RENDER, "render()"))

    def render_rows(self, rows: Sequence[int]) -> list[Any]:
        self._check_open()
        self._request(env_server.RENDER, rows)
        replies = self._replies("render()", rows)
        return [_load(replies[row]) for row in rows]

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the environments; after two seconds their processes are killed."""
        # A copy of this object in a forked process does not own the environments.
        if os.getpid() == self._pid:
            self._processes.close()

    def _request(self, kind: bytes, indices: Iterable[int] | None = None) -> None:
        """Asks all environments, or some, for something that needs no arguments."""
        for i in range(self.num_envs) if indices is None else indices:
            self._processes.children[i].send(kind)

    def _answers(self, kind: bytes, call: str) -> list[Any]:
        """What all environments answer to a request that needs no arguments."""
        self._check_open()
        self._request(kind)
        return list(map(_load, self._replies(call)))

    def _ask(
        self, kind: bytes, arguments: Mapping[int, tuple], call: str
    ) -> list[bytes]:
        """Sends some environments a request each, and waits for their replies."""
        for i, its_arguments in arguments.items():
            dumped = bytes(reduction.ForkingPickler.dumps(its_arguments))
            self._processes.children[i].send(kind + dumped)
        return self._replies(call, list(arguments))

    def _replies(self, call: str, indices: Sequence[int] | None = None) -> list[bytes]:
        """Waits for one reply of each environment, or of some.

        Args:
            call: what they do meanwhile, for messages.
            indices: who was sent a request; None for all.

        Raises:
            EnvError: naming the environment that raised, died or did not answer in
                time. All processes are gone then.
            ConfigError: if an environment cannot be built from what was given.
        """
        replies = [b""] * self.num_envs
        waiting = range(self.num_envs) if indices is None else indices
        try:
            for i, reply in self._processes.receive(waiting, self._timeout_seconds):
                if reply:
                    where = self._child(self._processes.children[i], call)
                    if failure := error_of(reply, where, EnvError):
                        raise failure
                    replies[i] = reply
        except ChildDiedError as error:
            self._fail()
            where = self._child(error.child, call)
            raise EnvError(f"{where}: {error}") from None
        except ChildSilentError as error:
            self._fail()
            raise EnvError(
                f"{self._child(error.child, call)}: no answer for "
                f"{self._timeout_seconds:g} s, so it was killed. If it needs longer, "
                f"raise env_timeout_seconds.{error}"
            ) from None
        except BaseException:
            self._fail()
            raise
        return replies

    def _child(self, process: ChildProcess, call: str) -> str:
        return self._where(process.index, call, f", process {process.pid}")

    def _fail(self) -> None:
        # Also after Ctrl-C: replies of the interrupted call would pass for later ones.
        self._processes.kill()
        self.closed = True


def _load(reply: bytes) -> Any:
    return reduction.ForkingPickler.loads(reply)
