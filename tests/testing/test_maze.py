"""Mazes: each has a way to its goal, and is what its seed says."""

from __future__ import annotations

from collections import deque

from alf_lite.environments.creation import create_environment
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.maze import MazeEnv


def shortest(env, seed):
    """The actions of a shortest way, found by trying all of them."""
    pending = deque([()])
    seen = set()
    while pending:
        actions = pending.popleft()
        env.reset(seed=seed)
        reward = 0.0
        for action in actions:
            _, reward, is_there, *_ = env.step(action)
        if actions and is_there:
            return actions, reward
        cell = tuple(env._cell.tolist())
        if cell not in seen:
            seen.add(cell)
            pending.extend((*actions, action) for action in range(4))
    raise AssertionError("there is no way")


def test_every_maze_has_a_way_and_the_shortest_pays_best():
    env = MazeEnv(size=5, view=3)
    lengths = []
    for seed in range(20):
        actions, reward = shortest(env, seed)
        assert reward == 1 - 0.9 * len(actions) / 60
        lengths.append(len(actions))
    assert len(set(lengths)) > 3
    observations = [env.reset(seed=seed)[0] for seed in (3, 3, 4)]
    assert (observations[0] == observations[1]).all()
    assert (observations[0] != observations[2]).any()


def test_walls_stop_and_the_limit_truncates():
    env = MazeEnv(max_steps=1)
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        walls, goal = observation[:50].reshape(2, 5, 5)
        for action, (dy, dx) in enumerate([(-1, 0), (1, 0), (0, -1), (0, 1)]):
            env.reset(seed=seed)
            cell = env._cell.copy()
            _, reward, terminated, truncated, _ = env.step(action)
            is_wall, is_goal = walls[2 + dy, 2 + dx], goal[2 + dy, 2 + dx]
            assert (env._cell == cell + (0 if is_wall else [dy, dx])).all()
            assert (terminated, truncated) == (is_goal, not is_goal)
            assert reward == (1 - 0.9) * is_goal


class TestMazeEnvContract(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment(
            env_ctor=MazeEnv,
            num_parallel_environments=num_environments,
            seed=seed,
        )
