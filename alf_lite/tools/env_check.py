"""Checks an environment before it is trained in: what is wrong, and what it costs.

>>> print(alf_lite.check_env("CartPole-v1"))
>>> print(alf_lite.check_env(MyEnv, size=5))
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.utils import env_checker

from alf_lite.environments import env_factory, env_ids
from alf_lite.environments.batch_creation import class_of_batches
from alf_lite.environments.creation import (
    check_wrappers,
    create_environment,
    has_native,
)
from alf_lite.environments.env_factory import EnvFactory
from alf_lite.environments.environment import Environment
from alf_lite.environments.open_episodes import untouched_globals
from alf_lite.environments.single_env import ENV_FAILURES, describe_env
from alf_lite.errors import (
    AlfLiteError,
    ConfigError,
    MissingExtraError,
    exception_text,
)
from alf_lite.tools.env_report import EnvReport, advise
from alf_lite.tools.env_trials import (
    NUM_STEPS,
    SEED,
    SeenSteps,
    endless_steps,
    is_same,
    mask_of,
    sample_actions,
    single_mask,
    trajectory,
)
from alf_lite.tools.several_runs import num_cores

Nest = Any
_NUM_SYNC = 8
_MAX_PROCESSES = 4
# Of gymnasium's checker: what this library takes care of, or is said otherwise.
_NOT_SAID = re.compile(
    "symmetric and normalized|different from the unwrapped|render|"
    "precision lowered by casting|probably too (low|high)"
)
_NATIVE = (
    "it has a vector implementation of its own: create_environment.vectorization_mode "
    "= 'native'"
)
_COLOR = re.compile(r"\x1b\[\d*m")


def check_env(
    env: str | Callable[..., gymnasium.Env],
    *,
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    max_episode_steps: int | None = None,
    seconds: float = 1.0,
    **kwargs: Any,
) -> EnvReport:
    """Looks for what would stop or spoil a training, and measures what a step costs.

    gymnasium's checker, then what this library wants of an environment: that its
    observations, rewards and ends are as its spaces say and finite, that a seed fixes
    all that it does, that a mask allows something, that processes can have it.

    Args:
        env: an id registered with gymnasium, or a class or function that returns a
            ``gymnasium.Env``.
        wrappers: see ``create_environment``.
        max_episode_steps: see there.
        seconds: how long each speed is measured; 0 for none.
        **kwargs: for the constructor.

    Returns:
        The report; ``print`` shows it, ``is_usable`` says whether nothing is wrong.

    Raises:
        ConfigError: if ``env`` is neither, there is no environment of that id, its
            package is missing, or ``wrappers`` is no list.
    """
    check_wrappers(wrappers, "check_env")
    named = env if isinstance(env, str) else ""
    if class_of_batches(named, None if isinstance(env, str) else env):
        raise ConfigError(
            f"check_env looks at environments of gymnasium, but {env} is a batch of "
            "tensors, which checks itself in its first steps. Your own should pass "
            "alf_lite.testing.environment_contract.EnvironmentContract"
        )
    if isinstance(env, str):
        arguments: dict[str, Any] = {"env_name": env, "env_kwargs": kwargs}
        factory = EnvFactory(spec=env_ids.find_spec(env), kwargs=kwargs)
        name = env
    elif callable(env):
        ctor = functools.partial(env, **kwargs) if kwargs else env
        arguments = {"env_ctor": ctor}
        factory = EnvFactory(ctor=ctor)
        name = getattr(env, "__qualname__", str(env))
    else:
        raise ConfigError(
            "check_env builds several environments: give the id, or the class or "
            f"function that makes one, not {type(env).__name__}"
        )
    factory = dataclasses.replace(
        factory, wrappers=tuple(wrappers), max_episode_steps=max_episode_steps
    )
    arguments["wrappers"] = factory.wrappers
    arguments["max_episode_steps"] = max_episode_steps
    check = _Check(name, factory, arguments, seconds)
    with untouched_globals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check.run()
    return check.report


class _Check:
    """One check; each step adds to what is found."""

    def __init__(
        self,
        name: str,
        factory: EnvFactory,
        arguments: Mapping[str, Any],
        seconds: float,
    ) -> None:
        self._factory = factory
        self._arguments = arguments
        self._seconds = seconds
        self._problems: list[str] = []
        self._warnings: list[str] = []
        self._has_time_limit = self._is_masked = self._leaves_bounds = False
        self._info: dict[str, Any] = {}
        self.report = EnvReport(name, self._problems, self._warnings)

    def run(self) -> None:
        """Checks all that can be checked."""
        for step in (
            self._single,
            self._batch,
            self._trajectories,
            self._gymnasium_check,
            self._measure,
        ):
            # What is found says more than what would follow from it.
            if not self._problems:
                with self._noted():
                    step()

    def _problem(self, text: str) -> None:
        if text not in self._problems:
            self._problems.append(text)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """What fails in the block is a problem; a missing package is none of it."""
        try:
            yield
        except ENV_FAILURES as error:
            is_ours = isinstance(error, AlfLiteError)
            text = str(error) if is_ours else exception_text(error)
            missing = env_ids.missing_package(self.report.name, text)
            if missing is not None:
                raise missing from error
            if isinstance(error, MissingExtraError):
                raise
            self._problem(text)

    # One environment

    def _single(self) -> None:
        """Whether it can be built, and what there is to know for all other steps."""
        env = self._factory()
        try:
            describe_env(env)
            self._is_masked = single_mask(*env.reset(seed=SEED)) is not None
            self._has_time_limit = bool(env.spec and env.spec.max_episode_steps)
            self._has_time_limit |= _wraps(env, gymnasium.wrappers.TimeLimit)
        finally:
            env.close()

    def _gymnasium_check(self) -> None:
        if self._is_masked:
            return  # it would take actions that are not allowed
        env = self._factory()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                env_checker.check_env(
                    env.unwrapped, skip_render_check=True, skip_close_check=True
                )
        except ENV_FAILURES as error:
            text = " ".join(str(error).split()) or exception_text(error)
            # That is said already.
            if not (self._leaves_bounds and "not within the observation" in text):
                self._problem(f"gymnasium's checker: {text}")
        finally:
            _close(env)
        for warning in caught:
            text = _COLOR.sub("", str(warning.message)).removeprefix("WARN: ")
            if not _NOT_SAID.search(text) and text not in self._warnings:
                self._warnings.append(text)

    def _trajectories(self) -> None:
        """Whether a seed says all that happens, and a reset forgets what was."""
        runs = []
        for global_seed in (0, 1):
            env = self._factory()
            try:
                _seed_globals(global_seed)
                runs.append(trajectory(env, SEED, self._info))
                if global_seed == 0:
                    again = trajectory(env, SEED)
                    other = trajectory(env, SEED + 1)
            finally:
                _close(env)
        if not is_same(runs[0], runs[1]):
            _seed_globals(0)
            env = self._factory()
            repeated = trajectory(env, SEED)
            _close(env)
            if is_same(runs[0], repeated):
                self._problem(
                    "a seed does not fix what it does: it draws from the global "
                    "generators of numpy or Python. Use self.np_random, which "
                    "super().reset(seed=seed) sets."
                )
            else:
                self._problem(
                    "a seed does not fix what it does: two environments that were "
                    "reset with the same seed and took the same actions differ. Draw "
                    "all random numbers from self.np_random."
                )
        elif not is_same(runs[0], again):
            self._problem(
                "reset(seed=...) does not start all over: the same seed and actions "
                "gave another episode in an environment that had been used. Set all "
                "that an episode changes in reset()."
            )
        elif is_same(runs[0], other):
            self._warnings.append(
                "two seeds give the same episode: without randomness, what is learned "
                "may be one path by heart"
            )

    # Batches of them

    def _batch(self) -> None:
        """What two of them look like to an algorithm."""
        env = self._create(2)
        try:
            seen = SeenSteps(env)
            time_step = env.reset()
            for t in range(NUM_STEPS):
                seen.add(time_step)
                time_step = env.step(sample_actions(env, time_step.observation, t))
        finally:
            env.close()
        for text in seen.problems:
            self._problem(text)
        leaves = seen.leaves()
        for leaf in leaves:
            if leaf.is_outside:
                self._leaves_bounds = True
                self._warnings.append(
                    f"{leaf.path} is {leaf.shown}, which leaves the bounds of its "
                    f"space, {leaf.bounds}"
                )
        self.report = self.report._replace(
            leaves=leaves,
            bytes_per_step=seen.bytes_per_step,
            episodes=seen.episodes(),
        )

    def _measure(self) -> None:
        """What a step costs; whether processes can have it."""
        speeds: dict[str, float] = {}
        if self._seconds:
            speeds["one environment, without this library"] = self._single_speed()
            speeds[f"sync, {_NUM_SYNC} in this process"] = self._speed(_NUM_SYNC)
        try:
            env_factory.dump_factory(self._factory)
            if self._seconds:
                count = max(2, min(num_cores(), _MAX_PROCESSES))
                speed = self._speed(count, vectorization_mode="async")
                speeds[f"async, {count} processes"] = speed
        except (AlfLiteError, OSError) as error:
            self._warnings.append(f"it cannot be stepped in processes: {error}")
        report, episodes = self.report, self.report.episodes
        assert episodes is not None
        advice = advise(
            report.leaves, episodes, speeds, self._has_time_limit, self._info
        )
        self.report = report._replace(
            advice=[*[_NATIVE] * has_native(self._factory), *advice],
            steps_per_second=speeds,
        )

    def _create(self, count: int, **settings: Any) -> Environment:
        return create_environment(
            **self._arguments, num_parallel_environments=count, seed=SEED, **settings
        )

    def _single_speed(self) -> float:
        env = self._factory()
        try:
            steps = endless_steps(env, SEED)
            begin, count, elapsed = time.perf_counter(), 0, -1.0
            while elapsed < self._seconds:
                count += sum(1 for _ in itertools.islice(steps, 16))
                elapsed = time.perf_counter() - begin
        finally:
            _close(env)
        return count / elapsed

    def _speed(self, count: int, **settings: Any) -> float:
        """Steps per second of all of them together."""
        env = self._create(count, **settings)
        try:
            time_step = env.reset()
            actions = [sample_actions(env, time_step.observation, t) for t in range(16)]
            is_masked = mask_of(time_step.observation) is not None
            begin, steps, elapsed = time.perf_counter(), 0, -1.0
            while elapsed < self._seconds:
                action = actions[steps % 16]
                if is_masked:
                    action = sample_actions(env, time_step.observation, steps)
                time_step = env.step(action)
                steps += 1
                elapsed = time.perf_counter() - begin
        finally:
            env.close()
        return steps * count / elapsed


def _seed_globals(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - environments use it
    torch.manual_seed(seed)


def _close(env: gymnasium.Env) -> None:
    try:
        env.close()
        env.close()
    except ENV_FAILURES as error:
        raise ConfigError(
            f"close() raised {exception_text(error)}; it may be called twice"
        ) from error


def _wraps(env: Any, kind: type) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, kind):
            return True
        env = env.env
    return False
