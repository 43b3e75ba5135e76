"""Suites of other people that are made by their ids, where they are installed."""

from __future__ import annotations

import functools

import gymnasium
import pytest
import torch

from alf_lite.environments import create_environment
from alf_lite.environments.mini_grid import MiniGridObservation, MiniGridState
from alf_lite.errors import ConfigError, EnvError
from alf_lite.testing.goal_environment import PointGoalEnv


@pytest.mark.filterwarnings("ignore")  # theirs, of many kinds
@pytest.mark.parametrize(
    ("package", "env_name"),
    [
        ("mujoco", "HalfCheetah-v5"),
        ("dm_control", "shimmy:dm_control/cartpole-balance-v0"),
        ("dm_control", "shimmy:dm_control/walker-walk-v0"),
        ("gymnasium_robotics", "gymnasium_robotics:FetchReach-v4"),
        ("gymnasium_robotics", "gymnasium_robotics:HandReach-v3"),
        ("gymnasium_robotics", "gymnasium_robotics:AdroitHandDoor-v1"),
        ("gymnasium_robotics", "gymnasium_robotics:PointMaze_UMaze-v3"),
        ("mo_gymnasium", "mo_gymnasium:mo-mountaincarcontinuous-v0"),
        ("highway_env", "highway_env:highway-fast-v0"),
    ],
)
def test_it_is_stepped(package, env_name):
    pytest.importorskip(package)
    with create_environment(env_name, 2, 0) as env:
        env.reset()
        for _ in range(3):
            time_step = env.step(env.action_spec.sample((2,)))
        assert time_step.reward.shape == (2, *env.reward_spec.shape)
        assert torch.isfinite(time_step.reward).all()


@pytest.mark.ci
def test_a_mini_grid_is_seen_as_zeros_and_ones():
    pytest.importorskip("minigrid")
    create = functools.partial(
        create_environment, "minigrid:MiniGrid-DoorKey-5x5-v0", 2, 0
    )
    with create(wrappers=[MiniGridObservation]) as env:
        observation = env.reset().observation
        for _ in range(20):
            observation = env.step(env.action_spec.sample((2,))).observation
    cells, direction = observation[:, :-4], observation[:, -4:]
    assert cells.shape == (2, 7 * 7 * (11 + 6 + 4))
    # One object, one colour and one state in each cell.
    assert cells.sum(1).tolist() == [3 * 49.0] * 2
    assert direction.sum(1).tolist() == [1.0, 1.0]


def test_the_state_of_a_mini_grid_follows_what_the_agent_does():
    pytest.importorskip("minigrid")
    env = MiniGridState(gymnasium.make("MiniGrid-DoorKey-5x5-v0"), num_objects=3)
    state, _ = env.reset(seed=1)
    grid = env.unwrapped
    things = [o for o in grid.grid.grid if o is not None and o.type in ("door", "key")]
    names = [thing.type for thing in things]
    key, door = names.index("key"), names.index("door")

    def numbers(state, i):
        return state[14 + 5 * i : 19 + 5 * i].tolist()

    def expected(column, row, **said):
        flags = [float(said.get(n, 0)) for n in ("carried", "is_open", "locked")]
        return pytest.approx([*flags, column / 5, row / 5])

    assert env.observation_space.contains(state)
    places = [
        (x, y) for y in range(5) for x in range(5) if grid.grid.get(x, y) in things
    ]
    assert numbers(state, key) == expected(*places[key])
    assert numbers(state, door) == expected(*places[door], locked=True)
    assert numbers(state, 2) == [0.0] * 5
    # What the actions would do in the end
    grid.grid.set(*places[key], None)
    things[key].cur_pos, grid.carrying = (-1, -1), things[key]
    things[door].is_locked, things[door].is_open = False, True
    grid.agent_pos, grid.agent_dir = (1, 2), 3
    state = env.view(None)
    assert state[:14].nonzero()[0].tolist() == [1, 5 + 2, 10 + 3]
    assert numbers(state, key) == expected(0, 0, carried=True)
    assert numbers(state, door) == expected(*places[door], is_open=True)


def test_a_mini_grid_has_no_more_objects_than_are_said():
    pytest.importorskip("minigrid")
    env = MiniGridState(gymnasium.make("MiniGrid-DoorKey-5x5-v0"), num_objects=1)
    with pytest.raises(ConfigError, match=r"num_objects is 1, but .* has 2: "):
        env.reset(seed=0)
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        MiniGridState(env, num_objects=-1)
    with pytest.raises(ConfigError, match=r"expected a MiniGrid .* CartPole"):
        MiniGridState(gymnasium.make("CartPole-v1"), num_objects=1)


def test_other_observations_are_no_mini_grid():
    with pytest.raises(ConfigError, match="expected the observation of a MiniGrid"):
        create_environment("CartPole-v1", wrappers=[MiniGridObservation])


# EnvPool


def pool(env_name="CartPole-v1", **kwargs):
    return create_environment(env_name, 3, 0, vectorization_mode="envpool", **kwargs)


def observations(env, seed):
    action = torch.zeros(3, dtype=torch.int64)
    steps = [env.reset(seed), *(env.step(action) for _ in range(20))]
    return torch.stack([step.observation.clone() for step in steps])


def test_a_pool_is_seeded_by_every_reset():
    pytest.importorskip("envpool")
    with pool() as env:
        first, other, again = (observations(env, seed) for seed in (5, 6, 5))
        assert env.name == "CartPole-v1"
    assert torch.equal(first, again)
    assert not torch.equal(first[0], other[0])
    # An episode ends after eight to eleven steps to the left; the next one begins.
    assert (first[..., 2].abs() < 0.3).all()
    with pool(max_episode_steps=2) as env:
        env.reset()
        action = torch.zeros(3, dtype=torch.int64)
        types = [env.step(action).step_type.tolist() for _ in range(3)]
    assert types == [[1] * 3, [2] * 3, [0] * 3]


def test_a_pool_without_bounds_says_so():
    pytest.importorskip("envpool")
    with pool("LunarLander-v3") as env:  # declared: the least positive number
        assert not hasattr(env.observation_spec, "minimum")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"env_name": "CartPol-v1"}, "no environment 'CartPol-v1'. Did you mean 'Cart"),
        ({"env_kwargs": {"num_thread": 2}}, "Did you mean 'num_threads'"),
        ({"wrappers": [MiniGridObservation]}, "EnvPool's step as one"),
        ({"max_episode_steps": 0}, "'envpool', whose limit is its own"),
        ({"env_ctor": PointGoalEnv}, "needs no vectorization_mode='envpool'"),
    ],
)
def test_what_a_pool_cannot_do_is_refused(kwargs, message):
    pytest.importorskip("envpool")
    with pytest.raises((ConfigError, EnvError), match=message):
        pool(**kwargs)
