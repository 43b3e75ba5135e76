"""Creates batches of environments from an id or from the user's own factory."""

from __future__ import annotations

import ctypes.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import gymnasium
import numpy as np

from alf_lite.config import configurable
from alf_lite.config.bindings import note_used
from alf_lite.environments import batch_creation, env_ids, env_indices, single_env
from alf_lite.environments.env_factory import EnvFactory
from alf_lite.environments.env_pool import EnvPoolVectorEnv
from alf_lite.environments.environment import Environment
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.process_vector_env import ProcessVectorEnv
from alf_lite.environments.serial_vector_env import SerialVectorEnv
from alf_lite.errors import ConfigError, EnvError
from alf_lite.utils.ranks import ranks

_logger = logging.getLogger(__name__)

_MAX_ENVIRONMENTS = 100_000
_TIMEOUT_SECONDS = 300.0

VectorizationMode = Literal["sync", "async", "native", "envpool", "auto"]


class EnvironmentsOfRun(NamedTuple):
    """What the run that environments are for decides, where nobody else does."""

    num_environments: int = 1  # where their number is left out
    num_ranks: int = 1  # of which this is one: it has its share of them
    device: str | None = None  # of environments that are tensors and name none


@configurable
def create_environment(
    env_name: str | Callable[[], Any] = "",
    num_parallel_environments: int | None = None,
    seed: int | None = None,
    *,
    vectorization_mode: VectorizationMode = "sync",
    max_episode_steps: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    env_info_keys: Sequence[str] | Mapping[str, Sequence[int]] = (),
    env_ctor: Callable[[], Any] | None = None,
    env_timeout_seconds: float = _TIMEOUT_SECONDS,
    env_retries: int = 0,
    env_retry_type: Literal["reset", "renew"] = "reset",
    render_mode: str | None = None,
    of_run: EnvironmentsOfRun = EnvironmentsOfRun(),
) -> Environment:
    """Creates a batch of environments.

    Args:
        env_name: an id registered with gymnasium, or ``module:id``, or ``torch/Name``
            for the ``TorchName`` of this library. With ``env_ctor`` only a name for
            messages. A class or function here is the ``env_ctor``.
        num_parallel_environments: B; None for as many as the algorithm is published
            with, else 1. If ``env_ctor`` returns a whole batch, its size rules.
        seed: of the first reset. The global generators of python and numpy are seeded
            in the processes of ``async`` only; in this one they belong to the program.
        vectorization_mode: ``sync``: one after the other in this process, best for fast
            environments. ``async``: a process for each, for those that need more than
            about 0.3 ms per step. ``native``: the environment's own implementation.
            ``envpool``: EnvPool's, for its id ``env_name``. ``auto``: native if there
            is one and nothing forbids it, else sync.
        max_episode_steps: replaces the time limit registered with the id, or a
            ``TimeLimit`` around what ``env_ctor`` returns. 0 for no limit, which
            ``native`` has not; None for that of the environment.
        env_kwargs: for the constructor of the environment, or of EnvPool's pool.
        wrappers: each is called with an environment and returns one.
        env_info_keys: keys of the infos that become ``TimeStep.env_info``: names of
            scalars, or a mapping from names to shapes. A key that need not come in
            every episode is written ``"goal_time?"``; another one that does not come
            until an episode ends is an error.
        env_ctor: called without arguments, it returns a single ``gymnasium.Env`` each
            time, or a whole ``gymnasium.vector.VectorEnv`` or ``Environment`` (not with
            ``async``). If it has a parameter ``render_mode`` or ``env_index``, it is
            given that, or the number of its environment (see ``env_indices``). A class
            that ``takes_num_environments``, such as a ``TorchVectorEnv``, makes as many
            as ``num_parallel_environments``.
        env_timeout_seconds: ``async`` only: an environment that needs longer to be
            built, reset or stepped is an error.
        env_retries: ``sync`` only: how often an environment may raise in ``step`` or
            ``reset`` until an episode of it ends. Its open episode is given up: the
            step before is its last one, truncated, and nothing is learned from the one
            that failed. The next failure is an error, as the first one is with 0.
        env_retry_type: ``reset`` it then, or ``renew``: close it and build another one.
        render_mode: such as ``rgb_array``.
        of_run: what a trainer adds; of a default number, a rank has one at least.

    Returns:
        The environment; close it when done.

    Raises:
        ConfigError: if there is no such environment, the arguments contradict each
            other, or a space has no fixed shape.
        EnvError: if the environment cannot be built.
    """
    env_name, env_ctor = _named_or_made(env_name, env_ctor)
    arguments = dict(locals())
    num_environments = _num_environments(arguments)
    kind = batch_creation.class_of_batches(env_name, env_ctor)
    if kind is not None:
        environment = batch_creation.make_batch(kind, arguments, num_environments)
    else:
        environment = _make_environment(arguments, num_environments)
    environment.created_with = {
        name: value for name, value in arguments.items() if name != "of_run"
    }
    return environment


