"""Tests of the play program."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys

import numpy as np
import pytest

import alf_lite
from alf_lite.bin import play, train
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names

needs_video = pytest.mark.skipif(
    any(importlib.util.find_spec(m) is None for m in ("imageio", "pygame")),
    reason="needs the video extra",
)


def run(*arguments: str) -> int:
    """One call of the program, as in a process of its own."""
    config_files.reset()
    return play.main(arguments)


def result_of(capsys, *arguments: str) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_tells_every_return_and_their_mean(trained, capsys):
    assert run(f"--root_dir={trained}", "--num_episodes=3", "--json") == 0
    *lines, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert len(result["returns"]) == len(result["lengths"]) == 3
    assert result["average_return"] == pytest.approx(np.mean(result["returns"]))
    assert result["returns"] == result["lengths"]  # CartPole: 1 per step
    assert result["ci95"][0] <= result["average_return"] <= result["ci95"][1]
    assert lines[0] == f"Checkpoint:   {trained}/checkpoints/ckpt-4"
    assert (
        lines[1].split()
        == (
            f"Episode 1 return {result['returns'][0]:.2f}, {result['lengths'][0]} steps"
        ).split()
    )
    assert lines[4].startswith(
        f"Evaluation:   mean return {result['average_return']:.2f}"
    )


def test_settings_that_have_no_effect_are_named(trained, capsys):
    settings = ("SacAlgorithm.gamma = 0.5", "PPOAlgorithm.gamma = 0.5")
    given = [f"--gin_param={setting}" for setting in settings]
    assert run(f"--root_dir={trained}", "--num_episodes=1", *given) == 0
    told = capsys.readouterr().err.partition("no effect here:")[2]
    assert settings[0] in told
    assert settings[1] not in told


def test_same_seed_same_episodes(trained, capsys):
    root_dir = f"--root_dir={trained}"
    first = result_of(capsys, root_dir, "--num_episodes=4", "--sample")
    assert result_of(capsys, root_dir, "--num_episodes=4", "--sample") == first
    other = result_of(capsys, root_dir, "--num_episodes=4", "--sample", "--seed=1")
    assert other["returns"] != first["returns"]
    greedy = result_of(capsys, root_dir, "--num_episodes=4")
    assert greedy["returns"] != first["returns"]


def test_several_environments_share_the_episodes(trained, capsys):
    arguments = [f"--root_dir={trained}", "--num_episodes=5", "--num_environments=3"]
    assert len(result_of(capsys, *arguments)["returns"]) == 5


def test_plays_the_checkpoint_asked_for(trained, capsys):
    root_dir = f"--root_dir={trained}"
    assert result_of(capsys, root_dir, "--num_episodes=1")["step"] == 4
    one = result_of(capsys, root_dir, "--num_episodes=1", "--checkpoint=2")
    assert one["step"] == 2
    best = result_of(capsys, root_dir, "--num_episodes=1", "--checkpoint=best")
    assert best["step"] == 4  # the only one that was evaluated
    second = f"--root_dir={trained}/checkpoints/ckpt-2"
    assert result_of(capsys, second, "--num_episodes=1") == one
    assert run(second, "--checkpoint=best") != 0
    assert (
        f"leave that out, or give the run, {trained}" in capsys.readouterr().err.lower()
    )


def test_needs_nothing_but_the_policy_and_changes_nothing(trained, tmp_path, capsys):
    root_dir = tmp_path / "copy"
    shutil.copytree(trained, root_dir)
    for name in ("training.pt", "random.pt", "trainer.pt"):
        (root_dir / "checkpoints" / "ckpt-4" / name).unlink()
    before = sorted(root_dir.rglob("*"))
    assert result_of(capsys, f"--root_dir={root_dir}", "--num_episodes=1")["step"] == 4
    assert sorted(root_dir.rglob("*")) == before


def test_setting_overrides_the_configuration_of_the_run(trained, capsys):
    limit = "--gin_param=create_environment.max_episode_steps = 5"
    result = result_of(capsys, f"--root_dir={trained}", "--num_episodes=2", limit)
    assert result["lengths"] == [5, 5]


WALK = """
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int):
        self.observation_space = gymnasium.spaces.Box(-size, size, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, True, False, {}
"""
WALK_CONF = """
create_environment.env_ctor = @walk_beside.Walk
walk_beside.Walk.size = 9
evaluation/walk_beside.Walk.size = 9
TrainerConfig.algorithm_ctor = @PPOAlgorithm
TrainerConfig.num_iterations = 1
TrainerConfig.unroll_length = 8
"""


def test_a_module_beside_the_conf_is_found_again(tmp_path, capsys, monkeypatch):
    """From any directory; for the policy alone it need not be there."""

    def in_a_new_process() -> None:
        config_files.reset()
        sys.modules.pop("walk_beside", None)
        monkeypatch.setattr(sys, "path", list(path))
        monkeypatch.setattr(config_names, "_conf_folders", [])

    path, folder, root_dir = list(sys.path), tmp_path / "confs", tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    folder.mkdir()
    (folder / "walk.gin").write_text(WALK_CONF)
    (folder / "walk_beside.py").write_text(WALK)
    in_a_new_process()
    assert train.main([f"--conf={folder / 'walk.gin'}", f"--root_dir={root_dir}"]) == 0
    in_a_new_process()
    assert result_of(capsys, f"--root_dir={root_dir}")["average_return"] == 1
    in_a_new_process()
    more = "--gin_param=TrainerConfig.num_iterations = 2"
    assert train.main([f"--root_dir={root_dir}", more]) == 0
    (folder / "walk_beside.py").unlink()
    in_a_new_process()
    assert alf_lite.load_policy(root_dir).predict([0.5]) in (0, 1)
    assert run(f"--root_dir={root_dir}") == 2
    assert "there is no module 'walk_beside'" in capsys.readouterr().err


def test_window_without_a_display_suggests_recording(trained, capsys, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert run(f"--root_dir={trained}", "--render") == 2
    assert "--record_file=play.mp4" in capsys.readouterr().err


def test_missing_extra_says_how_to_install_it(trained, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "imageio", None)
    monkeypatch.setitem(sys.modules, "imageio.v2", None)
    assert run(f"--root_dir={trained}", f"--record_file={tmp_path}/a.gif") == 2
    assert "pip install 'alf_lite[video]'" in capsys.readouterr().err


@pytest.mark.ci
@needs_video
def test_records_every_frame_without_a_display(trained, capsys, monkeypatch, tmp_path):
    import imageio.v3

    monkeypatch.delenv("DISPLAY", raising=False)
    file = tmp_path / "videos" / "play.gif"
    result = result_of(
        capsys,
        f"--root_dir={trained}",
        "--num_episodes=2",
        f"--record_file={file}",
        "--gin_param=create_environment.max_episode_steps = 4",
    )
    assert result["lengths"] == [4, 4]
    frames = imageio.v3.imread(file)
    assert frames.shape[1:] == (436, 600, 3)  # the picture below a line of text
    # Both first steps and all others; GIF stores equal neighbours as one.
    assert 8 <= len(frames) <= 10


def test_checkpoint_of_another_space_is_refused(trained, capsys):
    other = "--gin_param=create_environment.env_name = 'Acrobot-v1'"
    assert run(f"--root_dir={trained}", other) == 3
    assert "observation: expected (6,) float32" in capsys.readouterr().err


def test_non_finite_policy_is_refused(trained, tmp_path, capsys):
    root_dir = tmp_path / "copy"
    shutil.copytree(trained, root_dir)
    checkpointer = Checkpointer(root_dir / "checkpoints")
    loaded = checkpointer.load()
    name = next(k for k in loaded.state["algorithm"] if "_policy" in k)
    loaded.state["algorithm"][name].fill_(float("nan"))
    checkpointer.save(5, loaded.state, loaded.texts, loaded.metadata)
    assert run(f"--root_dir={root_dir}", "--num_episodes=1") == 3
    assert "non-finite parameters" in capsys.readouterr().err
