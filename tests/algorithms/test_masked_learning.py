"""Every algorithm with discrete actions learns where it must not choose freely."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    SquashedActorNetwork,
)
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.policies.evaluator import evaluate
from alf_lite.testing.masked_environment import ForbiddenActionEnv
from alf_lite.utils.diagnostics import diagnostics_if

LSTM = functools.partial(
    LSTMEncodingNetwork, hidden_size=(16,), fc_layer_params=(16,), activation="tanh"
)
MULTI = spaces.MultiDiscrete([3, 2])
MIXED = spaces.Dict(
    {
        "pair": MULTI,
        "force": spaces.Box(-1.0, 1.0, (1,), np.float32),
        "switch": spaces.MultiBinary(1),
    }
)


class Recorded(gymnasium.Wrapper):
    """Counts the rewards for what was forbidden."""

    num_forbidden = 0

    def step(self, action):
        result = self.env.step(action)
        Recorded.num_forbidden += result[1] < 0
        return result


def make_env(space=None):
    def ctor():
        return Recorded(ForbiddenActionEnv(space))

    return create_environment(env_ctor=ctor, num_parallel_environments=8, seed=0)


def on_policy(algorithm, lr, recurrent=False, **settings):
    def build(env):
        networks = {}
        if recurrent:
            networks = {
                f"{name}_network_ctor": functools.partial(
                    ctor, encoding_network_ctor=LSTM
                )
                for name, ctor in (
                    ("actor", ActorDistributionNetwork),
                    ("value", ValueNetwork),
                )
            }
        return algorithm(
            env.observation_spec,
            env.action_spec,
            env=env,
            config=TrainerConfig(num_iterations=1, unroll_length=16, **settings),
            optimizer=Adam(lr=lr, gradient_clipping=1.0),
            gamma=0.5,
            action_mask_key="action_mask",
            **networks,
        )

    return build


def off_policy(algorithm, num_updates=16, mini_batch_length=2, **options):
    def build(env):
        config = TrainerConfig(
            num_iterations=1,
            unroll_length=4,
            num_updates_per_train_iter=num_updates,
            mini_batch_size=64,
            mini_batch_length=mini_batch_length,
            initial_collect_steps=128,
            initial_random_policy=True,
            replay_buffer_length=500,
        )
        return algorithm(
            env.observation_spec,
            env.action_spec,
            env=env,
            config=config,
            optimizer=Adam(lr=5e-3),
            gamma=0.5,
            target_update_tau=0.1,
            action_mask_key="action_mask",
            **options,
        )

    return build


PPO = functools.partial(
    on_policy, PPOAlgorithm, 5e-3, num_updates_per_train_iter=4, mini_batch_size=64
)
FEED_FORWARD_PPO = PPO(mini_batch_length=1)
A2C = on_policy(ActorCriticAlgorithm, 1e-2)
IMPALA = on_policy(ImpalaAlgorithm, 1e-2)
DQN = off_policy(DqnAlgorithm, rollout_epsilon_greedy=0.3)
RECURRENT = {"num_updates": 4, "mini_batch_length": 6}
RECURRENT_DQN = off_policy(
    DqnAlgorithm,
    **RECURRENT,
    q_network_ctor=functools.partial(QNetwork, encoding_network_ctor=LSTM),
    rollout_epsilon_greedy=0.3,
)


def sac(encoder=None, **options):
    encoding = {} if encoder is None else {"encoding_network_ctor": encoder}
    return off_policy(
        SacAlgorithm,
        actor_network_ctor=functools.partial(
            SquashedActorNetwork, fc_layer_params=(16,), **encoding
        ),
        critic_network_ctor=functools.partial(
            CriticNetwork,
            joint_fc_layer_params=(32,),
            activation="tanh",
            encoder_fc_layer_params=() if encoder is None else (16,),
            **encoding,
        ),
        initial_alpha=0.1,
        **options,
    )


SLOW = pytest.mark.slow


@pytest.mark.ci
@pytest.mark.parametrize(
    ("build", "space", "num_iterations"),
    [
        pytest.param(FEED_FORWARD_PPO, None, 20, id="ppo", marks=SLOW),
        pytest.param(FEED_FORWARD_PPO, MULTI, 20, id="ppo-multi", marks=SLOW),
        pytest.param(FEED_FORWARD_PPO, MIXED, 20, id="ppo-mixed"),
        pytest.param(PPO(recurrent=True), None, 20, id="ppo-recurrent", marks=SLOW),
        pytest.param(A2C, None, 80, id="a2c", marks=SLOW),
        pytest.param(IMPALA, None, 80, id="impala", marks=SLOW),
        pytest.param(DQN, None, 50, id="dqn"),
        pytest.param(DQN, MULTI, 50, id="dqn-multi", marks=SLOW),
        pytest.param(RECURRENT_DQN, None, 60, id="dqn-recurrent", marks=SLOW),
        pytest.param(sac(), None, 20, id="sac", marks=SLOW),
        pytest.param(sac(), MIXED, 25, id="sac-mixed"),
        pytest.param(sac(LSTM, **RECURRENT), None, 40, id="sac-recurrent", marks=SLOW),
    ],
)
def test_the_best_of_what_is_allowed_is_learnt_without_ever_being_forbidden(
    build, space, num_iterations, monkeypatch
):
    monkeypatch.setattr(Recorded, "num_forbidden", 0)
    torch.manual_seed(0)
    algorithm = build(make_env(space))
    untrained = evaluated(algorithm, space)
    threshold, is_reached = max(3.9, untrained + 0.3), False
    for iteration in range(1, num_iterations + 1):
        algorithm.train_iter()
        if iteration % (num_iterations // 5) == 0:
            was_reached, trained = is_reached, evaluated(algorithm, space)
            is_reached = trained > threshold
            if was_reached and is_reached:
                break
    assert Recorded.num_forbidden == 0
    assert trained > threshold


@pytest.mark.parametrize(
    "build", [FEED_FORWARD_PPO, A2C, DQN], ids=["ppo", "a2c", "dqn"]
)
def test_masks_hold_in_updates_that_nobody_looks_at(build):
    states = []
    for looks in (False, True):
        torch.manual_seed(0)
        algorithm = build(make_env())
        with diagnostics_if(looks):
            algorithm.train_iter()
        states.append(algorithm.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], msg=name)


def evaluated(algorithm, space) -> float:
    with make_env(space) as env:
        return evaluate(algorithm, env, num_episodes=64, seed=1).mean
