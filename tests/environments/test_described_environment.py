from __future__ import annotations

import pytest
import torch

from alf_lite.data_transformers.goal_rewards import reward_function_of
from alf_lite.environments.creation import create_environment
from alf_lite.environments.described_environment import DescribedEnvironment
from alf_lite.testing.goal_environment import PointGoalEnv


@pytest.fixture
def original():
    env = create_environment(env_ctor=PointGoalEnv, num_parallel_environments=2, seed=0)
    env.num_closed = 0
    close = env.close

    def count():
        env.num_closed += 1
        close()

    env.close = count
    return env


def test_it_is_as_large_as_all_workers_and_else_like_one_of_them(original):
    env = DescribedEnvironment(original, 3, b"recipe", "a.module")
    assert env.batch_size == 6
    assert env.observation_spec == original.observation_spec
    assert env.action_spec == original.action_spec
    assert env.reward_spec == original.reward_spec
    assert env.env_info_spec == original.env_info_spec
    assert type(env.recorded_values) is type(original.recorded_values)
    assert env.metadata == original.metadata
    assert env.name == original.name
    assert (env.recipe, env.recipe_module) == (b"recipe", "a.module")


def test_it_says_who_steps_it(original):
    env = DescribedEnvironment(original, 1)
    for call in (
        env.reset,
        lambda: env.step(torch.zeros(2, 3)),
        lambda: env.current_time_step,
    ):
        with pytest.raises(RuntimeError, match="stepped by unroll workers, not by"):
            call()


def test_the_specs_remain_when_the_original_is_released(original):
    env = DescribedEnvironment(original, 2)
    expected = original.observation_spec
    env.release()
    assert original.num_closed == 1
    assert env.observation_spec == expected
    env.release()
    env.close()
    assert original.num_closed == 1
    with pytest.raises(RuntimeError, match="was closed"):
        env.borrow_original()


def test_who_needs_more_than_specs_keeps_the_original_open(original):
    env = DescribedEnvironment(original, 2)
    compute_reward = reward_function_of(env)
    env.release()
    assert original.num_closed == 0
    goals = torch.zeros(4, 3)
    assert compute_reward(goals, goals).tolist() == [0, 0, 0, 0]
    assert compute_reward(goals, goals + 1).tolist() == [-1, -1, -1, -1]
    env.close()
    assert original.num_closed == 1
