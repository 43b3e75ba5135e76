"""Tests of alf_lite.bin.check_env; what is checked: tests/environments."""

from __future__ import annotations

import json

from alf_lite.bin import check_env


def test_a_usable_environment_is_reported_and_0(capsys):
    name = "alf_lite.testing.goal_environment.PointGoalEnv"
    assert check_env.main([name, "--seconds=0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PointGoalEnv\n")
    assert "It can be trained in." in out


def test_json_is_one_object_and_arguments_reach_the_constructor(capsys):
    flags = ["--arg=is_slippery=False", "--arg=map_name=8x8", "--max_episode_steps=7"]
    assert check_env.main(["FrozenLake-v1", "--seconds=0", "--json", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["leaves"]["observation"]["bounds"] == "0 to 63"
    assert max(report["episodes"]["lengths"]) <= 7
    assert report["problems"] == []


def test_a_conf_says_which_environment_with_its_wrappers(capsys):
    wrappers = "create_environment.wrappers = [@gymnasium.wrappers.FlattenObservation]"
    flags = ["--conf=her_point_goal", f"--gin_param={wrappers}"]
    assert check_env.main([*flags, "--seconds=0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["leaves"]["observation"]["shape"] == [9]
