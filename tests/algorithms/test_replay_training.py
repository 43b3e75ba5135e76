"""Transformers that look beyond a step get the steps they need from the buffer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from alf_lite.algorithms.create_algorithm import create_algorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, LossInfo
from alf_lite.data_transformers.frame_stacker import FrameStacker
from alf_lite.data_transformers.hindsight import HindsightExperienceTransformer
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import SGD
from alf_lite.testing.goal_environment import PointGoalEnv
from alf_lite.testing.structured_environments import CountingEnv


class Recorder(RLAlgorithm):
    """Acts at random and keeps what it sees: acting, and in training [B, T]."""

    def __init__(self, observation_spec, action_spec, **kwargs):
        super().__init__(
            observation_spec,
            action_spec,
            is_on_policy=False,
            optimizer=SGD(lr=0.1),
            **kwargs,
        )
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.acted_on: list[Any] = []
        self.trained_on: list[Any] = []
        self.batch_infos: list[Any] = []

    def rollout_step(self, inputs, state):
        self.acted_on.append(inputs.observation)
        return AlgStep(self.action_spec.sample(inputs.reward.shape))

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        self.trained_on.append(root_inputs)
        self.batch_infos.append(batch_info)
        return root_inputs, rollout_info

    def train_step(self, inputs, state, rollout_info):
        return AlgStep(info=inputs.reward * self.weight)

    def calc_loss(self, info):
        return LossInfo(loss=info + self.weight, priority=torch.ones(info.shape[1]))


def make(env_ctor, *transformers, num=2, **settings) -> Recorder:
    torch.manual_seed(0)
    env = create_environment(env_ctor=env_ctor, num_parallel_environments=num, seed=0)
    settings = {
        "unroll_length": 3,
        "mini_batch_length": 2,
        "mini_batch_size": 64,
        "num_iterations": 1,
        **settings,
    }
    config = TrainerConfig(
        algorithm_ctor=Recorder, data_transformer_ctor=transformers, **settings
    )
    return create_algorithm(config, env)


def triples(observation_spec, reward_spec):
    return FrameStacker(observation_spec, reward_spec, stack_size=3)


def all_hindsight(observation_spec, reward_spec):
    return HindsightExperienceTransformer(
        observation_spec, reward_spec, her_proportion=1.0
    )


def counting_env():
    return CountingEnv(episode_lengths=(3, 1, 5))


@pytest.mark.parametrize("priority_replay", [False, True])
@pytest.mark.parametrize("mini_batch_length", [2, 6])
def test_training_sees_the_stacks_that_the_policy_saw(
    mini_batch_length, priority_replay
):
    algorithm = make(
        counting_env,
        triples,
        mini_batch_length=mini_batch_length,
        priority_replay=priority_replay,
        replay_buffer_length=14,
    )
    for _ in range(10):
        algorithm.train_iter()
    acted_on = torch.stack(algorithm.acted_on, dim=1)  # [B, steps, 3]
    assert len(algorithm.trained_on) >= 7
    for time_step, info in zip(
        algorithm.trained_on, algorithm.batch_infos, strict=True
    ):
        steps = info.positions.unsqueeze(1) + torch.arange(mini_batch_length)
        expected = acted_on[info.env_ids.unsqueeze(1), steps]
        assert torch.equal(time_step.observation, expected)
    # One frame per step is stored.
    buffer = algorithm._path.replay.buffer
    assert buffer.data_spec.time_step.observation.shape == (1,)


def test_training_waits_until_windows_have_their_history():
    algorithm = make(counting_env, triples, unroll_length=1)
    trained = [algorithm.train_iter() > 0 for _ in range(6)]
    # Two steps to train on, and two before them.
    assert trained == [False, False, False, True, True, True]


def test_the_whole_buffer_is_trained_with_its_history():
    algorithm = make(
        counting_env, triples, unroll_length=9, whole_replay_buffer_training=True
    )
    # 9 steps: 2 are history, the newest one has no successor.
    assert algorithm.train_iter() == 2 * 6
    acted_on = torch.stack(algorithm.acted_on, dim=1)
    assert torch.equal(algorithm.trained_on[0].observation, acted_on[:, 2:])


def test_a_buffer_too_short_for_one_window_is_refused():
    algorithm = make(counting_env, triples, replay_buffer_length=3)
    with pytest.raises(ConfigError, match=r"=3 is too short.* read 2 steps before it"):
        algorithm.train_iter()


def test_training_sees_goals_that_were_reached():
    algorithm = make(PointGoalEnv, all_hindsight, triples, unroll_length=30)
    algorithm.train_iter()
    [time_step] = algorithm.trained_on
    observation = time_step.observation
    meant = torch.stack([step["desired_goal"] for step in algorithm.acted_on]).flatten(
        0, 1
    )
    is_new = ~(observation["desired_goal"].unsqueeze(2) == meant).all(-1).any(-1)
    starts = time_step.step_type[:, 0] != 2
    assert is_new[starts].all()
    # Some windows reach their new goal, which chance does not.
    newest = observation["achieved_goal"][..., -3:]
    goal = observation["desired_goal"][..., -3:]
    reached = (newest - goal).norm(dim=-1) <= 0.05
    assert reached[:, 1].any()
    counted = starts.unsqueeze(1) & (time_step.step_type != 0)
    assert torch.equal(time_step.reward[counted] == 0, reached[counted])


def test_hindsight_needs_an_algorithm_that_replays():
    with create_environment(env_ctor=PointGoalEnv) as env:
        config = TrainerConfig(
            algorithm_ctor=PPOAlgorithm,
            data_transformer_ctor=[all_hindsight],
            num_iterations=1,
        )
        with pytest.raises(ConfigError, match="PPOAlgorithm is on-policy"):
            create_algorithm(config, env)


def test_only_training_needs_the_reward_function():
    with create_environment(env_ctor=PointGoalEnv, vectorization_mode="async") as env:
        config = TrainerConfig(
            algorithm_ctor=Recorder,
            data_transformer_ctor=[all_hindsight],
            num_iterations=1,
        )
        create_algorithm(config, env, is_eval=True)
        with pytest.raises(ConfigError, match="no compute_reward"):
            create_algorithm(config, env)
