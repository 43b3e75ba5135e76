from __future__ import annotations

import functools

import pytest

from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.parts.reward_weights import LagrangianRewardWeights
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.policies.evaluator import evaluate
from alf_lite.testing.structured_environments import ConstrainedEnv
from alf_lite.tools.report import evaluation_lines
from alf_lite.trainers.shipped_hooks import BestModel
from alf_lite.trainers.trainer import Trainer

WEIGHTS = functools.partial(
    LagrangianRewardWeights,
    thresholds=[None, -0.25],
    initial_weights=[1.0, 0.1],
    learning_rate=0.2,
)


def environment():
    return create_environment(
        env_ctor=ConstrainedEnv, num_parallel_environments=8, vectorization_mode="sync"
    )


def build(cls, **settings):
    config = TrainerConfig(num_iterations=70, random_seed=0, **settings)
    return cls(env=environment(), config=config)


@pytest.mark.ci
def test_ppo_earns_as_much_as_its_constraint_allows():
    ctor = functools.partial(
        PPOAlgorithm, optimizer=Adam(lr=0.01), gamma=0.5, reward_weights=WEIGHTS
    )
    algorithm = build(
        functools.partial(Agent, rl_algorithm_ctor=ctor),
        unroll_length=16,
        epochs=2,
        mini_batch_length=1,
        mini_batch_size=64,
    )
    for _ in range(70):
        algorithm.train_iter()
    (episode,) = evaluate(algorithm, environment(), num_episodes=1).episodes
    earned, cost = episode.return_vector
    # The mode is 0.5 less what the noise costs; the weights become alike.
    assert earned / 8 == pytest.approx(0.5, abs=0.15)
    assert -cost / 8 <= 0.3
    first, second = algorithm.reward_weights.tolist()
    assert first + second == pytest.approx(1.0)
    assert 0.2 < second < 0.8


def test_returns_of_changing_weights_decide_nothing():
    ctor = functools.partial(PPOAlgorithm, reward_weights=WEIGHTS)
    evaluates = {"evaluate": True, "eval_interval": 1, "num_eval_episodes": 2}

    def train(*hooks, **settings):
        config = TrainerConfig(
            algorithm_ctor=functools.partial(Agent, rl_algorithm_ctor=ctor),
            **{"num_iterations": 2, "unroll_length": 8, "random_seed": 0},
            **evaluates,
            **settings,
        )
        create = functools.partial(create_environment, env_ctor=ConstrainedEnv)
        return Trainer(config, hooks=hooks, create_env=create).train()

    result = train()
    assert result.best_score is None
    vectors = [episode.return_vector for episode in result.evaluation.episodes]
    numbers = result.evaluation.numbers
    parts = [numbers["AverageReturn/0"], numbers["AverageReturn/1"]]
    assert parts == [sum(part) / 2 for part in zip(*vectors, strict=True)]
    assert f"AverageReturn/1: {parts[1]:.4g}" in "".join(
        evaluation_lines(result.evaluation)
    )
    assert train(BestModel("AverageReturn/0")).best_score is not None
    for name in ("early_stop_return", "early_stop_patience"):
        with pytest.raises(ConfigError, match="Use the hook EarlyStop"):
            train(**{name: 3})


def test_off_policy_unrolls_move_the_weights_too():
    algorithm = build(
        functools.partial(
            SacAlgorithm, optimizer=Adam(lr=1e-3), reward_weights=WEIGHTS
        ),
        unroll_length=4,
        mini_batch_size=8,
    )
    before = algorithm.reward_weights.clone()
    for _ in range(3):
        algorithm.train_iter()
    assert algorithm.reward_weights[1] != before[1]
    assert "_reward_weights._multipliers" in algorithm.state_dict()
