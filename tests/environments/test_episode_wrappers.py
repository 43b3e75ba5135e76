"""Wrappers of any environment: what changes, what does not, and what is resumed."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.environments.creation import create_environment
from alf_lite.environments.episode_wrappers import (
    ActionObservation,
    ActionRepeat,
    CorrelatedActionNoise,
    RandomFirstEpisodeLength,
    ScalarReward,
    TimeLimitIsNoEnd,
)
from alf_lite.environments.levels import LevelSeeds, TaskMixture
from alf_lite.errors import ConfigError, EnvError
from tests.environments.test_open_episodes import continued, of_class

NESTED = spaces.Dict(
    {
        "speed": spaces.Box(0.5, 2.0, (1,), np.float32),
        "gear": spaces.Tuple((spaces.Discrete(3, start=-5), spaces.MultiBinary(2))),
        "pair": spaces.MultiDiscrete([2, 3], start=np.array([1, 4])),
    }
)


class Ten(gymnasium.Env):
    """Terminates after ten steps; observes the step and what was drawn at the reset."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, action_space=spaces.Discrete(2), reward=1.0):  # noqa: B008
        self.action_space = action_space
        self.reward = reward
        if np.ndim(reward):
            self.reward_space = spaces.Box(-9.0, 9.0, np.shape(reward))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.drawn = 0, self.np_random.normal()
        return np.array([0.0, self.drawn]), {}

    def step(self, action):
        self.time += 1
        self.done = action
        observation = np.array([self.time, self.drawn])
        return observation, self.reward, self.time == 10, False, {}


def play(env, seed=None, action=0):
    """(steps, how it ended, the last observation) of an episode."""
    observation, _ = env.reset(seed=seed)
    for num_steps in range(1, 100):
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return num_steps, (terminated, truncated), observation
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("limit", "is_end"), [(10, False), (0, False), (11, True)], ids=str
)
def test_a_limit_that_comes_as_an_end_is_bootstrapped(limit, is_end):
    env = TimeLimitIsNoEnd(Ten(), num_steps=limit)
    for _ in range(2):
        assert play(env)[:2] == (10, (is_end, not is_end))


def test_the_first_episodes_after_a_seed_are_cut_anywhere():
    env = RandomFirstEpisodeLength(Ten(), max_length=12, num_episodes=2)
    lengths = []
    for seed in range(60):
        first, second, third = (play(env, s) for s in (seed, None, None))
        assert third[:2] == (10, (True, False))
        for length, (terminated, truncated), _ in (first, second):
            assert (terminated, truncated) == (length == 10, length < 10)
            lengths.append(length)
    counts = np.bincount(lengths, minlength=11)[1:]
    assert (counts[:9] > 2).all()
    assert counts[9] > 12  # 10, 11 and 12
    assert play(env, 3)[:2] == play(env, 3)[:2]


def test_the_action_that_led_here_is_observed():
    env = ActionObservation(Ten(NESTED))
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    first = observation["prev_action"]
    assert first["speed"] == 0.5
    assert first["gear"][0] == -3
    assert first["pair"].tolist() == [1, 4]
    env.action_space.seed(0)
    action = env.action_space.sample()
    observation, *_ = env.step(action)
    assert observation["prev_action"] is action
    assert observation["observation"][0] == 1
    twice = ActionObservation(env, key="again")
    assert set(twice.observation_space) == {"observation", "prev_action", "again"}
    with pytest.raises(ConfigError, match="an entry 'prev_action' already"):
        ActionObservation(env)
    with pytest.raises(ConfigError, match="an entry 'observation' already"):
        ActionObservation(gymnasium.make("CartPole-v1"), key="observation")
    with create_environment(
        env_ctor=functools.partial(Ten, NESTED), wrappers=[ActionObservation], seed=0
    ) as batch:
        batch.reset()
        action = nest.map_structure(lambda spec: spec.sample((1,)), batch.action_spec)
        action["speed"][:] = 0.5
        seen = batch.step(action).observation["prev_action"]
        assert seen["speed"] == pytest.approx(1.625)  # as the environment is given it
        assert (seen["pair"] == action["pair"]).all()


