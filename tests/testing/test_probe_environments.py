"""The probe environments have the values that their docstrings claim."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from alf_lite.testing.probe_environments import (
    DiscountEnv,
    IdentityEnv,
    ObservationPolicyEnv,
    ObservationValueEnv,
    PolicyEnv,
    TimeLimitEnv,
    ValueEnv,
)

PROBES = [
    ValueEnv,
    ObservationValueEnv,
    DiscountEnv,
    PolicyEnv,
    ObservationPolicyEnv,
    TimeLimitEnv,
]
KINDS = ["discrete", "continuous"]


def episode(env, policy, seed=None):
    """(observations, rewards, terminated) of one episode."""
    observation, _ = env.reset(seed=seed)
    observations, rewards = [observation], []
    while True:
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        observations.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            return observations, rewards, terminated


def act(kind, sign):
    """The action that a sign asks for."""
    if kind == "discrete":
        return np.int64(sign > 0)
    return np.array([0.5 * sign], np.float32)


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on spec and rendering
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("env_class", PROBES)
def test_they_are_proper_environments(env_class, kind):
    check_env(env_class(kind), skip_render_check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_no_action_changes(kind):
    def policy(observation):
        return act(kind, -1)

    _, rewards, terminated = episode(ValueEnv(kind), policy)
    assert (rewards, terminated) == ([1], True)
    env, seen = ObservationValueEnv(kind), set()
    for seed in range(20):
        observations, rewards, terminated = episode(env, policy, seed)
        assert rewards == [observations[0][0]]
        assert terminated
        seen.add(rewards[0])
    assert seen == {-1, 1}
    observations, rewards, terminated = episode(DiscountEnv(kind), policy)
    assert [o[0] for o in observations[:2]] == [0, 1]
    assert (rewards, terminated) == ([0, 1], True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_policy_earns_one_and_others_less(kind):
    for seed in range(5):
        assert episode(PolicyEnv(kind), lambda o: act(kind, 1), seed)[1] == [1]
        assert episode(PolicyEnv(kind), lambda o: act(kind, -1), seed)[1][0] <= 0
        env = ObservationPolicyEnv(kind)
        assert episode(env, lambda o: act(kind, o[0]), seed)[1] == [1]
        assert episode(env, lambda o: act(kind, -o[0]), seed)[1][0] <= 0


def test_the_time_limit_truncates():
    _, rewards, terminated = episode(TimeLimitEnv(episode_length=5), lambda o: 0)
    assert rewards == [1] * 5
    assert not terminated


SPACES = [
    spaces.Discrete(3, start=-1),
    spaces.Box(-2, 3, (2,)),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary((2, 2)),
    spaces.Dict(
        {"a": spaces.Tuple((spaces.Discrete(2),)), "b": spaces.Box(0, 1, (1,))}
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_repeating_the_observation_is_the_best_policy_of_the_identity_task(space):
    env = IdentityEnv(space, episode_length=3)
    _, rewards, terminated = episode(env, lambda o: o, seed=0)
    assert rewards == [1, 1, 1]
    assert terminated
    random = [
        r for s in range(20) for r in episode(env, lambda o: space.sample(), s)[1]
    ]
    assert max(random) <= 1
    assert np.mean(random) < 0.9


def test_the_reward_of_the_identity_task_falls_with_the_distance():
    env = IdentityEnv(spaces.Box(-2, 2, (2,)))
    observation, _ = env.reset(seed=0)
    shifted = np.clip(observation + np.array([0.4, 0]), -2, 2).astype(np.float32)
    distance = np.abs(shifted - observation).mean() / 4
    assert env.step(shifted)[1] == pytest.approx(1 - distance)
    with pytest.raises(ValueError, match="is not in Box"):
        env.step(np.array([5, 5], np.float32))