def _make_environment(
    arguments: Mapping[str, Any], num_environments: int
) -> Environment:
    """The environments of gymnasium that ``create_environment`` was asked for."""
    _prepare_rendering(arguments["render_mode"])
    vector_env = _make_vector_env(arguments, num_environments)
    if isinstance(vector_env, Environment):
        return vector_env
    return GymnasiumEnvironment(
        vector_env,
        seed=arguments["seed"],
        env_info_keys=arguments["env_info_keys"],
        name=arguments["env_name"] or None,
    )


def _make_vector_env(arguments: Mapping[str, Any], num_environments: int) -> Any:
    """The environments of one rank, stepped as ``create_environment`` was told."""
    env_name, mode = arguments["env_name"], arguments["vectorization_mode"]
    is_of_id = arguments["env_ctor"] is None and mode != "envpool"
    factory = EnvFactory(
        spec=env_ids.find_spec(env_name) if is_of_id else None,
        ctor=arguments["env_ctor"],
        kwargs=dict(arguments["env_kwargs"] or {}),
        max_episode_steps=arguments["max_episode_steps"],
        render_mode=arguments["render_mode"],
        wrappers=tuple(arguments["wrappers"]),
    )
    first = env_indices.first_index(num_environments)
    factories = [factory.of_index(first + i) for i in range(num_environments)]
    info_keys = InfoKeys(arguments["env_info_keys"])
    if mode == "auto":
        mode = "sync"
        if has_native(factory) and not arguments["env_retries"]:
            mode = "native"
    try:
        if mode == "async":
            return ProcessVectorEnv(
                factories,
                info_keys,
                seed=arguments["seed"],
                timeout_seconds=arguments["env_timeout_seconds"],
            )
        if mode == "envpool":
            return _make_pool(factory, env_name, num_environments, arguments["seed"])
        if mode == "native":
            return _make_native(factory, num_environments)
        return _make_serial(factories, info_keys, arguments)
    except EnvError as error:
        missing = env_ids.missing_package(env_name, str(error))
        if missing is not None:
            raise missing from error
        raise


def _num_environments(arguments: Mapping[str, Any]) -> int:
    """How many environments there are to be, of one rank.

    Raises:
        ConfigError: if the arguments contradict each other.
    """
    number, of_run = arguments["num_parallel_environments"], arguments["of_run"]
    if number is None:
        number = of_run.num_environments
        note_used(create_environment, {"num_parallel_environments": number})
        number = max(number, of_run.num_ranks)
    _check_arguments(arguments, number)
    if of_run.num_ranks == 1:
        return number
    return ranks.share_of(number, "create_environment.num_parallel_environments")


def _named_or_made(
    env_name: str | Callable[[], Any], env_ctor: Callable[[], Any] | None
) -> tuple[str, Callable[[], Any] | None]:
    """``env_name`` and ``env_ctor``, which may stand in the other's place."""
    if isinstance(env_name, str):
        return env_name, env_ctor
    if callable(env_name) and env_ctor is None:
        return "", env_name
    raise ConfigError(
        "create_environment: env_name must be an id in quotes, or in its place the "
        f"class of an environment, got {env_name!r}"
    )


