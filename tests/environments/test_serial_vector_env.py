"""Environments that are stepped one after the other, compared with gymnasium's own."""

from __future__ import annotations

import functools
import gc

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.serial_vector_env import SerialVectorEnv
from alf_lite.environments.single_env import environment_seeds
from alf_lite.errors import ConfigError, EnvError
from alf_lite.testing.fault_environment import FaultEnv
from alf_lite.testing.structured_environments import (
    CountingEnv,
    NestedEnv,
    VectorRewardEnv,
)


def make(env_id="CartPole-v1", **kwargs):
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs)


def test_it_steps_bit_for_bit_as_gymnasiums_own():
    fns = [functools.partial(make, max_episode_steps=25)] * 3
    ours, theirs = SerialVectorEnv(fns), gymnasium.vector.SyncVectorEnv(fns)
    seeds = environment_seeds(7, 3)
    observation, _ = ours.reset(seed=7)
    expected, _ = theirs.reset(seed=seeds)
    assert np.array_equal(observation, expected)
    rng = np.random.default_rng(0)
    num_ends = 0
    for _ in range(200):
        action = rng.integers(0, 2, 3)
        results, expected = ours.step(action), theirs.step(action)
        for one, two in zip(results[:4], expected[:4], strict=True):
            assert one.dtype == two.dtype
            assert np.array_equal(one, two)
        num_ends += int((results[2] | results[3]).sum())
    assert num_ends > 10


def test_nested_spaces_are_stepped_as_gymnasium_does():
    fns = [NestedEnv] * 2
    ours, theirs = SerialVectorEnv(fns), gymnasium.vector.SyncVectorEnv(fns)
    ours.reset(seed=[1, 2])
    theirs.reset(seed=[1, 2])
    for _ in range(6):
        action = ours.action_space.sample()
        mine, expected = ours.step(action), theirs.step(action)
        assert np.array_equal(mine[0]["target"], expected[0]["target"])
        assert np.array_equal(mine[0]["state"][0], expected[0]["state"][0])
        flags = mine[0]["state"][1]["flags"]
        assert np.array_equal(flags, expected[0]["state"][1]["flags"])
        assert np.array_equal(mine[1], expected[1])


def test_the_step_after_an_end_is_the_reset_and_ignores_its_action():
    env = SerialVectorEnv([functools.partial(CountingEnv, (2,))] * 2)
    env.reset(seed=0)
    rows = [env.step(np.zeros(2, int)) for _ in range(5)]
    assert [row[0][0, 0].item() for row in rows] == [1, 2, 100, 101, 102]
    assert [row[1][0].item() for row in rows] == [1, 1, 0, 1, 1]
    assert [row[2][0].item() for row in rows] == [False, True, False, False, True]


def test_there_are_flags_where_an_episode_has_ended_only():
    fns = [functools.partial(CountingEnv, (length,)) for length in (2, 4)]
    env = SerialVectorEnv(fns)
    env.reset(seed=0)
    ends = [env.take_step(np.zeros(2, int))[2] for _ in range(4)]
    assert [end is None for end in ends] == [True, False, True, False]
    assert ends[1][0].tolist() == [True, False]
    assert ends[3][0].tolist() == [False, True]


