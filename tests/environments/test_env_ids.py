"""Ids of environments: which are found, and what to install for the others."""

from __future__ import annotations

import sys
import types

import gymnasium
import pytest

from alf_lite.environments.env_ids import find_spec, missing_package
from alf_lite.errors import ConfigError, MissingExtraError


def test_registered_ids_are_found():
    assert find_spec("CartPole-v1").id == "CartPole-v1"


@pytest.mark.parametrize(
    ("env_id", "suggestion"),
    [
        ("CartPole-v7", "'CartPole-v1'"),
        ("cartpole-v1", "'CartPole-v1'"),
        ("CatPole-v1", "'CartPole-v1'"),
        ("HalfCheetah-v0", "'HalfCheetah-v5'"),
        ("LunarLander-v9", "'LunarLander-v3'"),
    ],
)
def test_similar_ids_are_suggested(env_id, suggestion):
    with pytest.raises(ConfigError, match=f"no environment '{env_id}'.*{suggestion}"):
        find_spec(env_id)


def test_without_a_similar_id_the_way_to_other_packages_is_shown():
    with pytest.raises(ConfigError, match="found as 'module:id'"):
        find_spec("Xyzzy")


def test_a_malformed_id_is_an_unknown_one():
    with pytest.raises(ConfigError, match="no environment 'Cart Pole!'"):
        find_spec("Cart Pole!")


def test_a_module_is_imported_first():
    name = "this.__main__"  # imported, prints nothing, registers nothing
    with pytest.raises(ConfigError, match="module 'no_such_module' cannot be imported"):
        find_spec("no_such_module:CartPole-v1")
    assert name not in sys.modules
    assert find_spec("alf_lite.errors:CartPole-v1").id == "CartPole-v1"


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_atari_without_its_package_names_the_extra(env_id, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(gymnasium.registry, env_id, raising=False)  # of an earlier test
    with pytest.raises(ConfigError, match=r"pip install 'alf_lite\[atari\]'"):
        find_spec(env_id)


@pytest.mark.parametrize(
    ("env_id", "text", "extra"),
    [
        ("HalfCheetah-v5", "DependencyNotInstalled: MuJoCo is not installed", "mujoco"),
        ("Ant-v5", "ModuleNotFoundError: No module named 'mujoco'", "mujoco"),
        ("LunarLander-v3", "DependencyNotInstalled: Box2D is not installed", "box2d"),
        ("CartPole-v1", "DependencyNotInstalled: pygame is not installed", "video"),
    ],
)
def test_missing_packages_name_their_extra(env_id, text, extra):
    error = missing_package(env_id, f"the constructor raised\n{text}, see ...")
    assert isinstance(error, MissingExtraError)
    assert str(error).endswith(f": pip install 'alf_lite[{extra}]'")
    assert "see" not in str(error)


def test_other_errors_get_no_advice():
    assert missing_package("Ant-v5", "ValueError: mujoco is angry") is None
    assert missing_package("Mine-v0", "/mujoco/\nImportError: 'simulator'") is None
    text = "ImportError: cannot import name 'x' from 'mujoco' (mujoco.py)"
    assert missing_package("Ant-v5", text) is None


@pytest.mark.parametrize(
    ("env_id", "install"),
    [
        ("MiniGrid-Empty-5x5-v0", "alf_lite[minigrid]"),
        ("BabyAI-GoToRedBall-v0", "alf_lite[minigrid]"),
        ("dm_control/walker-walk-v0", "alf_lite[dm_control]"),
        ("FetchReach-v4", "alf_lite[robotics]"),
        ("AdroitHandDoor-v1", "alf_lite[robotics]"),
        ("highway-fast-v0", "alf_lite[highway]"),
        ("exit-v0", "alf_lite[highway]"),
        ("mo-halfcheetah-v5", "alf_lite[mo]"),
        ("deep-sea-treasure-v0", "alf_lite[mo]"),
        ("Meta-World/MT1", "pip install metaworld"),
        ("PandaReach-v3", "pip install panda-gym"),
        ("Pong-v5", "'ALE/Pong-v5'"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "alf_lite[minigrid]"),
    ],
)
def test_ids_of_known_packages_name_what_to_install(env_id, install, monkeypatch):
    for module in ("minigrid", "shimmy", "gymnasium_robotics", "highway_env"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("mo_gymnasium", "metaworld", "panda_gym"):
        monkeypatch.setitem(sys.modules, module, None)
    # Another test may have imported the package.
    registered = gymnasium.registry
    monkeypatch.delitem(registered, env_id.partition(":")[2] or env_id, raising=False)
    with pytest.raises(ConfigError) as caught:
        find_spec(env_id)
    assert install in str(caught.value)
    assert env_id in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_package_of_a_known_id_is_imported_if_it_is_there(monkeypatch):
    env_id = "MiniGrid-Of-These-Tests-v0"
    monkeypatch.setitem(sys.modules, "minigrid", types.ModuleType("minigrid"))
    with pytest.raises(ConfigError, match="there is no environment"):
        find_spec(env_id)
    gymnasium.register(env_id, "gymnasium.envs.classic_control:CartPoleEnv")
    try:
        monkeypatch.setitem(sys.modules, "minigrid", None)  # not asked for now
        assert find_spec(env_id).id == env_id
    finally:
        del gymnasium.registry[env_id]