def _check_arguments(arguments: Mapping[str, Any], num_environments: Any) -> None:
    """Raises ConfigError, if they cannot be had, or not together."""
    mode, env_ctor = arguments["vectorization_mode"], arguments["env_ctor"]
    retries, retry_type = arguments["env_retries"], arguments["env_retry_type"]
    limit = arguments["max_episode_steps"]
    modes, is_native = get_args(VectorizationMode), mode in ("native", "envpool")
    retry_types = ("reset", "renew") if _is_count(retries, 1) else ("reset",)
    timeout = arguments["env_timeout_seconds"]
    # (is broken, text): the first one counts.
    rules = (
        (not arguments["env_name"] and env_ctor is None, "set env_name or env_ctor"),
        (
            env_ctor is not None and not callable(env_ctor),
            f"env_ctor must be callable, got {env_ctor!r}. In a conf write @name, not "
            "@name().",
        ),
        (
            env_ctor is not None and arguments["env_kwargs"],
            "env_kwargs belong to env_name; bind the parameters of env_ctor instead",
        ),
        (
            mode not in modes,
            f"vectorization_mode must be one of {', '.join(modes)}, got {mode!r}",
        ),
        (
            is_native and env_ctor is not None,
            "an env_ctor that returns a VectorEnv needs no vectorization_mode="
            f"{mode!r}; leave it out",
        ),
        (
            not _is_count(num_environments, 1) or num_environments > _MAX_ENVIRONMENTS,
            "num_parallel_environments must be a positive integer, at most "
            f"{_MAX_ENVIRONMENTS:,}, got {num_environments!r}",
        ),
        (
            not _is_count(retries, 0),
            f"env_retries must be 0 or more, got {retries!r}",
        ),
        (
            retry_type not in retry_types,
            "env_retry_type must be 'reset' or, with env_retries, 'renew', got "
            f"{retry_type!r}",
        ),
        (
            _is_count(retries, 1) and mode not in ("sync", "auto"),
            "env_retries is for environments in this process, vectorization_mode="
            f"'sync', not for {mode!r}: leave one of them out",
        ),
        (
            timeout != _TIMEOUT_SECONDS and mode != "async",
            "env_timeout_seconds is for environments in processes, vectorization_mode="
            f"'async', not for {mode!r}: leave it out, got {timeout!r}",
        ),
        (
            limit is not None and not _is_count(limit, 0),
            "max_episode_steps must be a number of steps, 0 for no limit or None for "
            f"that of the environment, got {limit!r}",
        ),
        (
            is_native and isinstance(limit, int) and limit == 0,
            "max_episode_steps = 0 (no limit) cannot be had with vectorization_mode="
            f"{mode!r}, whose limit is its own: give a large number, or use 'sync'",
        ),
    )
    for is_broken, text in rules:
        if is_broken:
            raise ConfigError(f"create_environment: {text}")
    check_wrappers(arguments["wrappers"], "create_environment")


def check_wrappers(wrappers: Any, asks: str) -> None:
    """Raises ConfigError, if they are not a list of what wraps an environment.

    Args:
        wrappers: as given.
        asks: the function that they were given to.
    """
    if not (isinstance(wrappers, Sequence) and all(map(callable, wrappers))):
        raise ConfigError(
            f"{asks}: wrappers must be a list of classes or functions, as in "
            f"wrappers=[FlattenObservation], got {wrappers!r}"
        )


def _is_count(value: Any, least: int) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and value >= least


def _make_serial(
    factories: Sequence[EnvFactory], info_keys: InfoKeys, arguments: Mapping[str, Any]
) -> Any:
    """A SerialVectorEnv, or the batch that the user's own factory returns."""
    factory = factories[0]
    retries: dict[str, Any] = {"num_retries": arguments["env_retries"]}
    if arguments["env_retry_type"] == "renew":
        retries["renew_fns"] = factories
    if factory.ctor is None:
        return SerialVectorEnv(factories, info_keys, **retries)
    try:
        first = factory.call_ctor()
        is_batch = isinstance(first, Environment) or single_env.is_batch(first)
    except single_env.ENV_FAILURES as error:
        single_env.raise_env_error("env_ctor", error)
    if isinstance(first, gymnasium.Env) and not is_batch:
        made: list[Callable[[], gymnasium.Env]] = [lambda: factory.wrap(first)]
        return SerialVectorEnv([*made, *factories[1:]], info_keys, **retries)
    if not is_batch:
        raise ConfigError(
            "env_ctor must return a gymnasium.Env, a gymnasium.vector.VectorEnv or an "
            f"alf_lite Environment, got {single_env.class_name(first)}"
        )
    refusal = _refuse_batch(first, len(factories), arguments)
    if refusal is not None:
        first.close()
        raise ConfigError(refusal)
    return first


