"""Steps single environments and turns what goes wrong into errors that say where.

Without torch, see space_tree.
"""

from __future__ import annotations

import traceback
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

from alf_lite.environments.space_tree import describe
from alf_lite.errors import ConfigError, EnvError

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
    if not env.has_wrapper_attr("reward_space"):
        return spaces.Box(-np.inf, np.inf, (), np.float64)
    space = env.get_wrapper_attr("reward_space")
    if not (isinstance(space, spaces.Box) and len(space.shape) <= 1):
        raise ConfigError(
            f"reward_space: expected a Box of shape () or (D,), got {space}"
        )
    return space


def check_env(env: Any) -> None:
    """Raises ConfigError, if ``env`` is no gymnasium environment."""
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"expected a gymnasium.Env, got {describe(env)} of the class "
            f"{type(env).__module__}.{type(env).__qualname__}. Environments must "
            "subclass gymnasium.Env (not gym.Env)."
        )


def check_same_spaces(spaces: list[tuple[Any, Any]]) -> None:
    """Compares (observation space, action space) of all environments.

    Raises:
        EnvError: naming two environments that disagree, and both spaces.
    """
    for i, pair in enumerate(spaces):
        for which, first, other in zip(
            ("observation", "action"), spaces[0], pair, strict=True
        ):
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
    if isinstance(error, ConfigError):
        raise ConfigError(f"{where}: {error}") from None
    raise EnvError(f"{where} raised {failure_text(error)}") from error


def failure_text(error: BaseException) -> str:
    """Type, message and traceback: where in the user's code it went wrong."""
    try:
        lines = traceback.format_exception(error)
    except Exception:  # the exception's own __str__ raises
        lines = traceback.format_tb(error.__traceback__)
    return f"{exception_text(error)}\n\n{''.join(lines).rstrip()}"


def exception_text(error: BaseException) -> str:
    """``Type: message``, whatever the exception's own ``__str__`` does."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (its message cannot be shown)"
