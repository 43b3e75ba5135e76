"""Finds registered environments by id, and says what to install or write instead."""

from __future__ import annotations

import difflib
import importlib
import re

import gymnasium
from gymnasium.envs.registration import EnvSpec, registry

from alf_lite.errors import EnvError

# What an id or an import error speaks of -> our extra.
_EXTRAS = {
    r"(?i)mujoco": "mujoco",
    r"[Bb]ox2[Dd]|LunarLander|BipedalWalker|CarRacing": "box2d",
    r"^ALE/|ale_py|atari|NoFrameskip": "atari",
    r"envpool": "envpool",
    r"pygame": "video",
}


def find_spec(env_name: str) -> EnvSpec:
    """The spec registered as ``env_name``, which may be ``module:id``.

    Raises:
        EnvError: suggesting similar ids or the extra to install.
    """
    module, colon, env_id = env_name.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise EnvError(
                f"env_name {env_name!r}: the module {module!r} cannot be imported: "
                f"{error}"
            ) from error
    if env_id.startswith("ALE/") or "NoFrameskip" in env_id:
        _register_atari(env_id)
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise EnvError(_unknown(env_id)) from error


def install_hint(env_name: str, error: Exception) -> str:
    """What to install if ``error`` says that a package is missing, else ""."""
    text = str(error)
    if re.search("DependencyNotInstalled|ModuleNotFoundError|ImportError", text):
        return _extra_hint(f"{env_name} {text}")
    return ""


def _extra_hint(text: str) -> str:
    for pattern, extra in _EXTRAS.items():
        if re.search(pattern, text):
            return f"Install what it needs with: pip install 'alf_lite[{extra}]'"
    return ""


def _register_atari(env_id: str) -> None:
    try:
        import ale_py
    except ImportError as error:
        raise EnvError(
            f"env_name {env_id!r}: Atari environments are not installed. "
            f"{_extra_hint('atari')}"
        ) from error
    # Before it greets everyone who makes a game.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)


def _unknown(env_id: str) -> str:
    lowered = {name.lower(): name for name in registry}
    # A known name with the wrong version comes before similar names.
    stem = re.sub(r"-v\d+$", "", env_id)
    version = re.compile(re.escape(stem) + r"-v\d+")
    versions = sorted(filter(version.fullmatch, registry))
    close = difflib.get_close_matches(env_id.lower(), lowered, n=5, cutoff=0.6)
    found = list(dict.fromkeys([*versions, *(lowered[name] for name in close)]))[:5]
    message = f"there is no environment {env_id!r}."
    if found:
        message += f" Did you mean {', '.join(map(repr, found))}?"
    hint = _extra_hint(env_id)
    if hint:
        return f"{message} {hint}"
    return (
        f"{message} An environment of another package is found as 'module:id', where "
        "importing the module registers it."
    )