def _refuse_batch(
    first: Any, num_environments: int, arguments: Mapping[str, Any]
) -> str | None:
    """Why a batch of the user's is not what was asked for; None if it is."""
    num_ranks = arguments["of_run"].num_ranks
    is_ours = isinstance(first, Environment)
    size = first.batch_size if is_ours else first.num_envs
    is_given = arguments["num_parallel_environments"] is not None
    if is_given and num_environments not in (1, size):
        of_ranks = ""
        if num_ranks > 1:
            of_ranks = f", {num_environments} for each of {num_ranks} ranks"
        return (
            f"env_ctor returned {size} environments, but num_parallel_environments is "
            f"{num_environments * num_ranks}{of_ranks}. Leave it out (for evaluation "
            "it is TrainerConfig.num_eval_environments; alf_lite.evaluate takes "
            "create_environment(env_ctor=...))."
        )
    if num_ranks > 1 and ranks.is_first:
        _logger.info(
            "env_ctor returns %d environments for each of %d ranks, %d in all.",
            size,
            num_ranks,
            size * num_ranks,
        )
    has_limit = arguments["max_episode_steps"] is not None
    if arguments["wrappers"] or has_limit or arguments["env_retries"]:
        return (
            "wrappers, max_episode_steps and env_retries are for single environments, "
            f"but env_ctor returned a batch, {type(first).__name__}. Apply them inside "
            "of env_ctor."
        )
    return None


def has_native(factory: EnvFactory) -> bool:
    """Whether the environment has a vector implementation that does the same."""
    spec = factory.spec
    return (
        spec is not None
        and spec.vector_entry_point is not None
        and factory.max_episode_steps != 0
        and not factory.wrappers
        and not spec.additional_wrappers
    )


def _make_native(factory: EnvFactory, num_environments: int) -> Any:
    spec = factory.spec
    assert spec is not None
    if not has_native(factory):
        reason = (
            "wrappers cannot be applied to it"
            if spec.vector_entry_point is not None
            else "it has none (CartPole-v1 has)"
        )
        raise ConfigError(
            f"vectorization_mode='native' asks for the own vector implementation of "
            f"{spec.id}, but {reason}. Use 'sync', 'async' or 'auto'."
        )
    try:
        return gymnasium.make_vec(
            spec,
            num_envs=num_environments,
            vectorization_mode="vector_entry_point",
            **factory.options,
        )
    except single_env.ENV_FAILURES as error:
        where = f"{spec.id}: the constructor of the vector environment"
        single_env.raise_env_error(where, error)


def _make_pool(
    factory: EnvFactory, env_name: str, num_environments: int, seed: int | None
) -> EnvPoolVectorEnv:
    if factory.wrappers:
        raise ConfigError(
            "create_environment: wrappers are for single environments, but EnvPool's "
            "step as one. Use data transformers, or vectorization_mode='sync'."
        )
    first_seed = 0 if seed is None else single_env.vector_seed(seed)
    return EnvPoolVectorEnv(env_name, num_environments, first_seed, factory.options)


def _prepare_rendering(render_mode: str | None) -> None:
    """Has MuJoCo and pygame draw without a window where there is no display."""
    if render_mode in (None, "human"):
        return
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not sys.platform.startswith("linux") or has_display:
        return
    # pygame looks for a display, and complains, even if it only draws into memory.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    backend = "egl" if ctypes.util.find_library("EGL") else "osmesa"
    if backend == "osmesa" and not ctypes.util.find_library("OSMesa"):
        backend = "egl"
    os.environ.setdefault("MUJOCO_GL", backend)
