"""Reversi, beside rules that look at every line cell by cell."""

from __future__ import annotations

import numpy as np
import pytest

from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.reversi import ReversiBoard, ReversiEnv


def naive_flips(own, other, row, column):
    """The discs [n, 2] that a move turns."""
    size, flips = len(own), []
    for dy, dx in [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if y or x]:
        line = []
        y, x = row + dy, column + dx
        while 0 <= y < size and 0 <= x < size and other[y, x]:
            line.append((y, x))
            y, x = y + dy, x + dx
        if 0 <= y < size and 0 <= x < size and own[y, x]:
            flips += line
    return flips


def as_array(board, cells, size):
    return np.array([bool(cell & cells) for cell in board.cells]).reshape(size, size)


@pytest.mark.parametrize("size", [4, 6, 8])
def test_moves_are_those_of_the_naive_rules(size):
    rng = np.random.default_rng(size)
    board = ReversiBoard(size)
    for _ in range(5):
        own, other = board.start
        num_passed = 0
        while num_passed < 2:
            mine, theirs = (as_array(board, cells, size) for cells in (own, other))
            flips = {
                i: naive_flips(mine, theirs, *divmod(i, size))
                for i in np.flatnonzero(~(mine | theirs).ravel())
            }
            expected = [i for i, turned in flips.items() if turned]
            legal = np.flatnonzero(as_array(board, board.legal(own, other), size))
            assert legal.tolist() == expected
            num_passed += 1
            if expected:
                num_passed = 0
                move = int(rng.choice(expected))
                own, other = board.play(own, other, board.cells[move])
                for y, x in [*flips[move], divmod(move, size)]:
                    mine[y, x], theirs[y, x] = True, False
                assert (as_array(board, own, size) == mine).all()
                assert (as_array(board, other, size) == theirs).all()
            own, other = other, own


def test_a_game_is_won_by_discs_and_lost_by_an_illegal_move():
    env = ReversiEnv(4)
    returns = []
    for seed in range(200):
        observation, _ = env.reset(seed=seed)
        terminated = False
        while not terminated:
            assert env.observation_space.contains(observation)
            legal = np.flatnonzero(observation["action_mask"])
            observation, reward, terminated, _, _ = env.step(legal[0])
            assert reward == 0 or terminated
        own, other = observation["observation"].reshape(2, 16).sum(1)
        assert not observation["action_mask"].any()
        assert reward == np.sign(own - other) == np.sign(env.lead)
        returns.append(reward)
    assert set(returns) == {-1.0, 0.0, 1.0}
    observation, _ = env.reset(seed=0)
    illegal = int(np.flatnonzero(observation["action_mask"] == 0)[0])
    observation, reward, terminated, truncated, _ = env.step(illegal)
    assert (reward, terminated, truncated) == (-1.0, True, False)
    assert not observation["action_mask"].any()


def test_there_is_no_board_of_an_odd_size():
    with pytest.raises(ConfigError, match=r"must be 4, 6, 8, …, got 5"):
        ReversiEnv(5)


class TestReversiEnvContract(EnvironmentContract):
    def make(self, num_environments, seed):
        return create_environment(
            env_ctor=ReversiEnv,
            num_parallel_environments=num_environments,
            seed=seed,
        )
