"""The environment's own reward function is found, if it is in this process."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from alf_lite.data_transformers.create_data_transformer import create_data_transformer
from alf_lite.data_transformers.goal_rewards import reward_function_of
from alf_lite.data_transformers.hindsight import HindsightExperienceTransformer
from alf_lite.environments.creation import create_environment
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.errors import ConfigError
from alf_lite.testing.goal_environment import PointGoalEnv
from alf_lite.testing.probe_environments import ValueEnv

ACHIEVED = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]])
DESIRED = torch.tensor([[0.0, 0.0, 0.01], [0.5, 0.5, 0.9]])


class GoalEnvOfThreeArguments(PointGoalEnv):
    """As the environments of gymnasium-robotics declare it."""

    def compute_reward(self, achieved_goal, desired_goal, info):
        assert info == {}
        return super().compute_reward(achieved_goal, desired_goal) * 2


@pytest.mark.parametrize(
    ("env_ctor", "expected"),
    [
        (PointGoalEnv, [0, -1]),
        (GoalEnvOfThreeArguments, [0, -2]),
        (lambda: gymnasium.wrappers.TimeLimit(PointGoalEnv(), 5), [0, -1]),
    ],
)
def test_single_environments_of_this_process_are_asked(env_ctor, expected):
    with create_environment(env_ctor=env_ctor, num_parallel_environments=2) as env:
        compute_reward = reward_function_of(env)
        reward = compute_reward(ACHIEVED, DESIRED)
    assert reward.dtype == torch.float32
    assert reward.tolist() == expected


def test_gymnasiums_own_vector_environments_are_asked():
    vector_env = gymnasium.vector.SyncVectorEnv([PointGoalEnv] * 2)
    with GymnasiumEnvironment(vector_env) as env:
        assert reward_function_of(env)(ACHIEVED, DESIRED).tolist() == [0, -1]


def test_a_batched_environment_may_compute_rewards_itself():
    class VectorEnv(gymnasium.vector.SyncVectorEnv):
        def compute_reward(self, achieved_goals, desired_goals):
            return np.full(len(achieved_goals), 3.0)

    class TensorEnvironment(GymnasiumEnvironment):
        def compute_reward(self, achieved_goals, desired_goals):
            return achieved_goals.sum(-1)

    with GymnasiumEnvironment(VectorEnv([PointGoalEnv])) as env:
        assert reward_function_of(env)(ACHIEVED, DESIRED).tolist() == [3, 3]
    with TensorEnvironment(VectorEnv([PointGoalEnv])) as env:
        assert reward_function_of(env)(ACHIEVED, DESIRED).tolist() == [0, 1.5]


def test_an_environment_without_one_is_refused():
    with create_environment(env_ctor=ValueEnv) as env:
        assert reward_function_of(env) is None
    with (
        create_environment(env_ctor=PointGoalEnv, vectorization_mode="async") as env,
        pytest.raises(ConfigError, match=r"no compute_reward.*reward_function"),
    ):
        create_data_transformer(
            HindsightExperienceTransformer, env.observation_spec, training_env=env
        )


def test_a_given_function_goes_before_the_environments():
    def ones(achieved, desired):
        return torch.ones(len(achieved))

    def ctor(observation_spec, reward_spec):
        return HindsightExperienceTransformer(
            observation_spec, reward_spec, reward_function=ones
        )

    with create_environment(env_ctor=PointGoalEnv) as env:
        transformer = create_data_transformer(
            [ctor], env.observation_spec, training_env=env
        )
    assert transformer.transformers[0]._reward_function is ones