def test_a_reward_of_parts_becomes_their_weighted_sum():
    reward = np.array([1.0, 2.0, 4.0])
    for weights, expected in ((None, 1.0), ([1, -1, 0.5], 1.0), ([0, 1, 1], 6.0)):
        env = ScalarReward(Ten(reward=reward), weights=weights)
        env.reset(seed=0)
        assert env.step(0)[1] == expected
    with create_environment(
        env_ctor=functools.partial(Ten, reward=reward), wrappers=[ScalarReward]
    ) as batch:
        assert batch.reward_spec.shape == ()
    with pytest.raises(ConfigError, match="expected 3 finite weights"):
        ScalarReward(Ten(reward=reward), weights=[1, 2])
    with pytest.raises(ConfigError, match="it is a number"):
        ScalarReward(Ten())


def test_noise_of_two_steps_is_correlated():
    box = spaces.Box(np.float32([0, -100]), np.float32([2000, 100]))
    env = CorrelatedActionNoise(Ten(box), std=0.1, past_weight=0.5)
    middle, noise = np.float32([1000, 0]), []
    for seed in range(200):
        env.reset(seed=seed)
        rng = np.random.default_rng()
        rng.bit_generator.state = env._random.bit_generator.state
        past = np.zeros(2)
        for _ in range(10):
            env.step(middle)
            now = rng.normal(size=2) * [100, 10]
            np.testing.assert_allclose(
                env.unwrapped.done, middle + now + 0.5 * past, rtol=1e-5, atol=1e-3
            )
            past = now
            noise.append((env.unwrapped.done - middle) / [100, 10])
    series = np.reshape(noise, (200, 10, 2))
    assert series.std() == pytest.approx(np.sqrt(1.25 - 0.025), rel=0.05)
    assert np.mean(series[:, 1:] * series[:, :-1]) == pytest.approx(0.5, abs=0.07)
    loud = CorrelatedActionNoise(Ten(box), std=100.0)
    loud.reset(seed=0)
    loud.step(middle)
    assert box.contains(loud.unwrapped.done)
    with pytest.raises(ConfigError, match="expected actions of a Box"):
        CorrelatedActionNoise(Ten())


# Levels


def test_a_level_is_a_seed_and_comes_by_its_weight():
    env = LevelSeeds(Ten(), num_levels=4, first_level=20)
    expected = [Ten().reset(seed=20 + i)[0][1] for i in range(4)]
    env.reset(seed=0)
    for weights, share in (([1, 0, 0, 3], 0.75), ([0, 0, 0, 1], 1.0)):
        env.set_level_weights(weights)
        levels = []
        for _ in range(400):
            observation, info = env.reset()
            levels.append(info["level"])
            assert observation[1] == expected[info["level"]]
        assert set(levels) <= set(np.flatnonzero(weights).tolist())
        assert np.mean(np.array(levels) == 3) == pytest.approx(share, abs=0.06)
    assert env.step(0)[-1]["level"] == 3
    with pytest.raises(ConfigError, match="there are 4 levels, got weights of shape"):
        env.set_level_weights([1, 2])
    with pytest.raises(ConfigError, match="not all 0"):
        env.set_level_weights([0, 0, 0, 0])


def test_every_episode_of_a_mixture_is_one_of_its_tasks():
    tasks = [functools.partial(Ten, reward=float(i)) for i in range(3)]
    env = TaskMixture(tasks)
    env.reset(seed=1)
    for weights in ([1, 1, 1], [0, 1, 0]):
        env.set_level_weights(weights)
        for _ in range(20):
            observation, info = env.reset()
            assert env.observation_space.contains(observation)
            _, reward, _, _, later = env.step(0)
            assert reward == observation["task"] == info["level"] == later["level"]
    assert reward == 1
    assert TaskMixture(["CartPole-v1"], observe_task=False).reset(seed=0)[0].shape == (
        4,
    )
    with pytest.raises(EnvError, match="disagree on the observation space"):
        TaskMixture(["CartPole-v1", "Pendulum-v1"])
    with pytest.raises(ConfigError, match="must be a list"):
        TaskMixture("CartPole-v1")


def test_levels_whose_first_episodes_alone_would_be_played_are_refused():
    def cut():
        return RandomFirstEpisodeLength(Ten(), max_length=5)

    message = "every episode would be cut off. Put it around"
    with pytest.raises(ConfigError, match=message):
        LevelSeeds(gymnasium.wrappers.TimeLimit(cut(), 8), num_levels=2)
    with pytest.raises(ConfigError, match=message):
        TaskMixture([Ten, cut])
    RandomFirstEpisodeLength(LevelSeeds(Ten(), num_levels=2), max_length=5)


