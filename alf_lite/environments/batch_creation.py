"""Creates environments that are a batch by themselves, such as those in torch."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from alf_lite import exports
from alf_lite.environments.environment import Environment
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.utils.devices import check_device, default_device, device_of_run

_PREFIX = "torch/"  # of their ids
_TASKS = "alf_lite.environments.torch_tasks"


def class_of_batches(
    env_name: str, env_ctor: Callable[..., Any] | None
) -> Callable[..., Environment] | None:
    """What makes a batch of any size at once; None if single ones are put together.

    Args:
        env_name: such as ``torch/CartPole``, for ``TorchCartPole``.
        env_ctor: rules, if given.

    Raises:
        ConfigError: if there is no such id, naming those that there are.
    """
    if env_ctor is not None:
        kind: Any = env_ctor
        while isinstance(kind, functools.partial):
            kind = kind.func
        is_class = getattr(kind, "takes_num_environments", False)
        return env_ctor if is_class else None
    if not env_name.startswith(_PREFIX):
        return None
    known = {
        _PREFIX + name.removeprefix("Torch"): name
        for name, module in exports.public_names(__package__).items()
        if module == _TASKS and name.startswith("Torch")
    }
    if env_name not in known:
        raise ConfigError(
            f"there is no environment {env_name!r}.{did_you_mean(env_name, known)} In "
            f"torch there are {', '.join(known)}; one of your own is given as env_ctor."
        )
    return getattr(importlib.import_module(_TASKS), known[env_name])


def make_batch(
    kind: Callable[..., Environment],
    arguments: Mapping[str, Any],
    num_environments: int,
) -> Environment:
    """A batch on the device of the run, unless it names one itself.

    Args:
        kind: from :func:`class_of_batches`.
        arguments: of ``create_environment``.
        num_environments: B.

    Raises:
        ConfigError: if an argument is for other environments.
    """
    name = getattr(kind, "__name__", str(kind))
    mode = arguments["vectorization_mode"]
    if mode in ("async", "envpool"):
        raise ConfigError(
            f"{name} makes all environments at once: leave create_environment."
            f"vectorization_mode out, got {mode!r}"
        )
    for given in ("wrappers", "env_info_keys", "env_retries"):
        if arguments[given]:
            raise ConfigError(
                f"create_environment.{given}: for environments of gymnasium, but "
                f"{name} is a batch of tensors. Leave it out; a data transformer, or "
                "a class derived from it, can do much of what wrappers do."
            )
    options = dict(arguments["env_kwargs"] or {})
    if arguments["max_episode_steps"] is not None:
        options["max_episode_steps"] = int(arguments["max_episode_steps"])
    is_drawn = arguments["render_mode"] is not None
    if is_drawn and "render_mode" in inspect.signature(kind).parameters:
        options["render_mode"] = arguments["render_mode"]
    device = arguments["of_run"].device or default_device()
    check_device(device)
    with device_of_run(device):
        return kind(num_environments, seed=arguments["seed"], **options)
