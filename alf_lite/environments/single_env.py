"""Steps single environments and turns what goes wrong into errors that say where.

Without torch, see space_tree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.environments.space_tree import describe
from alf_lite.errors import ConfigError, DataError, EnvError, failure_text

# What an environment may raise; sys.exit() in one must not end the program quietly.
ENV_FAILURES = (Exception, SystemExit)

_STEP_RULE = (
    "step() must return (observation, reward, terminated, truncated, info). The old "
    "Gym API with one done flag is not supported: port the environment to gymnasium, "
    "or wrap it with shimmy."
)
_RESET_RULE = (
    "reset(seed=..., options=...) must return (observation, info) with a dict as info, "
    "as gymnasium.Env says."
)


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


def reset_env(env: gymnasium.Env, seed: int | None, options: Any = None) -> tuple:
    """(observation, info) of a reset.

    Raises:
        EnvError: if it is not what the gymnasium API promises.
    """
    result = env.reset(seed=seed, options=options)
    if not (
        isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    ):
        raise EnvError(f"reset() returned {describe(result)}. {_RESET_RULE}")
    return result


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


def missing_value(error: BaseException) -> str | None:
    """What to say if the error is that no conf gave a parameter its value."""
    if "gin" not in sys.modules:  # a process of an environment may do without
        return None

    from alf_lite.config import errors as config_errors

    try:
        return config_errors.missing_value(error)
    except Exception:  # its own __str__ raises
        return None