@pytest.mark.parametrize("flag", [bool, np.bool_, np.array])
@pytest.mark.parametrize("number", [float, int, np.float32, np.float64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_environment_steps_as_one_of_several(flag, number, dtype):
    class Odd(CountingEnv):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            flags = flag(terminated), flag(truncated)
            return observation.astype(dtype), number(reward), *flags, info

    def steps(num_envs: int) -> list:
        env = SerialVectorEnv([functools.partial(Odd, (3,))] * num_envs)
        found = [env.reset(seed=0)[0]]
        for _ in range(9):
            found += env.step(np.zeros(num_envs, int))[:4]
        return found

    for one, several in zip(steps(1), steps(2), strict=True):
        assert one.dtype == several.dtype
        assert one.tolist() == several[:1].tolist()


def test_rewards_may_have_several_parts():
    env = SerialVectorEnv([functools.partial(VectorRewardEnv, 3, 2)] * 2)
    env.reset(seed=0)
    assert env.step(np.array([0, 2]))[1].tolist() == [[1, 0, 0], [0, 0, 1]]
    env.step(np.array([0, 2]))
    assert env.step(np.array([0, 2]))[1].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_infos_hold_the_declared_keys_and_their_masks():
    keys = InfoKeys(["step", "episode"])
    env = SerialVectorEnv([functools.partial(CountingEnv, (2,))] * 2, keys)
    _, infos = env.reset()
    assert infos["episode"].tolist() == [0, 0]
    assert infos["_episode"].tolist() == [True, True]
    infos = env.step(np.zeros(2, int))[4]
    assert infos["step"].tolist() == [1, 1]
    assert infos["_episode"].tolist() == [False, False]


def test_an_environment_that_reuses_its_memory_does_no_harm():
    class InPlace(gymnasium.Env):
        observation_space = spaces.Box(0, 100, (2,))
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.buffer = np.zeros(2, np.float32)
            return self.buffer, {}

        def step(self, action):
            self.buffer += 1
            return self.buffer, 1.0, bool(self.buffer[0] == 3), False, {}

    for n in (1, 2):
        env = SerialVectorEnv([InPlace] * n)
        seen = [env.reset()[0], *[env.step(np.zeros(n, int))[0] for _ in range(5)]]
        assert [float(o[0, 0]) for o in seen] == [0, 1, 2, 3, 0, 1]


def faulty(mode, at_step=3, **kwargs):
    """Environment 1 of 3 has a fault."""
    return SerialVectorEnv(
        [FaultEnv, functools.partial(FaultEnv, mode, at_step, **kwargs), FaultEnv]
    )


def run(env, num_steps=6):
    env.reset(seed=0)
    for _ in range(num_steps):
        env.step(np.zeros(3, int))


@pytest.mark.parametrize("at_step", [0, 3, 5])
def test_an_exception_names_the_environment_and_the_step(at_step):
    with pytest.raises(EnvError) as error:
        run(faulty("raise", at_step))
    message = str(error.value)
    assert message.startswith(f"environment 1, step() at step {at_step + 1} raised")
    assert "RuntimeError: 100% %d {x} \x00 é ☃" in message
    assert "Traceback (most recent call last)" in message
    assert "fault_environment.py" in message
    assert isinstance(error.value.__cause__, RuntimeError)


def test_an_exception_whose_message_fails_is_still_reported():
    with pytest.raises(EnvError, match="UnprintableError"):
        run(faulty("raise_unprintable"))


def test_an_environment_cannot_end_the_program_silently():
    with pytest.raises(EnvError, match=r"environment 1.*SystemExit: 0"):
        run(faulty("system_exit"))


@pytest.mark.parametrize("where", ["reset", "constructor"])
def test_failures_of_other_calls_say_which_call(where):
    with pytest.raises(EnvError, match=rf"environment 1.*{where}.*RuntimeError"):
        run(faulty("raise", 0, where=where))


def test_a_later_reset_that_fails_is_called_a_reset():
    env = faulty("raise", 2, where="reset", episode_length=3)
    with pytest.raises(EnvError, match=r"environment 1, reset\(\) at step 4 raised"):
        run(env)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("short_observation", r"observation: expected float32 of shape \(4,\) for Box"),
        ("long_observation", r"got float32 of shape \(5,\)"),
        ("scalar_observation", r"got float32 of shape \(\)"),
        ("transposed_observation", r"got float32 of shape \(1, 4\)"),
        ("none_observation", "got NoneType None"),
        ("object_observation", "got object of shape"),
        ("complex_observation", "got complex128"),
        ("text_observation", "got <U"),
        ("missing_key", r"missing \['b'\]"),
        ("old_api", "the old Gym API|The old Gym API"),
        ("array_reward", r"reward: expected float64.*got float64 of shape \(1,\)"),
        ("text_reward", "reward: expected.*got str '1.0'"),
        ("none_reward", "reward: expected.*got NoneType"),
        ("text_terminated", "terminated: expected bool.*got str 'no'"),
    ],
)
def test_results_that_contradict_the_spaces_name_environment_and_path(mode, message):
    if mode == "missing_key":
        fns = [functools.partial(FaultEnv, mode, at, None) for at in (99, 3, 99)]
        env = SerialVectorEnv(fns)
    else:
        env = faulty(mode)
    with pytest.raises(EnvError, match=message) as error:
        run(env)
    assert str(error.value).startswith("environment 1, step() at step 4:")


def test_wrong_keys_at_a_reset_and_infos_that_are_no_dicts_are_found():
    class ExtraKey(FaultEnv):
        def reset(self, *, seed=None, options=None):
            observation, info = super().reset(seed=seed)
            return {**observation, "c": 0}, info

    env = SerialVectorEnv([functools.partial(ExtraKey, "extra_key", 99)])
    with pytest.raises(EnvError, match=r"environment 0, reset\(\).*\['c'\]"):
        env.reset()
    with pytest.raises(EnvError, match=r"environment 1.*info is NoneType"):
        run(faulty("none_info", 0))


