"""The structured environments behave as their docstrings say."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from alf_lite.testing.structured_environments import (
    CountingEnv,
    ImageEnv,
    MemoryEnv,
    NestedEnv,
    VectorRewardEnv,
)


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on spec and rendering
@pytest.mark.parametrize("env_class", [CountingEnv, MemoryEnv, NestedEnv, ImageEnv])
def test_they_are_proper_environments(env_class):
    check_env(env_class(), skip_render_check=True)


def run(env, policy, num_episodes=1, seed=0):
    """The returns of some episodes."""
    returns = []
    observation, _ = env.reset(seed=seed)
    for _ in range(num_episodes):
        total, ended = 0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(
                policy(observation)
            )
            total = total + reward
            ended = terminated or truncated
        returns.append(total)
        observation, _ = env.reset()
    return returns


def test_counting_numbers_every_step_of_every_episode():
    env = CountingEnv((1, 2), truncates=True, reward_is_time=True)
    seen = [env.reset()[0][0], env.step(0)[0][0], env.reset()[0][0]]
    results = [env.step(0), env.step(0)]
    assert seen == [0, 1, 100]
    assert [r[0][0] for r in results] == [101, 102]
    assert [r[1:4] for r in results] == [(1, False, False), (2, False, True)]
    assert results[1][4] == {"step": 2}
    assert env.reset()[1] == {"step": 0, "episode": 2}
    assert env.reset(seed=0)[0][0] == 0
    with pytest.raises(ValueError, match="below 100"):
        CountingEnv((100,))


def test_each_action_earns_its_part_of_the_reward():
    assert run(VectorRewardEnv(3, 4), lambda o: 1)[0].tolist() == [0, 4, 0]
    continuous = VectorRewardEnv(3, 4, "continuous")
    choose = np.ones(1, np.float32)
    assert run(continuous, lambda o: choose)[0].tolist() == [0, 2, 4]
    assert run(continuous, lambda o: 0 * choose)[0].tolist() == [2, 4, 2]


@pytest.mark.parametrize("delay", [1, 3])
def test_only_memory_answers_the_question(delay):
    def with_memory(observation, memory=[0.0]):  # noqa: B006 - it is the memory
        if observation[0] != 0:
            memory[0] = observation[0]
        return int(memory[0] > 0)

    env = MemoryEnv(delay)
    assert run(env, with_memory, 20) == [1] * 20
    guesses = run(env, lambda o: 1, 200)
    assert set(guesses) == {-1, 1}
    assert abs(np.mean(guesses)) < 0.2
    env.reset(seed=0)
    due = [env.step(0)[0][1] for _ in range(delay)]
    assert due == [0] * (delay - 1) + [1]


def test_a_continuous_answer_is_half_of_the_cue():
    def with_memory(observation, memory=[0.0]):  # noqa: B006 - it is the memory
        if observation[0] != 0:
            memory[0] = observation[0]
        return np.full(1, memory[0] / 2, np.float32)

    env = MemoryEnv(2, "continuous")
    assert run(env, with_memory, 20) == [1] * 20
    assert set(run(env, lambda o: np.zeros(1, np.float32), 20)) == {0.5}


def test_the_best_policy_of_the_nested_task_earns_one_per_step():
    def best(observation):
        grip = np.int64(observation["state"][0] % 2)
        return {"move": observation["target"], "grip": (grip,)}

    def worst(observation):
        grip = np.int64(1 - observation["state"][0] % 2)
        move = -np.sign(observation["target"]).astype(np.float32)
        return {"move": move, "grip": (grip,)}

    assert run(NestedEnv(4), best, 5) == [4] * 5
    assert max(run(NestedEnv(4), worst, 20)) < 2


def test_the_image_shows_the_action_that_earns_one():
    def quadrant(image):
        return int(image.reshape(2, 8, 2, 8).sum((1, 3)).argmax())

    assert run(ImageEnv(), quadrant, 5) == [4] * 5
    env = ImageEnv(render_mode="rgb_array")
    image, _ = env.reset(seed=1)
    assert image.sum() == 255 * 64
    assert np.array_equal(env.render()[..., 1:2], image)
