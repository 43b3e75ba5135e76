from __future__ import annotations

import numpy as np
import pytest
import torch

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.whole_episodes import whole_episodes
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.testing.structured_environments import CountingEnv


def naive(step_type, number):
    """Episodes by hand: (column, rows) in the order in which they begin."""
    begun = [
        (t, b) for t, row in enumerate(step_type) for b, x in enumerate(row) if x == 0
    ]
    belongs, ended = np.zeros(step_type.shape, bool), 0
    for t, b in begun[:number]:
        while t < len(step_type):
            belongs[t, b] = True
            if step_type[t, b] == 2:
                ended += 1
                break
            t += 1
    return belongs, ended == number


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_the_first_episodes_that_begin_are_told_from_the_others(number):
    step_type = np.array(
        # The last one waits for others
        [[0, 1, 1, 1, 2, 0, 1], [0, 2, 0, 2, 0, 2, 0], [0, 1, 2, 2, 2, 2, 0]]
    ).T
    belongs, is_complete = whole_episodes(step_type, number)
    expected, complete = naive(step_type, number)
    np.testing.assert_array_equal(belongs, expected)
    assert is_complete == complete


def build(cls=ActorCriticAlgorithm, *, lengths=(3, 5), **settings):
    env = create_environment(
        env_ctor=lambda: CountingEnv(episode_lengths=lengths),
        num_parallel_environments=2,
        vectorization_mode="sync",
    )
    config = TrainerConfig(num_iterations=3, random_seed=0, unroll_length=2, **settings)
    return cls(env=env, config=config)


def test_an_iteration_trains_on_whole_episodes_and_on_nothing_else():
    algorithm = build(unroll_episodes=3)
    unrolls = []
    train = algorithm.train_from_unroll
    algorithm.train_from_unroll = lambda experience, info: (
        unrolls.append(experience.time_step) or train(experience, info)
    )
    # Both first episodes have 3 steps, the next one of the first environment has 5.
    assert algorithm.train_iter() == 3 + 3 + 5
    expected = [[0, 1, 1, 2, 0, 1, 1, 1, 1, 2, 2], [0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]]
    assert unrolls[0].step_type.T.tolist() == expected
    assert unrolls[0].observation[:, 0, 0].tolist() == [
        *(0, 1, 2, 3, 100, 101, 102, 103, 104, 105),
        200,
    ]
    # The next iteration begins with new episodes; those that were open are not counted.
    algorithm.train_iter()
    assert unrolls[1].step_type[0].tolist() == [0, 0]
    assert unrolls[1].observation[0, :, 0].tolist() == [300, 300]
    assert algorithm.num_env_steps == 2 * (8 + 8)


def test_ppo_takes_whole_episodes_in_mini_batches():
    algorithm = build(
        PPOAlgorithm, unroll_episodes=3, mini_batch_length=1, mini_batch_size=4
    )
    before = [p.clone() for p in algorithm.parameters()]
    # Of the 2 * 10 steps of the unroll, in mini-batches without any of the others
    assert algorithm.train_iter() == algorithm.config.epochs * (3 + 3 + 5)
    assert algorithm.training_run.updates.num_updates == algorithm.config.epochs * 2
    after = algorithm.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_whole_episodes_are_refused_where_they_mean_nothing():
    with pytest.raises(ConfigError, match="DqnAlgorithm is off-policy"):
        build(DqnAlgorithm, unroll_episodes=3)
    with pytest.raises(ConfigError, match="begins all episodes anew"):
        TrainerConfig(async_unroll=True, unroll_length=2, unroll_episodes=3)
