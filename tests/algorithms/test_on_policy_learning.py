from __future__ import annotations

import functools
from typing import ClassVar

import pytest

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.pqn_algorithm import PqnAlgorithm
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.lagging_policy import lagging
from alf_lite.testing.learning_contract import (
    GAMMA,
    Feature,
    OnPolicyLearningContract,
)
from tests.algorithms.slow_probes import slow_but_for

LaggingImpala = lagging(ImpalaAlgorithm, num_iterations=2)
LaggingPPO = lagging(PPOAlgorithm, num_iterations=2)

pytestmark = pytest.mark.ci

# Of variants whose parent does the whole contract.
VALUE = "test_learns_a_discounted_value"
POLICY = "test_learns_the_action_that_the_observation_asks_for"


def build(cls, env, config, *, recurrent, lr, **arguments):
    networks = {}
    if recurrent:
        encoder = functools.partial(
            LSTMEncodingNetwork, hidden_size=(32,), fc_layer_params=(32,)
        )
        networks = {
            "actor_network_ctor": functools.partial(
                ActorDistributionNetwork, encoding_network_ctor=encoder
            ),
            "value_network_ctor": functools.partial(
                ValueNetwork, encoding_network_ctor=encoder
            ),
        }
    return cls(
        env.observation_spec,
        env.action_spec,
        reward_spec=env.reward_spec,
        env=env,
        config=config,
        optimizer=Adam(lr=lr, gradient_clipping=1.0),
        gamma=GAMMA,
        entropy_regularization=0.01,
        **networks,
        **arguments,
    )


class TestPPO(OnPolicyLearningContract):
    num_policy_iterations = 45
    num_recurrent_iterations = 110
    settings: ClassVar = {
        "num_updates_per_train_iter": 4,
        "mini_batch_length": 1,
        "mini_batch_size": 64,
    }

    def make(self, env, config, *, recurrent):
        return build(PPOAlgorithm, env, config, recurrent=recurrent, lr=3e-3)

    @pytest.mark.slow  # the mixed ones are in a nest, too
    def test_learns_a_nest_of_continuous_actions(self):
        super().test_learns_a_nest_of_continuous_actions()

    @pytest.mark.slow  # the binary ones are several, too
    def test_learns_several_discrete_actions(self):
        super().test_learns_several_discrete_actions()


@slow_but_for(  # PPO does the others with the same networks
    VALUE,
    POLICY,
    "test_a_time_limit_keeps_bootstrapping",
)
class TestActorCritic(OnPolicyLearningContract):
    num_iterations = 150
    num_policy_iterations = 220

    def make(self, env, config, *, recurrent):
        return build(ActorCriticAlgorithm, env, config, recurrent=recurrent, lr=5e-3)


class TestPqn(OnPolicyLearningContract):
    features = (
        Feature.DISCRETE_ACTIONS
        | Feature.SEVERAL_DISCRETE_ACTIONS
        | Feature.VECTOR_REWARDS
        | Feature.RECURRENT_NETWORKS
    )
    settings = TestPPO.settings
    num_iterations = 150
    num_recurrent_iterations = 150

    def make(self, env, config, *, recurrent):
        # ReLU would have no gradient where the observation is 0 throughout.
        network = functools.partial(QNetwork, activation="tanh")
        if recurrent:
            encoder = functools.partial(LSTMEncodingNetwork, hidden_size=(32,))
            network = functools.partial(QNetwork, encoding_network_ctor=encoder)
        return PqnAlgorithm(
            env.observation_spec,
            env.action_spec,
            reward_spec=env.reward_spec,
            env=env,
            config=config,
            optimizer=Adam(lr=1e-2, gradient_clipping=10.0),
            gamma=GAMMA,
            rollout_epsilon_greedy=0.3,
            q_network_ctor=network,
        )

    def value(self, algorithm, observation):
        return algorithm._q_network(observation)[0].amax((1, 2, 3))


@slow_but_for(VALUE, POLICY)  # without a lag it is A2C
class TestImpala(TestActorCritic):
    def make(self, env, config, *, recurrent):
        return build(ImpalaAlgorithm, env, config, recurrent=recurrent, lr=5e-3)


@pytest.mark.slow
class TestImpalaThatLags(TestActorCritic):
    num_policy_iterations = 300

    def make(self, env, config, *, recurrent):
        return build(LaggingImpala, env, config, recurrent=recurrent, lr=5e-3)


@pytest.mark.slow
class TestPPOThatLags(TestPPO):
    num_policy_iterations = 60

    def make(self, env, config, *, recurrent):
        return build(
            LaggingPPO,
            env,
            config,
            recurrent=recurrent,
            lr=3e-3,
            off_policy_correction="vtrace",
        )