def test_a_reset_of_the_old_api_names_the_rule():
    class OldReset(FaultEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0]

    with pytest.raises(EnvError, match=r"must return \(observation, info\)"):
        SerialVectorEnv([OldReset]).reset()


@pytest.mark.parametrize(
    "mode", ["double_observation", "integer_observation", "list_observation"]
)
def test_numbers_of_other_types_are_converted(mode):
    env = faulty(mode, 2)
    env.reset()
    for t in range(1, 5):
        observation = env.step(np.zeros(3, int))[0]
        assert observation.dtype == np.float32
        assert (observation == t).all()


def test_environments_that_disagree_are_named_with_both_spaces():
    other = functools.partial(make, "Acrobot-v1")
    with pytest.raises(EnvError, match="disagree on the observation space") as error:
        SerialVectorEnv([make, make, other])
    assert "environment 2 has Box" in str(error.value)


def test_things_that_are_no_environments_are_refused():
    with pytest.raises(ConfigError, match=r"environment 1.*expected a gymnasium.Env"):
        SerialVectorEnv([make, dict])


def test_a_failed_construction_closes_what_was_built():
    closed = []

    class Closing(FaultEnv):
        def close(self):
            closed.append(self)

    with pytest.raises(EnvError):
        SerialVectorEnv([Closing, Closing, functools.partial(make, "CartPole-v1", x=1)])
    assert len(closed) == 2


def test_an_environment_that_cannot_be_closed_does_not_keep_the_others_open():
    env = SerialVectorEnv([functools.partial(FaultEnv, "close_raises"), FaultEnv])
    with pytest.warns(UserWarning, match=r"close\(\) of environment 0 raised"):
        env.close()
    env.close()


def test_an_old_api_environment_that_also_returns_five_things_elsewhere_is_isolated():
    # The result of another environment must not be taken for that of the faulty one.
    fns = [FaultEnv, functools.partial(FaultEnv, "raise", 1)]
    env = SerialVectorEnv(fns)
    env.reset()
    env.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=r"environment 1.*RuntimeError"):
        env.step(np.zeros(2, int))


def test_the_number_of_seeds_must_fit():
    with pytest.raises(ValueError, match="expected 2 seeds, got 1"):
        SerialVectorEnv([make] * 2).reset(seed=[1])


# One object in two places


def limited(env):
    return gymnasium.wrappers.TimeLimit(env, 5)


def test_an_environment_that_is_made_twice_is_named_also_below_wrappers():
    shared = CountingEnv()
    for second in (lambda: shared, lambda: limited(shared)):
        with pytest.raises(
            EnvError, match="environment 2 of 3 is the same CountingEnv "
        ):
            SerialVectorEnv([CountingEnv, lambda: shared, second])


@pytest.mark.ci
def test_an_environment_of_an_open_batch_is_refused_and_stays_open():
    closed = []

    class Closing(FaultEnv):
        def close(self):
            closed.append(self)

    shared = Closing()
    batch = SerialVectorEnv([FaultEnv, lambda: shared])
    with pytest.raises(EnvError, match="environment 1 of another batch"):
        SerialVectorEnv([lambda: limited(shared)])
    assert not closed
    batch.close()
    other = SerialVectorEnv([lambda: shared])
    del other, batch
    gc.collect()
    SerialVectorEnv([lambda: shared]).reset()


def test_a_new_environment_of_the_open_batch_counts_after_a_failure():
    built = []

    def make_failing():
        built.append(FaultEnv("raise", 1))
        return built[-1]

    batch = SerialVectorEnv(
        [make_failing], num_retries=2, renew_fns=[make_failing], info_keys=None
    )
    batch.reset()
    for _ in range(3):
        batch.step(np.zeros(1, int))
    first, last = built[0], built[-1]
    assert first is not last
    SerialVectorEnv([lambda: first])  # is closed, and belongs to nobody
    with pytest.raises(EnvError, match="of another batch"):
        SerialVectorEnv([lambda: last])


@pytest.mark.parametrize("num_envs", [1, 2])
def test_what_is_closed_says_so(num_envs):
    env = SerialVectorEnv([make] * num_envs)
    env.reset(seed=0)
    env.step(np.zeros(num_envs, int))
    env.close()
    for call in (env.reset, lambda: env.step(np.zeros(num_envs, int))):
        with pytest.raises(EnvError, match="these environments are closed"):
            call()
