"""Suites of other people that are made by their ids, where they are installed."""

from __future__ import annotations

import pytest
import torch

from alf_lite.environments import create_environment


@pytest.mark.filterwarnings("ignore")  # theirs, of many kinds
@pytest.mark.parametrize(
    ("package", "env_name"),
    [
        ("mujoco", "HalfCheetah-v5"),
        ("dm_control", "shimmy:dm_control/cartpole-balance-v0"),
        ("dm_control", "shimmy:dm_control/walker-walk-v0"),
        ("gymnasium_robotics", "gymnasium_robotics:FetchReach-v4"),
        ("gymnasium_robotics", "gymnasium_robotics:HandReach-v3"),
        ("gymnasium_robotics", "gymnasium_robotics:AdroitHandDoor-v1"),
        ("gymnasium_robotics", "gymnasium_robotics:PointMaze_UMaze-v3"),
    ],
)
def test_it_is_stepped(package, env_name):
    pytest.importorskip(package)
    with create_environment(env_name, 2, 0) as env:
        env.reset()
        for _ in range(3):
            time_step = env.step(env.action_spec.sample((2,)))
        assert time_step.reward.shape == (2,)
        assert torch.isfinite(time_step.reward).all()
