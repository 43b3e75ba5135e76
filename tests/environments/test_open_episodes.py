"""Open episodes come back in another batch of environments, or it is said where not."""

from __future__ import annotations

import functools
import importlib.util
import io
import random

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.environments import episode_memory
from alf_lite.environments.creation import create_environment
from alf_lite.environments.wrappers import atari_preprocessing
from alf_lite.errors import CheckpointError
from alf_lite.utils.plain_data import check_numbers, to_plain

SEED = 3


class Noise(gymnasium.Env):
    """Draws an observation at every step, and ends after 7; draws from ``_draw``."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def _draw(self):
        return self.np_random.normal(size=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = 0
        return self._draw(), {}

    def step(self, action):
        self._time += 1
        return self._draw() + action, 0.5, False, self._time == 7, {"time": self._time}


class ChangesActions(Noise):
    def step(self, action):
        action *= 2
        return super().step(action)


class OwnGenerator(Noise):
    """As many: ``reset(seed)`` is honoured, but not with ``np_random``."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._own = np.random.default_rng(seed)
        return super().reset(seed=seed)

    def _draw(self):
        return self._own.normal(size=2)


class SaysItsGenerator(OwnGenerator):
    def get_random_state(self):
        return self._own.bit_generator.state

    def set_random_state(self, state):
        self._own.bit_generator.state = state


class Lies(OwnGenerator):
    def get_random_state(self):
        return 1

    def set_random_state(self, state):
        pass


class DrawsGlobally(Noise):
    def _draw(self):
        return np.random.normal(size=2) + random.random()  # noqa: NPY002


