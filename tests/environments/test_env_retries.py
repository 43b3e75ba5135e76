"""Environments that fail are begun anew, and nothing made up is trained."""

from __future__ import annotations

import functools
import logging

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import alf_lite
from alf_lite import nest
from alf_lite.data_structures import StepType
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError, EnvError
from alf_lite.policies.evaluator import evaluate
from alf_lite.tools.collector import NumSteps, RandomPolicy, collect

FIRST, MID, LAST = map(int, (StepType.FIRST, StepType.MID, StepType.LAST))
built: list[Shaky] = []


class Shaky(gymnasium.Env):
    """Observes which episode it is and which step; every third episode fails.

    Args:
        fails_at: in the episodes 1, 4, 7, ..., the step that raises.
        length: of the others.
    """

    observation_space = spaces.Box(-1.0, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fails_at: int = 3, length: int = 5) -> None:
        built.append(self)
        self._number = len(built)
        self._fails_at, self._length = fails_at, length
        self._episode = 0
        self.level = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode += 1
        self._time = 0
        if self._fails_at < 0 and self._episode % 3 == 1 and self._episode > 1:
            raise ConnectionError("the simulator is gone")
        return self._observation(), {}

    def step(self, action):
        self._time += 1
        if self._time == self._fails_at and self._episode % 3 == 1:
            raise ConnectionError("the simulator is gone")
        is_end = self._time == self._length
        return self._observation(), 1.0, is_end, False, {}

    def close(self):
        self._number = -1

    def _observation(self):
        return np.array([self._number, self._episode, self._time], np.float32)


@pytest.fixture(autouse=True)
def _none_built():
    built.clear()


def make(num=2, env_retries=1, fails_at=3, **kwargs):
    return create_environment(
        **{"env_ctor": functools.partial(Shaky, fails_at), **kwargs},
        num_parallel_environments=num,
        env_retries=env_retries,
        seed=0,
    )


def steps_of(env, number):
    """Step types [T] and observations [T, 3] of the first environment."""
    steps = [env.reset()]
    for _ in range(number):
        steps.append(env.step(torch.zeros(env.batch_size, dtype=torch.int64)))
    types = [int(step.step_type[0]) for step in steps]
    return types, np.array([step.observation[0].tolist() for step in steps])


@pytest.mark.parametrize("num", [1, 2])
def test_the_step_that_fails_is_the_first_one_of_a_new_episode(num, caplog):
    with make(num) as env, caplog.at_level(logging.WARNING):
        types, observations = steps_of(env, 9)
        # Two steps, then a new episode, which has all five.
        assert types == [FIRST, MID, MID, FIRST, MID, MID, MID, MID, LAST, FIRST]
        assert observations[:, 1].tolist() == [1] * 3 + [2] * 6 + [3]
        assert env.num_restarts == num
    (record, *_) = caplog.messages
    assert "environment 0, step() at step 3 raised ConnectionError: the sim" in record
    assert "it is reset (1 of 1 times" in record
    assert "\n" not in record
    assert len(caplog.messages) == num


def test_one_can_be_built_anew_and_keeps_what_was_set():
    with make(1, env_retry_type="renew") as env:
        env.reset()
        env.set_attribute("level", 3)
        for _ in range(3):
            time_step = env.step(torch.zeros(1, dtype=torch.int64))
        assert time_step.observation.tolist() == [[2.0, 1.0, 0.0]]
        assert [one._number for one in built] == [-1, 2]
        assert built[1].level == 3
        # The seed fixes the new one, too.
        assert built[1]._np_random_seed not in (None, built[0]._np_random_seed)


@pytest.mark.parametrize("fails_at", [1, 3])
def test_too_many_failures_in_a_row_are_an_error(fails_at):
    env = make(1, env_retries=2, fails_at=fails_at, env_retry_type="renew")
    env.reset()  # the first episode of each new one fails
    with pytest.raises(EnvError, match=r"environment 0, step\(\) .*simulator is gone"):
        for _ in range(20):
            env.step(torch.zeros(1, dtype=torch.int64))
    assert env.num_restarts == 2
    env.close()
    # Reset, episodes end in between: that goes on for ever.
    with make(1, env_retries=1, fails_at=3) as env:
        steps_of(env, 60)
        assert env.num_restarts > 3


