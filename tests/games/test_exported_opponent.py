"""Exported policies as opponents."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import alf_lite
from alf_lite.errors import ConfigError
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.board_games import Nim, TicTacToe
from alf_lite.games.game import random_legal
from alf_lite.games.opponents import RandomOpponent
from alf_lite.games.policy_opponents import ExportedOpponent, PolicyOpponent
from alf_lite.policies.exported_policy import ExportedPolicy
from alf_lite.tools.arena import players_of

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of tic-tac-toe, and its policy as exported for torch, greedy and drawn."""
    folder = tmp_path_factory.mktemp("exported")
    bindings = [
        "TrainerConfig.num_iterations = 2",
        "TrainerConfig.num_env_steps = 0",
        "create_environment.num_parallel_environments = 8",
    ]
    alf_lite.train("ppo_tic_tac_toe", folder / "run", gin_params=bindings)
    for name, sample in (("greedy", False), ("drawn", True)):
        alf_lite.export_policy(
            folder / "run",
            folder / name,
            file_format="torch",
            sample=sample,
            num_steps=20,
        )
    return folder


def positions(number=64):
    """Of tic-tac-toe after up to four moves, and who moves."""
    game, draws = TicTacToe(), np.random.default_rng(0)
    state = game.initial(number, draws)
    for _ in range(3):
        legal = game.legal(state, game.moves(state).argmax(1))
        actions = random_legal(legal, draws)[:, None].repeat(2, 1)
        state = game.play(state, actions, draws)
    return game, state, game.moves(state).argmax(1)


def test_it_plays_as_the_policy_of_its_run(folder):
    game, state, seats = positions()
    opponent = ExportedOpponent(str(folder / "greedy"))
    opponent.check_game(game)
    run = PolicyOpponent(
        alf_lite.load_policy(folder / "run"), "run", deterministic=True
    )
    rng = np.random.default_rng(0)
    actions, memory = opponent.choose(game, state, seats, rng, opponent.begin(64, rng))
    assert memory == []
    assert np.array_equal(actions, run.choose(game, state, seats, rng, [])[0])
    assert len(set(actions.tolist())) > 2
    assert game.legal(state, seats)[np.arange(64), actions].all()


def test_its_noise_is_drawn_from_the_games_generator(folder):
    game, state, seats = positions()
    opponent = ExportedOpponent(str(folder / "drawn"))
    first, same, other = (
        opponent.choose(game, state, seats, np.random.default_rng(seed), [])[0]
        for seed in (0, 0, 1)
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_battles_and_the_arena_take_it(folder):
    (opponent,) = players_of(str(folder / "greedy"))
    assert isinstance(opponent, ExportedOpponent)
    env = BattleEnvironment(4, opponents=[opponent, RandomOpponent()], seed=0)
    env.reset()
    for _ in range(10):
        legal = env.game.legal(env._games, env._choosing_seats())
        env.step(torch.from_numpy(legal.argmax(1)))
    with pytest.raises(ConfigError, match=r"greedy was trained on.*up to 8, and Nim"):
        opponent.check_game(Nim())
    with pytest.raises(ConfigError, match="holds no exported policy"):
        ExportedOpponent(str(folder))


def test_what_a_policy_remembers_is_kept_by_row():
    class Memory(ExportedPolicy):
        """Counts the steps since an episode began; plays that number."""

        def __init__(self):
            port = {"name": "is_first", "role": "is_first", "dtype": "bool"}
            self.inputs = [
                {"name": "x", "role": "observation", "path": ["x"], "dtype": "float32"},
                {**port, "shape": ["batch"]},
                {"name": "n", "role": "state", "shape": ["batch"], "dtype": "int64"},
            ]
            self.actions = [{"environment_dtype": "int64"}]
            self._states = self.inputs[2:]

        def _graph(self, inputs):
            n = np.where(inputs["is_first"], 0, inputs["n"]) + 1
            return [n, n]

    policy, rng = Memory(), np.random.default_rng(0)
    seen = {"x": np.zeros((3, 2))}
    memory = policy.new_memory(3)
    (first,), memory = policy.predict_with(seen, memory, rng)
    memory[0][1] = True  # a new game in row 1
    (second,), memory = policy.predict_with(seen, memory, rng)
    assert (first.tolist(), second.tolist()) == ([1, 1, 1], [2, 1, 2])
