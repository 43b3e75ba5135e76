"""Finds environments by their id, and says what to install for those of packages.

Without torch, see space_tree.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from typing import NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec, registry

from alf_lite.errors import ConfigError, exception_text


class _Suite(NamedTuple):
    """A package that registers environments when its module is imported."""

    ids: str  # a pattern of the whole id
    module: str
    name: str
    install: str

    @property
    def hint(self) -> str:
        return f"Install {self.name} with: {self.install}"


def _extra(extra: str) -> str:
    return f"pip install 'alf_lite[{extra}]'"


_HIGHWAY = "highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping"
_MO = "deep-sea-treasure|resource-gathering|fishwood|breakable-bottles|four-room"
_MO_2 = "fruit-tree|water-reservoir|minecart|mo-[\\w-]+"
_SUITES = (
    _Suite(r"ALE/.+|.+NoFrameskip-v\d", "ale_py", "Atari games", _extra("atari")),
    _Suite(r"(MiniGrid|BabyAI)-.+", "minigrid", "MiniGrid", _extra("minigrid")),
    _Suite(r"dm_control/.+", "shimmy", "dm_control and Shimmy", _extra("dm_control")),
    _Suite(
        r"(Fetch|Hand(Reach|Manipulate)|AntMaze|PointMaze|AdroitHand|FrankaKitchen).*",
        "gymnasium_robotics",
        "gymnasium-robotics",
        _extra("robotics"),
    ),
    _Suite(
        rf"({_HIGHWAY}|two-way|u-turn)\b.*-v\d+",
        "highway_env",
        "highway-env",
        _extra("highway"),
    ),
    _Suite(rf"({_MO}|{_MO_2})\b.*-v\d+", "mo_gymnasium", "mo-gymnasium", _extra("mo")),
    _Suite(r"Meta-World/.+", "metaworld", "Meta-World", "pip install metaworld"),
    _Suite(r"Panda[A-Z]\w+-v\d+", "panda_gym", "panda-gym", "pip install panda-gym"),
    _Suite(r"MiniWorld-.+", "miniworld", "MiniWorld", "pip install miniworld"),
    _Suite(
        r"FlappyBird-v\d+",
        "flappy_bird_gymnasium",
        "Flappy Bird",
        "pip install flappy-bird-gymnasium",
    ),
)
# What an id or an import error of an environment that is registered speaks of.
_EXTRAS = {
    r"(?i)mujoco": "mujoco",
    r"[Bb]ox2[Dd]|LunarLander|BipedalWalker|CarRacing": "box2d",
    r"ale_py|atari": "atari",
    r"envpool": "envpool",
    r"pygame": "video",
}
# EnvPool's name of a game is that of Atari without ALE/.
_GAME = re.compile(r"[A-Z]\w+-v5")


def find_spec(env_name: str) -> EnvSpec:
    """The spec registered as ``env_name``, which may be ``module:id``.

    The packages of known suites are imported for their ids.

    Raises:
        ConfigError: suggesting similar ids or what to install.
    """
    module, colon, env_id = env_name.rpartition(":")
    if colon:
        _import(module, env_name)
    elif env_id not in registry:
        suite = _suite_of(env_id)
        if suite is not None:
            _import_suite(suite, env_id)
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise ConfigError(_unknown(env_id)) from error


def install_hint(env_name: str, error: Exception) -> str:
    """What to install if ``error`` says that a package is missing, else ""."""
    text = str(error)
    if not re.search("DependencyNotInstalled|ModuleNotFoundError|ImportError", text):
        return ""
    suite = _suite_of(env_name.rpartition(":")[2])
    return _extra_hint(f"{env_name} {text}") or ("" if suite is None else suite.hint)


def _suite_of(env_id: str) -> _Suite | None:
    return next((s for s in _SUITES if re.fullmatch(s.ids, env_id)), None)


def _import(module: str, env_name: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        hints = [f" {suite.hint}" for suite in _SUITES if suite.module == module]
        raise ConfigError(
            f"env_name {env_name!r}: the module {module!r} cannot be imported: "
            f"{error}.{''.join(hints)}"
        ) from error


def _import_suite(suite: _Suite, env_id: str) -> None:
    try:
        package = importlib.import_module(suite.module)
    except ImportError as error:
        raise ConfigError(
            f"env_name {env_id!r} is of {suite.name}: {exception_text(error)}. "
            f"{suite.hint}"
        ) from error
    if suite.module == "ale_py":
        # Before it greets everyone who makes a game.
        package.ALEInterface.setLoggerMode(package.LoggerMode.Error)
        gymnasium.register_envs(package)


def _extra_hint(text: str) -> str:
    for pattern, extra in _EXTRAS.items():
        if re.search(pattern, text):
            return f"Install what it needs with: {_extra(extra)}"
    return ""


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
    if not versions and _GAME.fullmatch(env_id):
        message += (
            f" An id of EnvPool is found with vectorization_mode='envpool' "
            f"({_extra('envpool')}); a game of Atari is called 'ALE/{env_id}'."
        )
    return (
        f"{message} An environment of another package is found as 'module:id', where "
        "importing the module registers it."
    )


def display_hint() -> str:
    """What to do about MuJoCo where there is no display."""
    if "mujoco" not in sys.modules:
        return ""
    return (
        "MuJoCo draws without a display by EGL or OSMesa: install one of them (apt "
        "install libegl1 libgl1 libosmesa6) and set the environment variable MUJOCO_GL "
        f"to egl or osmesa; it is {os.environ.get('MUJOCO_GL') or 'not set'}."
    )
