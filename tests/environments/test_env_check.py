"""Tests of alf_lite.tools.env_check: what it says of faulty environments."""

from __future__ import annotations

import functools
import random
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import alf_lite
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec
from alf_lite.tools.env_check import check_env
from alf_lite.tools.env_report import Episodes, LeafReport, advise
from tests.environments.light_environments import GoodEnv


class NaN(GoodEnv):
    def observe(self):
        return np.full(2, np.nan, np.float32)


class NaNReward(GoodEnv):
    def reward(self):
        return float("nan") if self.steps == 3 else 0.0


class WrongShape(GoodEnv):
    def observe(self):
        return self.np_random.random(3, np.float32)


class Outside(GoodEnv):
    def observe(self):
        return 20 + self.np_random.random(2, np.float32)


class OldStep(GoodEnv):
    def step(self, action):
        return self.observe(), 0.0, False, {}


class NoSpace(GoodEnv):
    observation_space = None


class Unseeded(GoodEnv):
    def observe(self):
        return np.random.default_rng().random(2, np.float32)


class GlobalGenerator(GoodEnv):
    def observe(self):
        return np.full(2, random.random(), np.float32)


class Forgetful(GoodEnv):
    """What one episode leaves behind changes the next one."""

    total = 0

    def observe(self):
        self.total += 1
        return np.full(2, self.total % 7, np.float32)


class EmptyMask(GoodEnv):
    observation_space = spaces.Dict(
        action_mask=spaces.MultiBinary(3), position=GoodEnv.observation_space
    )

    def observe(self):
        mask = np.zeros(3, np.int8)
        mask[1] = self.steps != 3
        return {"action_mask": mask, "position": super().observe()}


class RefusesWhatIsMasked(EmptyMask):
    def observe(self):
        observation = super().observe()
        observation["action_mask"][1] = 1
        return observation

    def step(self, action):
        assert action == 1, "not allowed"
        return super().step(action)


def problems_of(env, **kwargs) -> str:
    report = check_env(env, seconds=0.0, **kwargs)
    assert not report.is_usable
    return "\n".join(report.problems)


@pytest.mark.ci
def test_a_good_environment_is_measured():
    before = np.random.get_state(legacy=True)[1].tolist()  # noqa: NPY002
    report = alf_lite.check_env(GoodEnv, size=5, seconds=0.01)
    assert report.problems == []
    assert report.is_usable
    assert [leaf.path for leaf in report.leaves] == ["observation", "action", "reward"]
    observation, action, _ = report.leaves
    assert observation.bounds == "-10 to 10"
    assert 0 <= observation.seen[0] < observation.seen[1] <= 1
    assert action.bounds == "0 to 2"
    assert set(report.episodes.lengths) == {5}
    assert set(report.episodes.returns) == {5.0}
    assert all(speed > 0 for speed in report.steps_per_second.values())
    assert [how.split(",")[0] for how in report.steps_per_second] == [
        "one environment",
        "sync",
        "async",
    ]
    # step_type, reward, discount, observation, prev_action, env_id
    assert report.bytes_per_step == 4 + 4 + 4 + 2 * 4 + 8 + 4
    text = str(report)
    assert "It can be trained in." in text
    assert "PPO, DQN and SAC take its discrete actions" in text
    assert 'env_info_keys = ["height"]' in text
    assert report.as_json()["leaves"]["observation"]["shape"] == [2]
    # The program's own generators are as they were.
    assert np.random.get_state(legacy=True)[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (NaN, r"observation\[0\] = nan"),
        (NaNReward, "reward = nan"),
        (WrongShape, r"shape"),
        (OldStep, r"\(observation, reward, terminated, truncated, info\)"),
        (NoSpace, "observation_space"),
        (Unseeded, "two environments that were reset with the same seed"),
        (GlobalGenerator, "global generators of numpy or Python"),
        (Forgetful, "does not start all over"),
        (EmptyMask, r"observation\['action_mask'\] allows no action"),
        (functools.partial(GoodEnv, colour="red"), "colour"),
        (lambda: 3, "must return a gymnasium.Env"),
    ],
)
def test_what_is_wrong_is_named(env, message):
    assert re.search(message, problems_of(env)), problems_of(env)


def test_a_function_that_returns_one_object_again_and_again_is_a_problem():
    env = GoodEnv()
    assert "is the same GoodEnv object as environment 0" in problems_of(lambda: env)


@pytest.mark.ci
def test_what_may_be_meant_is_a_warning():
    outside = check_env(Outside, seconds=0.0)
    assert outside.is_usable
    (warning,) = outside.warnings
    assert re.fullmatch(
        r"observation is 20 to 2\d\S*, which leaves the bounds .* -10 to 10", warning
    )
    local = check_env(lambda: GoodEnv(), seconds=0.0)
    assert local.is_usable
    assert any("cannot be stepped in processes" in text for text in local.warnings)
    fixed = check_env("alf_lite.errors:FrozenLake-v1", is_slippery=False, seconds=0.0)
    assert any("two seeds give the same" in text for text in fixed.warnings)


@pytest.mark.ci
def test_only_allowed_actions_are_taken():
    report = check_env(RefusesWhatIsMasked, seconds=0.0)
    assert report.problems == []
    assert any("action_mask_key" in text for text in report.advice)
    taxi = check_env("Taxi-v4", seconds=0.0)
    assert any("ActionMaskFromInfo" in text for text in taxi.advice)


def test_limits_and_wrappers_belong_to_what_is_checked():
    wrapper = gymnasium.wrappers.FlattenObservation
    report = check_env(EmptyMask, wrappers=[wrapper], max_episode_steps=2, seconds=0.0)
    assert report.leaves[0].spec.shape == (5,)
    assert set(report.episodes.lengths) == {2}


def test_what_is_not_there_is_an_error_of_its_own():
    with pytest.raises(ConfigError, match="Did you mean 'CartPole-v1'"):
        check_env("CartPol-v1")
    with pytest.raises(ConfigError, match="give the id, or the class"):
        check_env(GoodEnv())
    with pytest.raises(ConfigError, match="check_env: wrappers must be a list"):
        check_env(GoodEnv, wrappers=gymnasium.wrappers.FlattenObservation)


def test_advice_follows_from_what_was_seen():
    leaves = [
        LeafReport("observation['x']", TensorSpec((3,)), (-300.0, 5.0)),
        LeafReport("reward", TensorSpec(()), (0.0, 100.0)),
    ]
    speeds = {"one environment, …": 900.0, "sync, 8 …": 900.0, "async, 4 …": 3000.0}
    advice = "\n".join(advise(leaves, Episodes([], [], 600), speeds, False))
    for part in ("ObservationNormalizer", "RewardNormalizer", "max_episode_steps"):
        assert part in advice
    assert "'async' is 3.3 times as fast" in advice
