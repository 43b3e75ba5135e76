"""Policies as opponents, as they are in this process."""

from __future__ import annotations

import numpy as np
import pytest

import alf_lite
from alf_lite.games.battle_environment import BattleEnvironment
from alf_lite.games.board_games import TicTacToe
from alf_lite.games.opponents import RandomOpponent
from alf_lite.games.policy_opponents import PolicyOpponent


@pytest.mark.parametrize(
    "algorithm_class", [alf_lite.DqnAlgorithm, alf_lite.PqnAlgorithm]
)
def test_what_has_values_alone_plays_the_best_action(algorithm_class):
    game, rng = TicTacToe(), np.random.default_rng(0)
    env = BattleEnvironment(2, game, opponents=[RandomOpponent()], seed=0)
    config = alf_lite.TrainerConfig(num_iterations=1)
    algorithm = algorithm_class(env=env, config=config, action_mask_key="action_mask")
    opponent = PolicyOpponent(algorithm.policy(), "values")
    empty, seats = game.initial(64, rng), np.zeros(64, np.int64)
    actions, _ = opponent.choose(game, empty, seats, rng, [])
    assert len(set(actions.tolist())) == 1
