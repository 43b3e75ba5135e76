"""A program that lacks an extra says so in one line, and what to install."""

from __future__ import annotations

import sys
import tomllib

import pytest

from alf_lite.bin import command
from tests.source_code import ROOT

# Of those who work on the library, or what is as good without, only slower.
NOT_OF_PROGRAMS = {"docs", "test", "dev", "numba"}
TRACKED = "train --conf=CONF --gin_param=TrainerConfig.hook_ctors=[@{}]"
SWEEP = "sweep --conf=CONF --search=Adam.lr=uniform(0,1)"
COLLECT = "collect --policy=random --num_env_steps=4 --output=OUT/a-v0 --env="
# Extra → the modules that it brings, and programs that need them.
PROGRAMS = {
    "mujoco": (
        ["mujoco", "gymnasium.envs.mujoco"],
        [
            "train --conf=ppo_half_cheetah",
            "check_env HalfCheetah-v5",
            f"{COLLECT}Ant-v5",
        ],
    ),
    "box2d": (["Box2D", "gymnasium.envs.box2d"], ["train --conf=ppo_lunar_lander"]),
    "atari": (["cv2"], ["train --conf=ppo_pong"]),
    "envpool": (["envpool"], ["train --conf=envpool_ppo_half_cheetah"]),
    "minigrid": (["minigrid"], ["train --conf=ppo_door_key"]),
    "dm_control": (["shimmy"], ["train --conf=sac_dm_cart_pole"]),
    "robotics": (["gymnasium_robotics"], ["train --conf=her_fetch_reach"]),
    "highway": (["highway_env"], ["train --conf=dqn_highway"]),
    "mo": (["mo_gymnasium"], ["train --conf=dqn_deep_sea_treasure"]),
    "games": (["pyspiel"], ["arena random mcts:10"]),
    "minari": (["minari"], [f"{COLLECT}CartPole-v1 --format=minari"]),
    "ray": (["ray"], [f"{SWEEP} --engine=ray"]),
    "tune": (["optuna"], [f"{SWEEP} --method=optuna --num_trials=2"]),
    "wandb": (["wandb"], [TRACKED.format("WandbHook")]),
    "mlflow": (["mlflow"], [TRACKED.format("MlflowHook")]),
    "plot": (["matplotlib"], ["plot RUN --output=OUT.png"]),
    "video": (["imageio", "imageio.v2"], ["play --root_dir=RUN --record_file=OUT.mp4"]),
    "hub": (["huggingface_hub"], ["push --root_dir=RUN --to=user/name"]),
    "export": (["onnxruntime"], ["export --root_dir=RUN --out=OUT"]),
}


def test_every_extra_is_tried():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = set(tomllib.loads(text)["project"]["optional-dependencies"])
    assert set(PROGRAMS) == names - NOT_OF_PROGRAMS


@pytest.fixture
def without(monkeypatch):
    """Takes packages away; those of gymnasium that have them are imported anew."""

    def forget(package):
        for name in [*sys.modules]:
            if f"{name}.".startswith(f"{package}."):
                monkeypatch.delitem(sys.modules, name)

    def take(modules):
        for name in modules:
            forget(name)
            if not name.startswith("gymnasium."):
                monkeypatch.setitem(sys.modules, name, None)

    taken: list[str] = []
    yield lambda modules: [taken.extend(modules), take(modules)]
    for name in taken:
        forget(name)  # what was imported without them


@pytest.mark.parametrize(
    ("extra", "line"),
    [(extra, line) for extra, (_, lines) in PROGRAMS.items() for line in lines],
)
def test_it_is_one_line_and_2(extra, line, without, conf, trained, tmp_path, capsys):
    for name, path in {"CONF": conf, "RUN": trained, "OUT": tmp_path / "out"}.items():
        line = line.replace(name, str(path))
    words = line.split()
    if words[0] in ("train", "sweep"):
        words.append(f"--root_dir={tmp_path / 'run'}")
    without(PROGRAMS[extra][0])
    assert command.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert f" needs the {extra} extra" in error
    assert error.endswith(f": pip install 'alf_lite[{extra}]'\n")
