"""The point can reach every goal, and hardly ever does so by chance."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from alf_lite.environments.creation import create_environment
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.goal_environment import PointGoalEnv


class TestPointGoalEnvContract(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment(
            env_ctor=PointGoalEnv,
            num_parallel_environments=num_environments,
            seed=seed,
        )


def run(policy, num_episodes):
    """(mean return, fraction of episodes that were at their goal at some time)."""
    env = PointGoalEnv()
    observation, _ = env.reset(seed=0)
    returns, successes = [], []
    for _ in range(num_episodes):
        episode_return, success, is_end = 0.0, False, False
        while not is_end:
            observation, reward, terminated, is_end, info = env.step(
                policy(observation)
            )
            assert not terminated
            assert info["is_success"] == (reward == 0)
            episode_return += reward
            success |= info["is_success"]
        returns.append(episode_return)
        successes.append(success)
        observation, _ = env.reset()
    return np.mean(returns), np.mean(successes)


def straight(observation):
    return (observation["desired_goal"] - observation["observation"]) / 0.2


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on spec and rendering
def test_it_is_a_proper_environment():
    check_env(PointGoalEnv(), skip_render_check=True)


def test_who_goes_straight_always_arrives():
    mean_return, success = run(straight, 300)
    assert success == 1
    assert -3.2 < mean_return < -2.8


@pytest.mark.ci
def test_chance_does_not_get_there():
    generator = np.random.default_rng(0)
    mean_return, success = run(lambda o: generator.uniform(-1, 1, 3), 1000)
    assert success < 0.005
    assert mean_return < -19.9


def test_rewards_are_computed_for_any_number_of_goals():
    env = PointGoalEnv(num_dimensions=2, tolerance=0.5)
    achieved = np.array([[[0.0, 0.0], [0.3, 0.4]], [[0.31, 0.4], [1.0, 1.0]]])
    reward = env.compute_reward(achieved, np.zeros(2))
    assert reward.dtype == np.float32
    assert reward.tolist() == [[0, 0], [-1, -1]]


def test_what_was_returned_is_not_changed_by_later_steps():
    env = PointGoalEnv()
    first, _ = env.reset(seed=1)
    before = {name: place.copy() for name, place in first.items()}
    env.step(np.ones(3, np.float32))
    env.reset()
    for name, place in before.items():
        np.testing.assert_array_equal(first[name], place)
    assert first["observation"] is not first["achieved_goal"]
