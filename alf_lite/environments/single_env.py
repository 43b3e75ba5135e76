"""Single environments, and what this library's own batches of them have in common.

What goes wrong in one becomes an error that says where. Without torch, see space_tree.
"""

from __future__ import annotations

import abc
import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.space_tree import describe
from alf_lite.errors import ConfigError, DataError, EnvError, failure_text

# What an environment may raise; sys.exit() in one must not end the program quietly.
ENV_FAILURES = (Exception, SystemExit)

# Some environments pass their seed on to a signed 32-bit integer.
_NUM_SEEDS = 2**31
_STEP_RULE = (
    "step() must return (observation, reward, terminated, truncated, info). The old "
    "Gym API with one done flag is not supported: port the environment to gymnasium, "
    "or wrap it with shimmy."
)
_RESET_RULE = (
    "reset(seed=..., options=...) must return (observation, info) with a dict as info, "
    "as gymnasium.Env says."
)


# [B] each: which episodes were terminated, and which were truncated.
Ends = tuple[np.ndarray, np.ndarray]
# Observations, rewards, the ends (None if no episode has ended) and infos. The reward
# of a single environment may be a number, which is below LARGEST_REWARD then.
OwnStep = tuple[Any, np.ndarray | float, Ends | None, dict[str, Any]]
LARGEST_REWARD = 1e38  # that fits into float32


class SavedEpisode(NamedTuple):
    """An episode to bring back in one environment."""

    start: str  # see ``OpenEpisode.save``
    actions: list[np.ndarray]  # [N, ...] for each leaf of the action space


class EnvDescription(NamedTuple):
    """What a vector environment must know of each of its environments."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_space: spaces.Box
    metadata: dict[str, Any]
    render_mode: str | None
    env_id: str | None


def describe_env(env: Any) -> EnvDescription:
    """What ``env`` says about itself.

    Raises:
        ConfigError: if it is no single environment of gymnasium, or a space is missing
            or of a kind that is not supported.
        EnvError: if one of its attributes raises.
    """
    check_env(env)
    return EnvDescription(
        _space(env, "observation_space"),
        _space(env, "action_space"),
        reward_space(env),
        _attribute("metadata", lambda: dict(env.metadata or {})),
        _attribute("render_mode", lambda: env.render_mode),
        _attribute("spec", lambda: getattr(env.spec, "id", None)),
    )


def is_batch(env: Any) -> bool:
    """Whether ``env`` is a whole batch in the style of gymnasium.

    EnvPool's and others are a ``gymnasium.Env``, too.
    """
    return hasattr(env, "num_envs") and hasattr(env, "single_observation_space")


def refuse_reset(result: Any) -> NoReturn:
    """Raises EnvError: ``result`` is not what ``reset`` must return."""
    raise EnvError(f"reset() returned {describe(result)}. {_RESET_RULE}")


def check_step_result(result: Any) -> None:
    """Raises EnvError, if ``result`` is not what ``step`` must return."""
    if not (isinstance(result, tuple | list) and len(result) == 5):
        raise EnvError(f"step() returned {describe(result)}. {_STEP_RULE}")


def check_info(info: Any) -> None:
    """Raises EnvError, if ``info`` is not a dict."""
    if not isinstance(info, dict):
        raise EnvError(f"the info is {describe(info)}, expected a dict. {_STEP_RULE}")


def reward_space(env: gymnasium.Env) -> spaces.Box:
    """The space of one reward: a scalar, unless the environment has ``reward_space``.

    Raises:
        ConfigError: if it is not a Box of at most one dimension.
    """
    if not _attribute("reward_space", lambda: env.has_wrapper_attr("reward_space")):
        return spaces.Box(-np.inf, np.inf, (), np.float64)
    space = _attribute("reward_space", lambda: env.get_wrapper_attr("reward_space"))
    if not (isinstance(space, spaces.Box) and len(space.shape) <= 1):
        raise ConfigError(
            f"reward_space: expected a Box of shape () or (D,), got {space}"
        )
    return space


def check_env(env: Any) -> None:
    """Raises ConfigError, if ``env`` is no single environment of gymnasium."""
    if is_batch(env):
        raise ConfigError(
            f"expected one environment, got a batch ({class_name(env)}). A batch "
            "is made by an env_ctor with vectorization_mode='sync', and nothing is "
            "wrapped around it."
        )
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"expected a gymnasium.Env, got {describe(env)} of the class "
            f"{class_name(env)}. Environments must subclass gymnasium.Env (not "
            "gym.Env)."
        )


def class_name(value: Any) -> str:
    """The full name of the class of ``value``."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _space(env: gymnasium.Env, name: str) -> gymnasium.Space:
    try:
        space = getattr(env, name)
    except AttributeError as error:
        # A property that fails inside says so itself; a wrapper passes it on.
        raise ConfigError(
            f"the environment has no {name} ({error}). Set self.{name} to a space of "
            "gymnasium in its constructor."
        ) from error
    except Exception as error:
        raise EnvError(f"its {name} raised {failure_text(error)}") from error
    check_space(space, name)
    return space


