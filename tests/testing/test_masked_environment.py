from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from alf_lite.environments.creation import create_environment
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.masked_environment import ForbiddenActionEnv

MIXED = spaces.Dict(
    {
        "switch": spaces.MultiBinary(1),
        "force": spaces.Box(-1.0, 1.0, (1,), np.float32),
        "pair": spaces.MultiDiscrete([3, 2]),
    }
)


def test_what_is_forbidden_ends_the_episode():
    env = ForbiddenActionEnv()
    observation, _ = env.reset(seed=0)
    forbidden = int(np.flatnonzero(observation["action_mask"] == 0)[0])
    observation, reward, terminated, truncated, _ = env.step(forbidden)
    assert (reward, terminated, truncated) == (-100.0, True, False)
    assert not observation["action_mask"].any()


def test_the_largest_value_allowed_is_rewarded_for_every_component():
    env = ForbiddenActionEnv(MIXED, episode_length=50)
    observation, _ = env.reset(seed=0)
    total = 0.0
    for _ in range(50):
        # In the order of the names: pair, then switch.
        first, second, switch = np.split(observation["action_mask"], [3, 5])
        best = [int(np.flatnonzero(part)[-1]) for part in (first, second, switch)]
        action = {
            "pair": np.array([int(np.flatnonzero(first)[0]), best[1]]),
            "switch": np.array([best[2]], np.int8),
            "force": np.zeros(1, np.float32),
        }
        assert env.observation_space.contains(observation)
        assert env.action_space.contains(action)
        observation, reward, terminated, _, _ = env.step(action)
        expected = (2 + (action["pair"][0] == best[0])) / 3
        assert reward == pytest.approx(expected)
        total += reward
    assert terminated
    assert total < 50


def test_no_policy_survives_that_does_not_look_at_the_mask():
    for action in range(4):
        env = ForbiddenActionEnv()
        returns = []
        for seed in range(50):
            env.reset(seed=seed)
            terminated, total = False, 0.0
            while not terminated:
                _, reward, terminated, _, _ = env.step(action)
                total += reward
            returns.append(total)
        assert np.mean(returns) < -50


class TestForbiddenActionEnv(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment(
            env_ctor=ForbiddenActionEnv,
            num_parallel_environments=num_environments,
            seed=seed,
        )
