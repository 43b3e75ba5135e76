"""Games against oneself are learned to the exact value."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.games.board_games import Nim, TicTacToe
from alf_lite.games.game import Game
from alf_lite.games.game_environment import BothSeatsEnvironment
from alf_lite.games.game_tree import GameTree
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.optimizers.optimizers import Adam


def greedy(policy, tree: GameTree):
    """The best action of a policy in each state."""

    def chooses(seen, legal):
        observation = {"action_mask": legal.astype(np.int8), "observation": seen}
        action = np.asarray(policy.predict(observation))
        return legal * np.eye(legal.shape[1])[action]

    return tree.policy(chooses)


def worst_values(algorithm, game: Game) -> tuple[float, float]:
    tree = GameTree(game)
    return tree.worst_values(greedy(algorithm.policy(), tree))


NETWORKS = {
    "actor_network_ctor": functools.partial(
        ActorDistributionNetwork, fc_layer_params=(64, 64)
    ),
    "value_network_ctor": functools.partial(ValueNetwork, fc_layer_params=(64, 64)),
}


@pytest.mark.slow
def test_ppo_wins_nim_in_both_seats():
    # (1, 2, 4) is won by the first seat: against the best answers 1 and, as the
    # second, -1. Every position is a beginning.
    game = Nim((1, 2, 4))
    env = BothSeatsEnvironment(32, game, num_random_moves=4, seed=0)
    algorithm = PPOAlgorithm(
        env=env,
        config=TrainerConfig(
            num_iterations=100,
            unroll_length=16,
            epochs=4,
            mini_batch_length=1,
            mini_batch_size=256,
            random_seed=0,
        ),
        optimizer=Adam(lr=3e-3, gradient_clipping=0.5),
        gamma=1.0,
        td_lambda=0.9,
        normalize_advantages=False,
        entropy_regularization=0.5,
        action_mask_key="action_mask",
        **NETWORKS,
    )
    assert worst_values(algorithm, game)[0] == -1
    for _ in range(100):
        algorithm.train_iter()
    assert worst_values(algorithm, game) == pytest.approx((1, -1))


@pytest.mark.ci
def test_dqn_wins_nim_in_both_seats():
    game = Nim((1, 2, 2))
    env = BothSeatsEnvironment(16, game, num_random_moves=3, seed=0)
    algorithm = DqnAlgorithm(
        env=env,
        config=TrainerConfig(
            num_iterations=400,
            unroll_length=2,
            num_updates_per_train_iter=2,
            mini_batch_size=64,
            initial_collect_steps=500,
            random_seed=0,
        ),
        optimizer=Adam(lr=1e-3),
        gamma=1.0,
        rollout_epsilon_greedy=0.3,
        action_mask_key="action_mask",
    )
    for _ in range(400):
        algorithm.train_iter()
    assert worst_values(algorithm, game) == pytest.approx((1, -1))


@pytest.mark.slow
def test_self_play_cannot_be_beaten_at_tic_tac_toe(tmp_path):
    import alf_lite

    alf_lite.train("ppo_tic_tac_toe", tmp_path / "run")
    policy = alf_lite.load_policy(tmp_path / "run")
    tree = GameTree(TicTacToe())
    chosen = greedy(policy, tree)
    assert tree.worst_values(chosen) == (0, 0)
