from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.parts.return_heads import ExpectedReturnHead
from alf_lite.algorithms.r2d2_algorithm import R2d2Algorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.policies.evaluator import evaluate
from alf_lite.testing.structured_environments import MemoryEnv
from tests.replayed_steps import (
    CHOICE,
    OBSERVATION,
    randomise,
)

GAMMA = 0.9
LSTM = functools.partial(
    LSTMEncodingNetwork, hidden_size=(32,), fc_layer_params=(32,), activation="tanh"
)
Recurrent = functools.partial(QNetwork, encoding_network_ctor=LSTM)


def r2d2(**kwargs) -> R2d2Algorithm:
    arguments = {"q_network_ctor": Recurrent, "gamma": GAMMA, **kwargs}
    algorithm = R2d2Algorithm(OBSERVATION, CHOICE, optimizer=Adam(), **arguments)
    randomise(algorithm)
    return algorithm


def test_it_declares_what_the_paper_has():
    config = TrainerConfig(algorithm_ctor=R2d2Algorithm, num_iterations=1)
    assert (config.use_rollout_state, config.priority_replay) == (True, True)
    assert (config.burn_in_length, config.mini_batch_length) == (40, 40 + 80 + 5)
    other = TrainerConfig(
        algorithm_ctor=R2d2Algorithm, num_iterations=1, priority_replay=False
    )
    assert not other.priority_replay
    algorithm = R2d2Algorithm(
        OBSERVATION, CHOICE, q_network_ctor=Recurrent, optimizer=Adam(), config=config
    )
    assert (algorithm.gamma, algorithm.num_bootstrap_steps) == (0.997, 5)


def test_networks_without_memory_and_weights_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="a network with memory, which QNetwork"):
        r2d2(q_network_ctor=QNetwork)
    with pytest.raises(ValueError, match="max_priority_weight"):
        r2d2(max_priority_weight=1.5)
    even = TrainerConfig(
        algorithm_ctor=R2d2Algorithm, num_iterations=1, priority_replay=False
    )
    with pytest.raises(ConfigError, match="max_priority_weight has no effect: Train"):
        r2d2(max_priority_weight=0.5, config=even)
    assert r2d2(config=even)
    assert type(r2d2(return_model=ExpectedReturnHead())._return_model) is (
        ExpectedReturnHead
    )


@pytest.mark.ci
def test_it_remembers_from_stored_states_after_a_burn_in():
    torch.manual_seed(0)
    config = TrainerConfig(
        algorithm_ctor=R2d2Algorithm,
        num_iterations=1,
        unroll_length=4,
        num_updates_per_train_iter=6,
        mini_batch_size=32,
        mini_batch_length=7,
        burn_in_length=2,
        initial_collect_steps=128,
        replay_buffer_length=500,
    )
    ctor = functools.partial(MemoryEnv, action_kind="discrete")
    create = functools.partial(
        create_environment, env_ctor=ctor, num_parallel_environments=8, seed=0
    )
    env = create()
    algorithm = R2d2Algorithm(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=config,
        gamma=GAMMA,
        n_step=2,
        q_network_ctor=Recurrent,
        rollout_epsilon_greedy=0.3,
        target_update_tau=0.2,
        prioritize_new_steps=True,
        optimizer=Adam(lr=1e-2),
    )
    priority = algorithm.training_run.replay.own.options.priority
    assert (priority.alpha, priority.beta) == (0.9, 0.6)  # as the paper has them
    for iteration in range(1, 101):
        algorithm.train_iter()
        if iteration % 25 == 0:
            with create() as other:
                mean = evaluate(algorithm, other, num_episodes=64, seed=1).mean
            if mean >= 0.8:  # 0 without memory
                return
    pytest.fail(f"a return of {mean}")
