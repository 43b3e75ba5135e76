"""Whole sequences give what one step after the other does, where they can be used."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm
from alf_lite.algorithms.learning.batch_loss import takes_sequences
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.networks import network
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    ActorNetwork,
    NormalActorNetwork,
)
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.network import takes_whole_sequences
from alf_lite.networks.recurrent_networks import (
    GRUEncodingNetwork,
    LSTMEncodingNetwork,
)
from alf_lite.networks.transformer_networks import GTrXLEncodingNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.optimizers.optimizers import Adam

LSTM = functools.partial(LSTMEncodingNetwork, hidden_size=(5, 4), fc_layer_params=(8,))
GRU = functools.partial(
    GRUEncodingNetwork, hidden_size=(6,), post_fc_layer_params=(5,), fc_layer_params=()
)
GTRXL = functools.partial(
    GTrXLEncodingNetwork, size=8, memory_size=3, num_layers=2, feed_forward_size=8
)
# Short episodes, so that sequences have several beginnings.
EPISODE_LENGTH = 5
REPLAY = {
    "unroll_length": 9,
    "initial_collect_steps": 0,
    "num_updates_per_train_iter": 2,
    "mini_batch_length": 8,
    "mini_batch_size": 6,
}


class StepsOfAnUnroll(ActorDistributionNetwork):
    """A network of one's own that says nothing of sequences."""

    def forward(self, inputs, state=()):
        return super().forward(inputs, state)


def of(ctor, memory):
    return functools.partial(ctor, encoding_network_ctor=memory)


def ppo(memory):
    return PPOAlgorithm, {
        "actor_network_ctor": of(ActorDistributionNetwork, memory),
        "value_network_ctor": of(ValueNetwork, memory),
    }


def dqn(memory):
    return DqnAlgorithm, {"q_network_ctor": of(QNetwork, memory), "n_step": 2}


def ddpg(memory):
    return DdpgAlgorithm, {
        "actor_network_ctor": of(ActorNetwork, memory),
        "critic_network_ctor": of(CriticNetwork, memory),
    }


def iql(memory):
    return IqlAlgorithm, {
        "actor_network_ctor": of(NormalActorNetwork, memory),
        "critic_network_ctor": of(CriticNetwork, memory),
        "value_network_ctor": of(CriticNetwork, memory),
    }


def bc(memory):
    return BcAlgorithm, {"actor_network_ctor": of(NormalActorNetwork, memory)}


CASES = {
    "ppo": (ppo, LSTM, {"unroll_length": 9, "num_updates_per_train_iter": 2}),
    "ppo sequences": (
        ppo,
        GRU,
        {
            "unroll_length": 8,
            "mini_batch_length": 4,
            "mini_batch_size": 2,
            "num_updates_per_train_iter": 2,
        },
    ),
    "dqn": (dqn, GRU, REPLAY),
    "dqn burn-in": (dqn, LSTM, {**REPLAY, "burn_in_length": 3}),
    "dqn transformer": (dqn, GTRXL, {**REPLAY, "burn_in_length": 3}),
    "ddpg": (ddpg, LSTM, {**REPLAY, "burn_in_length": 2}),
    "iql": (iql, GRU, REPLAY),
    "bc": (bc, LSTM, REPLAY),
}


def make(cls, options, settings):
    torch.manual_seed(0)
    is_discrete = issubclass(cls, PPOAlgorithm | DqnAlgorithm)
    env = create_environment(
        "CartPole-v1" if is_discrete else "Pendulum-v1",
        num_parallel_environments=4,
        seed=0,
        max_episode_steps=EPISODE_LENGTH,
    )
    return cls(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=TrainerConfig(num_iterations=3, **settings),
        optimizer=Adam(lr=1e-3),
        **options,
    )


@pytest.mark.ci
@pytest.mark.parametrize("case", CASES)
def test_whole_sequences_equal_one_step_after_the_other(case, monkeypatch):
    parts, memory, settings = CASES[case]
    cls, options = parts(memory)
    step_by_step = type(cls.__name__, (cls,), {"trains_on_sequences": False})
    expected = trained(step_by_step, options, settings)
    # In runs, in either way as it suits, and in pieces.
    for min_run in (1, 4, 100):
        monkeypatch.setattr(network, "_MIN_RUN", min_run)
        for name, parameter in trained(cls, options, settings).items():
            torch.testing.assert_close(
                parameter,
                expected[name],
                rtol=1e-3,
                atol=2e-5,
                msg=lambda text, said=(name, min_run): f"{said}: {text}",
            )


def trained(cls, options, settings):
    algorithm = make(cls, options, settings)
    assert takes_sequences(algorithm) is algorithm.trains_on_sequences
    for _ in range(2):
        algorithm.train_iter()
    return dict(algorithm.named_parameters())


def test_who_says_nothing_of_sequences_gets_one_step_after_the_other():
    cls, options = ppo(LSTM)
    own_network = {**options, "actor_network_ctor": of(StepsOfAnUnroll, LSTM)}
    assert not takes_sequences(make(cls, own_network, {"unroll_length": 4}))

    class OwnStep(cls):
        def train_step(self, inputs, state, rollout_info):
            return super().train_step(inputs, state, rollout_info)

    assert not takes_sequences(make(OwnStep, options, {"unroll_length": 4}))

    class SaysItAnew(OwnStep):
        @takes_whole_sequences
        def train_step(self, inputs, state, rollout_info):
            return super().train_step(inputs, state, rollout_info)

    assert takes_sequences(make(SaysItAnew, options, {"unroll_length": 4}))

    class OwnOfflineStep(cls):
        has_offline_loss = True

        def train_step_offline(self, inputs, state, rollout_info):
            return super().train_step(inputs, state, rollout_info)

    assert not takes_sequences(make(OwnOfflineStep, options, {"unroll_length": 4}))