def test_a_reset_that_fails_is_tried_again():
    with make(1, fails_at=-1) as env:
        types, observations = steps_of(env, 40)
    assert types.count(FIRST) == 7
    assert 4 not in observations[:, 1]
    with pytest.raises(EnvError, match=r"reset\(\) at step .* simulator is gone"):
        steps_of(make(1, env_retries=0, fails_at=-1), 40)


@pytest.mark.parametrize("fails_at", [1, 3])
@pytest.mark.parametrize("algorithm", ["PPOAlgorithm", "DqnAlgorithm"])
def test_nothing_is_trained_on_what_failed(algorithm, fails_at):
    """All rewards are 1 and observations count: other transitions would be seen."""
    env = make(3, fails_at=fails_at)
    settings = {"num_iterations": 20, "unroll_length": 7, "mini_batch_size": 8}
    if algorithm == "DqnAlgorithm":
        settings["initial_collect_steps"] = 0
    config = alf_lite.TrainerConfig(**settings)
    agent = getattr(alf_lite, algorithm)(env=env, config=config)
    for _ in range(6):
        check_transitions(agent.unroll(7).time_step)
    assert env.num_restarts >= 3
    # Episodes that were given up are no returns.
    assert agent.metrics.results()["AverageReturn"] == 5.0
    for _ in range(4):
        agent.train_iter()
    if agent.replay_buffer is not None:
        stored, _ = agent.replay_buffer.gather_all()
        steps = nest.map_structure(lambda t: t.transpose(0, 1), stored.time_step)
        assert len(steps.step_type) > 50
        check_transitions(steps)
    env.close()


def check_transitions(steps):
    """[T, B] of them: what follows a step that is not LAST is what the environment did.

    One episode, one step more, a reward of 1.
    """
    trained = steps.step_type[:-1] != LAST
    assert trained.any()
    change = steps.observation[1:] - steps.observation[:-1]
    assert (change[trained] == torch.tensor([0.0, 0.0, 1.0])).all()
    assert (steps.reward[1:][trained] == 1).all()
    assert (
        steps.discount[:-1][~trained & (steps.observation[:-1, :, 2] < 5)] == 1
    ).all()


def test_evaluations_and_recordings_go_on():
    config = alf_lite.TrainerConfig(unroll_length=4, mini_batch_size=4)
    with make(2) as env:
        agent = alf_lite.PPOAlgorithm(env=env, config=config)
        with make(2) as other:
            assert evaluate(agent, other, 8, seed=0).returns == [5.0] * 8
        buffer = collect(env, RandomPolicy(env), NumSteps(40))
    recorded, _ = buffer.gather_all()
    check_transitions(
        nest.map_structure(lambda t: t.transpose(0, 1), recorded.time_step)
    )
    assert env.num_restarts >= 2


class Noise(gymnasium.Env):
    """Observes random numbers; fails once, at the third step of the program."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        Noise.num_steps += 1
        if Noise.num_steps == 3:
            raise ConnectionError
        return self._observation(), 0.0, False, False, {}

    def _observation(self):
        return self.np_random.random(2, np.float32)


@pytest.mark.parametrize("kind", ["reset", "renew"])
def test_an_episode_that_began_after_a_failure_is_resumed_to_the_bit(kind):
    options = {"env_ctor": Noise, "env_retries": 1, "env_retry_type": kind}
    Noise.num_steps = 0
    action = torch.zeros(1, dtype=torch.int64)
    with create_environment(seed=3, **options) as env:
        env.reset()
        for _ in range(6):
            env.step(action)
        assert env.num_restarts == 1
        state = env.episode_state()
        with create_environment(**options) as other:
            assert other.restore_episodes(state, seed=1) == {}
            for _ in range(3):
                expected, found = env.step(action), other.step(action)
                assert expected.observation.equal(found.observation)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env_retries": -1}, "0 or more, got -1"),
        ({"env_retries": True}, "0 or more, got True"),
        ({"env_retries": 1, "env_retry_type": "again"}, "'reset' or, .* got 'again'"),
        ({"env_retries": 0, "env_retry_type": "renew"}, "with env_retries, 'renew'"),
        ({"vectorization_mode": "async"}, "='sync', not for 'async'"),
        ({"env_ctor": lambda: gymnasium.make_vec("CartPole-v1")}, "returned a batch"),
    ],
)
def test_retries_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        make(1, **arguments)