def check_space(space: Any, name: str) -> None:
    """Raises ConfigError, if ``space`` is not one of gymnasium's."""
    if not isinstance(space, gymnasium.Space):
        raise ConfigError(
            f"{name}: expected a space of gymnasium, got {describe(space)} of the "
            f"class {class_name(space)}. The spaces of the old gym are not supported."
        )


def _attribute(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        raise EnvError(f"its {name} raised {failure_text(error)}") from error


def check_same_spaces(environments: Sequence[EnvDescription]) -> None:
    """Compares the spaces of all environments of a batch.

    Raises:
        EnvError: naming two environments that disagree, and both spaces.
    """
    for i, env in enumerate(environments):
        for which in ("observation", "action"):
            first = getattr(environments[0], f"{which}_space")
            other = getattr(env, f"{which}_space")
            if other != first:
                raise EnvError(
                    f"the environments disagree on the {which} space: environment 0 "
                    f"has {first}, environment {i} has {other}. All environments of a "
                    "batch must have the same spaces."
                )


def raise_env_error(where: str, error: BaseException) -> NoReturn:
    """Raises EnvError for ``error``, which ``where`` (environment, call) caused.

    Our own errors keep their text; anything else becomes the cause.
    """
    if isinstance(error, EnvError):
        raise EnvError(f"{where}: {error}") from None
    missing = missing_value(error)
    if missing is not None:
        raise ConfigError(f"{where}: {missing}") from error
    if isinstance(error, (ConfigError, DataError)):
        raise type(error)(f"{where}: {error}") from error
    raise EnvError(f"{where} raised {failure_text(error)}") from error


def step_closed(action: Any) -> NoReturn:
    """The step of an environment that is closed."""
    raise EnvError(
        "these environments are closed: close() was called, as a training does at its "
        "end, or one of them failed before. Make new ones."
    )


def missing_value(error: BaseException) -> str | None:
    """What to say if the error is that no conf gave a parameter its value."""
    if "gin" not in sys.modules:  # a process of an environment may do without
        return None

    from alf_lite.config import errors as config_errors

    try:
        return config_errors.missing_value(error)
    except Exception:  # its own __str__ raises
        return None


class BatchOfSingleEnvs(VectorEnv, abc.ABC):
    """A ``gymnasium.vector.VectorEnv`` in NEXT_STEP mode over single environments.

    It differs from gymnasium's ``SyncVectorEnv`` in that (1) nothing an environment
    returns is broadcast or rounded, an error names the environment instead, (2) the
    infos hold the declared keys only, (3) ``reset(seed)`` gives the environments seeds
    that have nothing in common with those of ``reset(seed + 1)``, (4) rewards may have
    several parts: an environment with a ``reward_space`` (a Box) returns arrays,
    (5) episodes can be brought back, see ``open_episodes``.

    ``reset(seed, options)`` returns observations [B, ...] and infos; an int seeds each
    environment differently. ``step(actions)`` takes [B, ...] arrays, an element of
    ``action_space``, and returns observations [B, ...], rewards [B] or [B, D] float64,
    terminated and truncated [B], and infos; environments that ended before are reset
    instead. All arrays returned are the caller's.

    Args:
        num_envs: B.
        info_keys: what the infos hold.
    """

    # [B] bool: where the last step has begun a new episode though none had ended,
    # because the environment had failed; None: nowhere.
    restarted: np.ndarray | None = None
    num_restarts = 0  # of all steps and resets so far

    def __init__(self, num_envs: int, info_keys: InfoKeys | None) -> None:
        self.num_envs = num_envs
        self._info_keys = InfoKeys() if info_keys is None else info_keys
        self._num_steps = 0
        self._env_id: str | None = None

    def _set_spaces(self, descriptions: Sequence[EnvDescription]) -> None:
        """Takes over what the environments say, which must agree.

        Raises:
            EnvError: naming two environments that do not.
        """
        check_same_spaces(descriptions)
        env = descriptions[0]
        self._env_id = env.env_id
        self.render_mode = env.render_mode
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.single_reward_space = env.reward_space
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)

    def _where(self, index: int, call: str, process: str = "") -> str:
        """How messages call an environment that does something."""
        name = f" ({self._env_id})" if self._env_id else ""
        return f"environment {index}{name}{process}, {call}"

    def _check_open(self) -> None:
        if self.closed:
            step_closed(None)

    def step(
        self, actions: Any
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict]:
        observations, rewards, ends, infos = self.take_step(actions)
        if ends is None:
            ends = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        return copy.deepcopy(observations), np.array(rewards, ndmin=1), *ends, infos

    @abc.abstractmethod
    def take_step(self, actions: Any) -> OwnStep:
        """``step``, without flags at all as long as no episode ends.

        The observations may be in memory that belongs to the environments.
        """

    @abc.abstractmethod
    def freeze(self, rows: np.ndarray) -> None:
        """Steps these environments no more until ``reset``.

        They keep their observation; there is no reward and no end.

        Args:
            rows: [B] bool.
        """

    @abc.abstractmethod
    def set_attribute(self, name: str, value: Any) -> None:
        """See :func:`set_env_attribute`, for every environment."""

    @abc.abstractmethod
    def render_rows(self, rows: Sequence[int]) -> list[Any]:
        """The frames of some environments."""

    @abc.abstractmethod
    def info_names(self) -> list[str]:
        """The keys that the infos of the last step had, declared or not."""

    @abc.abstractmethod
    def save_episodes(self) -> list[str]:
        """How the open episodes began, see ``OpenEpisode``."""

    @abc.abstractmethod
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


