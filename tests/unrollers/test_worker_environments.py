"""The environments of unroll workers, as the trainer and as a worker has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from alf_lite.data_transformers.hindsight import reward_function_of
from alf_lite.environments.creation import create_environment
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.processes.child_main import StopRequested
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.goal_environment import PointGoalEnv
from alf_lite.testing.structured_environments import CountingEnv
from alf_lite.unrollers import unroll_worker
from alf_lite.unrollers.unroll_worker import WorkerEnvironment

ACTION = torch.zeros(2, dtype=torch.int64)


# In the trainer


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


def test_the_remote_one_is_as_large_as_all_workers_and_else_like_one_of_them(original):
    env = RemoteEnvironment(original, 3, b"recipe", "a.module")
    assert env.batch_size == 6
    assert env.observation_spec == original.observation_spec
    assert env.action_spec == original.action_spec
    assert env.reward_spec == original.reward_spec
    assert env.env_info_spec == original.env_info_spec
    assert type(env.recorded_values) is type(original.recorded_values)
    assert env.metadata == original.metadata
    assert env.name == original.name
    assert (env.recipe, env.recipe_module) == (b"recipe", "a.module")


def test_the_remote_one_says_who_steps_it(original):
    env = RemoteEnvironment(original, 1)
    for call in (
        env.reset,
        lambda: env.step(torch.zeros(2, 3)),
        lambda: env.current_time_step,
    ):
        with pytest.raises(RuntimeError, match="stepped by unroll workers, not by"):
            call()


def test_the_specs_remain_when_the_original_is_released(original):
    env = RemoteEnvironment(original, 2)
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
    env = RemoteEnvironment(original, 2)
    compute_reward = reward_function_of(env)
    env.release()
    assert original.num_closed == 0
    goals = torch.zeros(4, 3)
    assert compute_reward(goals, goals).tolist() == [0, 0, 0, 0]
    assert compute_reward(goals, goals + 1).tolist() == [-1, -1, -1, -1]
    env.close()
    assert original.num_closed == 1


# In a worker


class Clock:
    """Stands for the module ``time``: sleeping takes as long as it should."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []
        self.after_nap = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds
        self.after_nap()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(unroll_worker, "time", clock)
    return clock


def build(*, first_env_id=0, step_interval=0.0, num_environments=2):
    original = create_environment(
        env_ctor=CountingEnv, num_parallel_environments=num_environments, seed=0
    )
    heartbeat, stop = np.zeros(1, np.int64), np.zeros(1, np.int64)
    env = WorkerEnvironment(
        original,
        first_env_id=first_env_id,
        step_interval=step_interval,
        heartbeat=heartbeat,
        stop=stop,
    )
    return env, original, heartbeat, stop


class TestWorkerEnvironment(EnvironmentContract):
    is_random = False

    def make(self, num_environments, seed):
        return build(num_environments=num_environments)[0]


def test_a_worker_has_what_the_original_is_but_for_the_ids():
    env, original, _, _ = build(first_env_id=6)
    assert env.batch_size == original.batch_size
    assert env.observation_spec == original.observation_spec
    assert env.action_spec == original.action_spec
    assert env.reward_spec == original.reward_spec
    assert env.env_info_spec == original.env_info_spec
    assert env.name == original.name
    for time_step in (env.reset(seed=3), env.step(ACTION), env.current_time_step):
        assert time_step.env_id.tolist() == [6, 7]
        assert time_step.env_id.dtype == torch.int32
    observation = original.current_time_step.observation
    torch.testing.assert_close(env.current_time_step.observation, observation)
    env.close()


def test_every_reset_and_step_is_a_heartbeat():
    env, _, heartbeat, _ = build()
    env.reset()
    assert heartbeat.tolist() == [1]
    for _ in range(4):
        env.step(ACTION)
    assert heartbeat.tolist() == [5]


def test_the_trainer_learns_of_environments_that_were_begun_anew(monkeypatch):
    env, original, _, _ = build()
    assert env.num_restarts == 0
    monkeypatch.setattr(type(original), "num_restarts", 3)
    assert env.num_restarts == 3
    report = unroll_worker.UnrollReport(2, 5, True, 0.5, 1.0)
    for told in (report, report._replace(is_first=False, may_have_restarts=False)):
        assert unroll_worker.UnrollReport.unpack(told.pack()) == told


def test_a_step_that_fails_is_no_heartbeat():
    env, original, heartbeat, _ = build()
    env.reset()
    original.close()

    def fail(action):
        raise RuntimeError("broken")

    original.step = fail
    with pytest.raises(RuntimeError, match="broken"):
        env.step(ACTION)
    assert heartbeat.tolist() == [1]


def test_a_request_to_stop_is_heard_before_the_next_step():
    env, original, heartbeat, stop = build()
    env.reset()
    before = original.current_time_step
    stop[0] = 1
    with pytest.raises(StopRequested):
        env.step(ACTION)
    assert original.current_time_step is before
    assert heartbeat.tolist() == [1]
    assert not issubclass(StopRequested, Exception)  # "except Exception" lets it pass


def test_steps_keep_their_distance(clock):
    env, _, _, _ = build(step_interval=0.05)
    env.reset()
    times = []
    for _ in range(5):
        env.step(ACTION)
        times.append(clock.now)
        clock.now += 0.02  # the policy
    np.testing.assert_allclose(np.diff(times), 0.05)


def test_what_is_slower_than_the_interval_never_waits(clock):
    env, _, _, _ = build(step_interval=0.05)
    env.reset()
    for _ in range(5):
        env.step(ACTION)
        clock.now += 0.06
    assert clock.naps == []


def test_ticks_that_were_missed_are_not_made_up_for(clock):
    env, _, _, _ = build(step_interval=0.05)
    env.reset()
    env.step(ACTION)
    clock.now += 3.0
    times = []
    for _ in range(4):
        env.step(ACTION)
        times.append(clock.now)
    assert times[0] == 1003
    np.testing.assert_allclose(np.diff(times), 0.05)


def test_without_an_interval_nobody_looks_at_the_clock(clock):
    env, _, heartbeat, _ = build()
    env.reset()
    clock.monotonic = None
    env.step(ACTION)
    assert heartbeat[0] == 2
    assert not clock.naps


def test_a_request_to_stop_is_heard_in_a_long_wait(clock):
    env, _, heartbeat, stop = build(step_interval=60.0)
    env.reset()
    env.step(ACTION)

    def stop_after_three():
        if len(clock.naps) == 3:
            stop[0] = 1

    clock.after_nap = stop_after_three
    with pytest.raises(StopRequested):
        env.step(ACTION)
    assert len(clock.naps) == 3
    assert max(clock.naps) <= 0.1
    assert heartbeat.tolist() == [2]