class CountsEpisodes(Noise):
    """Keeps something from episode to episode."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action):
        observation, *rest = super().step(action)
        return (observation + self.episodes, *rest)


class HasNestedActions(Noise):
    action_space = spaces.Dict(
        {
            "move": spaces.Box(-1, 1, (2,), np.float32),
            "press": spaces.Tuple(
                (spaces.Discrete(3, start=-1), spaces.MultiBinary(2))
            ),
        }
    )

    def step(self, action):
        press, buttons = action["press"]
        return super().step(action["move"] + press + buttons)


class Breaks(Noise):
    """Fails, or ends earlier, in all but the first environment of a process."""

    built = 0
    how = "raises"

    def __init__(self):
        type(self).built += 1
        self._is_first = self.built == 1

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        if not self._is_first and self.how == "raises":
            raise RuntimeError("the licence has run out")
        ends = not self._is_first and self.how == "ends"
        return observation, reward, ends, truncated, info


def through_a_file(state):
    file = io.BytesIO()
    check_numbers(state, "state")
    torch.save(to_plain(state, "state"), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def actions(env, num_steps, seed=0):
    torch.manual_seed(seed)
    return [
        nest.map_structure(lambda spec: spec.sample((env.batch_size,)), env.action_spec)
        for _ in range(num_steps)
    ]


def assert_same(expected, got):
    for one, other in zip(nest.flatten(expected), nest.flatten(got), strict=True):
        assert one.dtype == other.dtype
        assert one.numpy().tobytes() == other.numpy().tobytes()


def continued(create, num_steps, *, more=20):
    """Steps one batch, lets another continue, and compares what both do then."""
    with create() as env, create() as other:
        env.reset(SEED)
        for action in actions(env, num_steps):
            env.step(action)
        reasons = other.restore_episodes(through_a_file(env.episode_state()), 77)
        if not reasons:
            assert_same(env.current_time_step, other.current_time_step)
            for action in actions(env, more, seed=1):
                assert_same(env.step(action), other.step(action))
            # It can be continued as well.
            assert env.episode_state()["episodes"] == other.episode_state()["episodes"]
        return reasons


def of_class(ctor, **kwargs):
    arguments = {"num_parallel_environments": 3, "env_ctor": ctor, **kwargs}
    return functools.partial(create_environment, "", **arguments)


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"without {missing}")


ENVIRONMENTS = [
    pytest.param("CartPole-v1", {}, [0, 1, 37]),
    pytest.param("Pendulum-v1", {"max_episode_steps": 15}, [14, 15, 16, 50]),
    pytest.param("Acrobot-v1", {}, [30]),
    pytest.param("MountainCarContinuous-v0", {}, [30]),
    pytest.param("FrozenLake-v1", {}, [25]),
    pytest.param("LunarLander-v3", {}, [150], marks=needs("Box2D")),
    pytest.param(
        "HalfCheetah-v5", {"max_episode_steps": 20}, [50], marks=needs("mujoco")
    ),
    pytest.param("Hopper-v5", {}, [60], marks=needs("mujoco")),
    pytest.param(
        "ALE/Pong-v5",
        {"wrappers": [atari_preprocessing], "max_episode_steps": 12},
        [30],
        marks=needs("ale_py", "cv2"),
    ),
]


@pytest.mark.parametrize(("name", "kwargs", "lengths"), ENVIRONMENTS)
def test_episodes_continue_to_the_bit(name, kwargs, lengths):
    create = functools.partial(create_environment, name, 3, 5, **kwargs)
    for length in lengths:
        assert continued(create, length) == {}


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1",
        pytest.param("LunarLander-v3", marks=[needs("Box2D"), pytest.mark.slow]),
        pytest.param("ALE/Breakout-v5", marks=[needs("ale_py"), pytest.mark.slow]),
    ],
)
def test_episodes_in_processes_continue_to_the_bit(name):
    create = functools.partial(
        create_environment, name, 2, 5, vectorization_mode="async"
    )
    # More steps than are sent at once.
    assert continued(create, 300) == {}


@needs("Box2D")
def test_world_that_goes_on_is_known_to_be_no_world_to_return_to():
    create = functools.partial(
        create_environment, "BipedalWalker-v3", 2, 5, max_episode_steps=20
    )
    assert continued(create, 18) == {}
    reasons = continued(create, 30)
    assert reasons.keys() == {0, 1}
    assert "Box2D" in reasons[0]


@pytest.mark.parametrize("ctor", [Noise, ChangesActions, HasNestedActions])
@pytest.mark.parametrize("length", [0, 4, 7, 8, 12])
def test_every_moment_of_an_episode_can_be_continued(ctor, length):
    assert continued(of_class(ctor, env_info_keys=["time"]), length) == {}


def test_environment_can_say_where_its_random_numbers_come_from():
    assert continued(of_class(SaysItsGenerator), 10) == {}
    # The first episode needs only the seed.
    assert continued(of_class(OwnGenerator), 5) == {}


@pytest.mark.parametrize("ctor", [OwnGenerator, Lies])
def test_another_last_step_is_found(ctor):
    reasons = continued(of_class(ctor), 10)
    assert reasons == dict.fromkeys(range(3), "the replay came to another step")


def test_what_is_kept_over_episodes_is_found():
    assert continued(of_class(CountsEpisodes), 10) == {}  # the second, here too
    reasons = continued(of_class(CountsEpisodes), 20)
    assert reasons.keys() == {0, 1, 2}


def test_draws_from_the_global_generators_are_found():
    reasons = continued(of_class(DrawsGlobally), 10)
    assert set(reasons.values()) == {
        "it draws from the global generators of the program"
    }


@pytest.mark.slow
def test_global_generators_are_those_of_a_process_of_its_own():
    in_processes = of_class(
        DrawsGlobally, vectorization_mode="async", num_parallel_environments=2
    )
    assert continued(in_processes, 10) == {}


@pytest.mark.parametrize(
    ("how", "reason"), [("raises", "licence"), ("ends", "earlier")]
)
@pytest.mark.parametrize(
    "mode", ["sync", pytest.param("async", marks=pytest.mark.slow)]
)
def test_replay_that_fails_begins_a_new_episode(monkeypatch, how, reason, mode):
    monkeypatch.setattr(Breaks, "built", 0)
    monkeypatch.setattr(Breaks, "how", how)
    with of_class(Breaks, num_parallel_environments=1)() as env:
        env.reset(SEED)
        for action in actions(env, 4):
            env.step(action)
        state = env.episode_state()
    ctor = Breaks if mode == "sync" else _broken(how)
    other = of_class(ctor, num_parallel_environments=1, vectorization_mode=mode)
    with other() as env:
        reasons = env.restore_episodes(state, 7)
        assert reason in reasons[0]
        assert env.current_time_step.is_first().all()


class BreaksNow(Breaks):
    built = 1


class EndsNow(BreaksNow):
    how = "ends"


def _broken(how):
    return BreaksNow if how == "raises" else EndsNow


def test_only_the_environments_that_differ_begin_anew():
    class SomeLie(SaysItsGenerator):
        number = 0

        def __init__(self):
            type(self).number += 1
            self._lies = self.number % 3 == 2

        def get_random_state(self):
            return 1 if self._lies else super().get_random_state()

        def set_random_state(self, state):
            if not self._lies:
                super().set_random_state(state)

    env, other = of_class(SomeLie)(), of_class(SomeLie)()
    env.reset(SEED)
    for action in actions(env, 10):
        last = env.step(action)
    assert other.restore_episodes(env.episode_state(), 7).keys() == {1}
    step = other.current_time_step
    assert step.step_type.tolist() == [1, 0, 1]
    assert step.observation[[0, 2]].equal(last.observation[[0, 2]])
    assert step.prev_action[[0, 2]].equal(last.prev_action[[0, 2]])
    assert not step.prev_action[1].any()
    # The new episodes have seeds of their own, the same ones every time.
    third = of_class(SomeLie)()
    third.restore_episodes(env.episode_state(), 7)
    assert third.current_time_step.observation.equal(step.observation)
    for action in actions(env, 12, seed=1):
        expected, got = env.step(action), other.step(action)
        assert got.observation[[0, 2]].equal(expected.observation[[0, 2]])
    # 7 steps after its FIRST, the new one has ended, and the next one runs.
    assert got.step_type.tolist() == [1, 1, 1]


def test_memory_of_long_episodes_is_bounded(monkeypatch):
    monkeypatch.setattr(episode_memory, "MAX_STEPS", 64)
    long = functools.partial(create_environment, "Pendulum-v1", 2, 5)
    reasons = continued(functools.partial(long, max_episode_steps=200), 150)
    assert reasons.keys() == {0, 1}
    assert "longer than the 64 steps" in reasons[0]
    assert continued(functools.partial(long, max_episode_steps=40), 150) == {}
    with long(max_episode_steps=1000) as env:
        env.reset(SEED)
        for action in actions(env, 150):
            env.step(action)
        (kept,) = env.episode_state()["actions"]
        assert len(kept) == 0
        log = env._memory._actions
        assert len(log._steps) <= 64
        assert len(env._given) <= 64


def test_others_than_our_own_batches_have_no_state():
    with create_environment("CartPole-v1", 2, vectorization_mode="native") as env:
        env.reset(SEED)
        assert env.episode_state() is None


def test_another_vectorization_mode_begins_anew_and_is_named():
    make = functools.partial(create_environment, "CartPole-v1", 1)
    with make() as env, make(vectorization_mode="async") as other:
        env.reset(SEED)
        reasons = other.restore_episodes(env.episode_state(), 1)
        assert "another vectorization_mode" in reasons[0]
        assert other.current_time_step.step_type.tolist() == [0]


def test_state_of_other_environments_is_refused():
    with create_environment("CartPole-v1", 2) as env:
        env.reset(SEED)
        state = env.episode_state()
        assert env.episode_state()["episodes"] == state["episodes"]
    with (
        create_environment("CartPole-v1", 3) as other,
        pytest.raises(CheckpointError, match="other environments"),
    ):
        other.restore_episodes(state, 1)
    with (
        create_environment("Pendulum-v1", 2) as other,
        pytest.raises(CheckpointError, match="actions of shape"),
    ):
        other.restore_episodes(state, 1)


def test_nothing_can_be_said_before_the_first_reset_and_after_a_failure():
    with of_class(Noise)() as env:
        assert env.episode_state() is None
        env.reset(SEED)
        assert env.episode_state() is not None
    assert env.episode_state() is None
