"""The faulty environment fails when, where and how it is told to, and only then."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from alf_lite.testing.fault_environment import HARD_MESSAGE, RESULTS, FaultEnv


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on spec and rendering
def test_without_a_fault_it_is_a_proper_environment():
    check_env(FaultEnv(), skip_render_check=True)


def observations(env, num_steps):
    return [env.step(0)[0] for _ in range(num_steps)]


def test_the_fault_happens_from_one_step_until_another():
    env = FaultEnv("nan_observation", 2, until=4)
    env.reset()
    assert [bool(np.isnan(o).any()) for o in observations(env, 6)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_steps_are_counted_over_episodes():
    env = FaultEnv("raise", 3, episode_length=2)
    env.reset()
    observations(env, 2)
    env.reset()
    observations(env, 1)
    with pytest.raises(RuntimeError) as error:
        env.step(0)
    assert str(error.value) == HARD_MESSAGE


@pytest.mark.parametrize("where", ["constructor", "reset"])
def test_it_fails_in_other_calls_too(where):
    make = functools.partial(FaultEnv, "raise", where=where)
    with pytest.raises(RuntimeError):
        make().reset()
    if where == "reset":
        make()


def test_only_one_instance_fails_and_steps_are_counted_over_instances(tmp_path):
    make = functools.partial(
        FaultEnv, "none_reward", 3, instance=1, state_dir=str(tmp_path)
    )
    first, second = make(), make()
    first.reset()
    second.reset()
    assert [first.step(0)[1] for _ in range(2)] == [1, 1]
    assert [second.step(0)[1] for _ in range(3)] == [1, None, None]
    assert first.step(0)[1] == 1


@pytest.mark.parametrize("mode", sorted(RESULTS))
def test_every_wrong_result_differs_from_the_right_one(mode):
    wrong, right = FaultEnv(mode), FaultEnv(mode, 99)
    wrong.reset()
    right.reset()
    assert repr(wrong.step(0)) != repr(right.step(0))


def test_unknown_modes_and_instances_without_a_place_to_count_are_refused():
    with pytest.raises(ValueError, match="got 'explode', expected one of"):
        FaultEnv("explode")
    with pytest.raises(ValueError, match="instance needs state_dir"):
        FaultEnv("raise", instance=1)
