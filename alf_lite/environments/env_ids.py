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

from alf_lite.errors import ConfigError, missing_extra


class _Suite(NamedTuple):
    """A package that registers environments when its module is imported."""

    ids: str  # a pattern of the whole id
    module: str
    name: str
    extra: str = ""  # of this library; else
    package: str = ""

    def missing(self, what: str, reason: object) -> ConfigError:
        """Says what to install."""
        if self.extra:
            return missing_extra(what, self.extra, reason)
        return ConfigError(
            f"{what} needs {self.name} ({reason}): pip install {self.package}"
        )


_HIGHWAY = "highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping"
_MO = "deep-sea-treasure|resource-gathering|fishwood|breakable-bottles|four-room"
_MO_2 = "fruit-tree|water-reservoir|minecart|mo-[\\w-]+"
_SUITES = (
    _Suite(r"ALE/.+|.+NoFrameskip-v\d", "ale_py", "Atari games", "atari"),
    _Suite(r"(MiniGrid|BabyAI)-.+", "minigrid", "MiniGrid", "minigrid"),
    _Suite(r"dm_control/.+", "shimmy", "dm_control and Shimmy", "dm_control"),
    _Suite(
        r"(Fetch|Hand(Reach|Manipulate)|AntMaze|PointMaze|AdroitHand|FrankaKitchen).*",
        "gymnasium_robotics",
        "gymnasium-robotics",
        "robotics",
    ),
    _Suite(
        rf"({_HIGHWAY}|two-way|u-turn)\b.*-v\d+",
        "highway_env",
        "highway-env",
        "highway",
    ),
    _Suite(rf"({_MO}|{_MO_2})\b.*-v\d+", "mo_gymnasium", "mo-gymnasium", "mo"),
    _Suite(r"Meta-World/.+", "metaworld", "Meta-World", package="metaworld"),
    _Suite(r"Panda[A-Z]\w+-v\d+", "panda_gym", "panda-gym", package="panda-gym"),
    _Suite(r"MiniWorld-.+", "miniworld", "MiniWorld", package="miniworld"),
    _Suite(
        r"FlappyBird-v\d+",
        "flappy_bird_gymnasium",
        "Flappy Bird",
        package="flappy-bird-gymnasium",
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
_IMPORT_ERROR = re.compile(
    "(?:DependencyNotInstalled|ModuleNotFoundError|ImportError): (.*)"
)
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


def missing_package(env_name: str, text: str) -> ConfigError | None:
    """What to raise if a package is missing; None for any other failure.

    Args:
        env_name: of the environment, which may be one of the user's own.
        text: of the failure, with a traceback or without.
    """
    reasons = _IMPORT_ERROR.findall(text)
    if not reasons or "cannot import name" in reasons[-1]:
        return None
    what = env_name or "the environment"
    for pattern, extra in _EXTRAS.items():
        if re.search(pattern, reasons[-1]):
            return missing_extra(what, extra, reasons[-1])
    suite = _suite_of(env_name.rpartition(":")[2])
    return None if suite is None else suite.missing(what, reasons[-1])


def _suite_of(env_id: str) -> _Suite | None:
    return next((s for s in _SUITES if re.fullmatch(s.ids, env_id)), None)


def _import(module: str, env_name: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        for suite in _SUITES:
            if suite.module == module:
                raise suite.missing(f"env_name {env_name!r}", error) from error
        raise ConfigError(
            f"env_name {env_name!r}: the module {module!r} cannot be imported: {error}."
        ) from error


def _import_suite(suite: _Suite, env_id: str) -> None:
    try:
        package = importlib.import_module(suite.module)
    except ImportError as error:
        raise suite.missing(f"env_name {env_id!r}", error) from error
    if suite.module == "ale_py":
        # Before it greets everyone who makes a game.
        package.ALEInterface.setLoggerMode(package.LoggerMode.Error)
        gymnasium.register_envs(package)


def _install(extra: str) -> str:
    return f"pip install 'alf_lite[{extra}]'"


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
    for pattern, extra in _EXTRAS.items():
        if re.search(pattern, env_id):
            return f"{message} Install what it needs with: {_install(extra)}"
    if not versions and _GAME.fullmatch(env_id):
        message += (
            f" An id of EnvPool is found with vectorization_mode='envpool' "
            f"({_install('envpool')}); a game of Atari is called 'ALE/{env_id}'."
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
