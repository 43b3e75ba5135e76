"""Unknown ids come with suggestions, missing packages with the extra to install."""

from __future__ import annotations

import sys

import pytest

from alf_lite.environments.environment_ids import find_spec, install_hint
from alf_lite.errors import EnvError


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
    with pytest.raises(EnvError, match=f"no environment '{env_id}'.*{suggestion}"):
        find_spec(env_id)


def test_without_a_similar_id_the_way_to_other_packages_is_shown():
    with pytest.raises(EnvError, match="found as 'module:id'"):
        find_spec("Xyzzy")


def test_a_malformed_id_is_an_unknown_one():
    with pytest.raises(EnvError, match="no environment 'Cart Pole!'"):
        find_spec("Cart Pole!")


def test_a_module_is_imported_first():
    name = "this.__main__"  # imported, prints nothing, registers nothing
    with pytest.raises(EnvError, match="module 'no_such_module' cannot be imported"):
        find_spec("no_such_module:CartPole-v1")
    assert name not in sys.modules
    assert find_spec("alf_lite.errors:CartPole-v1").id == "CartPole-v1"


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_atari_without_its_package_names_the_extra(env_id, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(EnvError, match=r"pip install 'alf_lite\[atari\]'"):
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
    assert f"alf_lite[{extra}]" in install_hint(env_id, EnvError(text))


def test_other_errors_get_no_advice():
    assert install_hint("Ant-v5", EnvError("ValueError: mujoco is angry")) == ""
    assert install_hint("Mine-v0", EnvError("ModuleNotFoundError: 'simulator'")) == ""