def test_wrappers_around_levels_are_random_in_each_of_their_episodes():
    box = spaces.Box(np.float32([-9]), np.float32([9]))
    for num_levels in (1, 1000):
        short = RandomFirstEpisodeLength(
            LevelSeeds(Ten(), num_levels=num_levels), max_length=9, num_episodes=20
        )
        noisy = CorrelatedActionNoise(LevelSeeds(Ten(box), num_levels=num_levels))
        lengths, noise = [], []
        for seed in [3, *[None] * 19, 3, 4]:
            lengths.append(play(short, seed)[0])
            noisy.reset(seed=seed)
            noisy.step(np.zeros(1, np.float32))
            noise.append(noisy.unwrapped.done.item())
        assert len(set(lengths[:20])) > 4
        assert len(set(noise[:20])) == 20
        assert (lengths[20], noise[20]) == (lengths[0], noise[0])
        assert noise[21] != noise[0]
        assert len({play(short, seed)[0] for seed in range(20)}) > 4


# Resume


def wrapped(*wrappers):
    box = spaces.Box(np.float32([-1, -1]), np.float32([1, 1]))

    def build():
        env = Ten(box)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return build


SHORT = functools.partial(RandomFirstEpisodeLength, max_length=9, num_episodes=2)
LEVELS = functools.partial(LevelSeeds, num_levels=5)
STACKS = {
    "noise": [CorrelatedActionNoise, ActionObservation],
    "short": [SHORT],
    "levels": [LEVELS],
    "levels, short": [LEVELS, SHORT],
    "levels, noise": [LEVELS, CorrelatedActionNoise],
}


@pytest.mark.parametrize("num_steps", [3, 11, 31, 58])
@pytest.mark.parametrize("name", STACKS)
def test_open_episodes_continue_to_the_bit(name, num_steps):
    assert continued(of_class(wrapped(*STACKS[name])), num_steps) == {}
    if name == "levels":
        tasks = [wrapped(CorrelatedActionNoise), wrapped()]
        assert continued(of_class(lambda: TaskMixture(tasks)), num_steps) == {}


def test_a_level_is_brought_back_though_the_weights_are_others_now():
    create = of_class(wrapped(LEVELS), seed=5, env_info_keys=["level"])
    with create() as env, create() as other:
        env.reset()
        for i in range(200):
            if i in (50, 187):
                env.set_attribute("set_level_weights", [i, 0, 1, 0, 1])
            step = env.step(torch.zeros(3, 2))
        other.set_attribute("set_level_weights", [187, 0, 1, 0, 1])
        assert other.restore_episodes(env.episode_state(), 77) == {}
        for _ in range(40):
            step, again = (e.step(torch.zeros(3, 2)) for e in (env, other))
            assert torch.equal(step.env_info["level"], again.env_info["level"])
            assert torch.equal(step.observation, again.observation)


class CountingEnv(gymnasium.Env):
    """Rewards are 1, 2, 3, … in two parts; the fifth step ends the episode."""

    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.actions = []
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.actions.append(action)
        n = len(self.actions)
        reward = np.array([n, -n], np.float64)
        return np.full(1, n, np.float32), reward, n == 5, False, {"n": n}


def test_an_action_is_repeated_and_the_rewards_are_summed():
    env = ActionRepeat(CountingEnv(), num_repeats=3)
    env.reset()
    observation, reward, terminated, _, info = env.step(1)
    assert (observation[0], reward.tolist(), terminated) == (3.0, [6.0, -6.0], False)
    observation, reward, terminated, _, info = env.step(0)
    assert (observation[0], reward.tolist(), terminated) == (5.0, [9.0, -9.0], True)
    assert info == {"n": 5}
    assert env.unwrapped.actions == [1, 1, 1, 0, 0]
    env.reset()
    assert env.step(1)[1].tolist() == [6.0, -6.0]
    for number in (0, 2.0):
        with pytest.raises(ConfigError, match="positive integer"):
            ActionRepeat(CountingEnv(), num_repeats=number)