def set_env_attribute(env: gymnasium.Env, name: str, value: Any) -> None:
    """Sets an attribute of an environment, or calls its method of that name.

    Raises:
        EnvError: if there is none.
    """
    if not env.has_wrapper_attr(name):
        raise EnvError(f"{env.unwrapped} has no attribute {name} that could be set")
    if callable(found := env.get_wrapper_attr(name)):
        found(value)
    else:
        env.set_wrapper_attr(name, value)


# Seeds that are far apart for every environment of every run


def vector_seed(seed: int) -> int:
    """One seed for a whole batch of environments.

    Vector environments commonly give seed + i to environment i, so that the runs with
    the seeds 0 and 1 would share all environments but one.

    Raises:
        ValueError: if ``seed`` is negative.
    """
    return environment_seeds(seed, 1)[0]


def environment_seeds(seed: int, num_environments: int) -> list[int]:
    """A seed for each environment; those of different ``seed`` have nothing in common.

    The seed of environment i does not depend on ``num_environments``.

    Raises:
        ValueError: if ``seed`` is negative.
    """
    if seed < 0:
        raise ValueError(f"expected a seed >= 0, got {seed}")
    sequences = (
        np.random.SeedSequence(entropy=seed, spawn_key=(i,))
        for i in range(num_environments)
    )
    return [int(s.generate_state(1, np.uint64)[0]) % _NUM_SEEDS for s in sequences]


def seeds_of_reset(
    seed: int | Sequence[int | None] | None, num_environments: int
) -> Sequence[int | None]:
    """A seed for each environment, from what ``VectorEnv.reset`` is given.

    Raises:
        ValueError: if there are more or fewer.
    """
    if seed is None:
        return [None] * num_environments
    if isinstance(seed, int | np.integer):
        return environment_seeds(int(seed), num_environments)
    if len(seed) != num_environments:
        raise ValueError(f"expected {num_environments} seeds, got {len(seed)}")
    return seed
