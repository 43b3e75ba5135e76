from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import pytest
import torch

from alf_lite.algorithms.crossq_algorithm import CrossqAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.munchausen_dqn_algorithm import MunchausenDqnAlgorithm
from alf_lite.algorithms.oac_algorithm import OacAlgorithm
from alf_lite.algorithms.parts.return_heads import CategoricalHead, QuantileHead
from alf_lite.algorithms.redq_algorithm import RedqAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.sarsa_algorithm import SarsaAlgorithm
from alf_lite.algorithms.taac_algorithm import TaacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.algorithms.tqc_algorithm import TqcAlgorithm
from alf_lite.distributions.exploration import GaussianNoise, OrnsteinUhlenbeckNoise
from alf_lite.distributions.sample_noise import StateDependentNoise
from alf_lite.networks.actor_networks import ActorNetwork, SquashedActorNetwork
from alf_lite.networks.batch_norm import BatchNorm
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing import probe_environments as probes
from alf_lite.testing.learning_contract import (
    GAMMA,
    Feature,
    OffPolicyLearningContract,
)
from tests.algorithms.slow_probes import slow_but_for

LSTM = functools.partial(
    LSTMEncodingNetwork, hidden_size=(32,), fc_layer_params=(32,), activation="tanh"
)

pytestmark = pytest.mark.ci

# Of variants whose parent does the whole contract.
VALUE = "test_learns_a_discounted_value"
POLICY = "test_learns_the_action_that_the_observation_asks_for"
TIME_LIMIT = "test_a_time_limit_keeps_bootstrapping"


class OffPolicyLearning(OffPolicyLearningContract):
    """How the algorithms here are built; each names its class and its networks."""

    algorithm: ClassVar[Any]
    targets: ClassVar[dict[str, Any]] = {"target_update_tau": 0.2}

    def options(self, encoder: dict[str, Any]) -> dict[str, Any]:
        """Arguments of the algorithm; networks get ``encoder``."""
        raise NotImplementedError

    def make(self, env, config, *, recurrent):
        return self.algorithm(
            env.observation_spec,
            env.action_spec,
            reward_spec=env.reward_spec,
            env=env,
            config=config,
            optimizer=Adam(lr=1e-2),
            gamma=GAMMA,
            **self.targets,
            **self.options({"encoding_network_ctor": LSTM} if recurrent else {}),
        )


class TestDqn(OffPolicyLearning):
    algorithm = DqnAlgorithm
    features = (
        Feature.DISCRETE_ACTIONS
        | Feature.SEVERAL_DISCRETE_ACTIONS
        | Feature.VECTOR_REWARDS
        | Feature.RECURRENT_NETWORKS
    )

    def options(self, encoder):
        # ReLU would have no gradient where the observation is 0 throughout.
        encoder = {"activation": "tanh", **encoder}
        return {
            "q_network_ctor": functools.partial(QNetwork, **encoder),
            "rollout_epsilon_greedy": 0.3,
        }

    def value(self, algorithm, observation):
        outputs, _ = algorithm._q_network(observation)
        return algorithm._return_model.mean(outputs).amax((1, 2))

    @pytest.mark.slow  # R2D2 remembers by the same network
    def test_remembers_with_a_recurrent_network(self):
        super().test_remembers_with_a_recurrent_network()


@slow_but_for(VALUE, POLICY, TIME_LIMIT)
class TestDqnWithEverything(TestDqn):
    """Dueling, three steps, quantiles."""

    features = Feature.DISCRETE_ACTIONS
    settings: ClassVar = {"mini_batch_length": 4}

    def options(self, encoder):
        return {
            **super().options(encoder),
            "q_network_ctor": functools.partial(
                QNetwork, dueling=True, activation="tanh", **encoder
            ),
            "n_step": 3,
            "return_model": QuantileHead(num_quantiles=8),
        }


@slow_but_for(VALUE, POLICY)
class TestDqnWithCategories(TestDqn):
    features = Feature.DISCRETE_ACTIONS

    def options(self, encoder):
        model = CategoricalHead(v_min=-6.0, v_max=6.0, num_atoms=25)
        return {**super().options(encoder), "return_model": model}


@slow_but_for(VALUE, POLICY)
class TestDqnWithPriorities(TestDqn):
    features = Feature.DISCRETE_ACTIONS
    settings: ClassVar = {"priority_replay": True}


@slow_but_for(VALUE, POLICY)
class TestMunchausenDqn(TestDqn):
    algorithm = MunchausenDqnAlgorithm
    features = Feature.DISCRETE_ACTIONS


@slow_but_for(VALUE, POLICY, TIME_LIMIT)
class TestSarsa(TestDqn):
    algorithm = SarsaAlgorithm
    features = Feature.DISCRETE_ACTIONS
    settings: ClassVar = {"mini_batch_length": 3}


class TestSac(OffPolicyLearning):
    algorithm = SacAlgorithm
    features = ~Feature.RECURRENT_NETWORKS
    num_policy_iterations = 39
    learns_alpha = False

    def options(self, encoder):
        return {
            "actor_network_ctor": functools.partial(
                SquashedActorNetwork, fc_layer_params=(32,), **encoder
            ),
            "critic_network_ctor": functools.partial(
                CriticNetwork,
                joint_fc_layer_params=(64,),
                activation="tanh",  # some probes observe nothing but zeros
                encoder_fc_layer_params=(32,) if encoder else (),
                **encoder,
            ),
            "initial_alpha": 0.3 if self.learns_alpha else 0.02,
            "learn_alpha": self.learns_alpha,
        }

    def value(self, algorithm, observation):
        policy, _ = algorithm._policy(observation)
        sample = algorithm._actions.sample(policy)
        features, _ = algorithm._critics.online.encode(observation)
        values = algorithm._critics.online.evaluate(features, sample.vector)
        return sample.expectation(values.amin(1))

    @pytest.mark.slow  # the mixed ones are in a nest, too
    def test_learns_a_nest_of_continuous_actions(self):
        super().test_learns_a_nest_of_continuous_actions()

    @pytest.mark.slow
    def test_learns_continuous_actions(self):
        super().test_learns_continuous_actions()

    @pytest.mark.slow  # as far as the losses go, they are binary ones
    def test_learns_several_discrete_actions(self):
        super().test_learns_several_discrete_actions()

    @pytest.mark.slow  # test_sac_algorithm.py has a quick one
    def test_learns_the_temperature_of_the_entropy_that_is_asked_for(self):
        self.learns_alpha = True
        env = self._create(probes.ObservationPolicyEnv)
        algorithm = self._train(env, 2 * self.num_policy_iterations)
        policy, _ = algorithm._policy(torch.tensor([[-1.0], [1.0]]))
        # By default: the better action in 90 percent of the cases. With a difference
        # of 2 between the rewards, that is the best policy at α = 2 / ln 9.
        expected = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
        torch.testing.assert_close(policy.probs, expected, atol=0.04, rtol=0.0)
        alpha = algorithm._temperatures["discrete"].alpha.item()
        assert alpha == pytest.approx(2 / math.log(9), abs=0.15)


@pytest.mark.slow
class TestSacWithMemory(TestSac):
    features = Feature.DISCRETE_ACTIONS | Feature.RECURRENT_NETWORKS


@slow_but_for(VALUE, "test_learns_the_better_action")
class TestQuantileSacWithLastingNoise(TestSac):
    features = Feature.CONTINUOUS_ACTIONS
    test_learns_the_temperature_of_the_entropy_that_is_asked_for = None  # discrete

    def options(self, encoder):
        return {
            **super().options(encoder),
            "return_model": QuantileHead(num_quantiles=4),
            "exploration_noise_ctor": StateDependentNoise,
        }

    def value(self, algorithm, observation):
        policy, _ = algorithm._policy(observation)
        sample = algorithm._actions.sample(policy)
        outputs, _ = algorithm._critics.online((observation, sample.vector))
        return outputs.mean(-1).squeeze(-1).amin(1)


@slow_but_for("test_learns_the_better_action")
class TestTqc(TestQuantileSacWithLastingNoise):
    algorithm = TqcAlgorithm

    def options(self, encoder):
        model = QuantileHead(num_quantiles=8)
        options = {**super().options(encoder), "return_model": model}
        return {**options, "num_critics": 2, "num_dropped_quantiles": 1}


@pytest.mark.slow
class TestCategoricalSac(TestQuantileSacWithLastingNoise):
    def options(self, encoder):
        model = CategoricalHead(v_min=-6.0, v_max=6.0, num_atoms=25)
        return {**super().options(encoder), "return_model": model}

    def value(self, algorithm, observation):
        policy, _ = algorithm._policy(observation)
        sample = algorithm._actions.sample(policy)
        outputs, _ = algorithm._critics.online((observation, sample.vector))
        return algorithm._return_model.mean(outputs).squeeze(-1).amin(1)


@pytest.mark.slow
class TestCrossq(TestSac):
    algorithm = CrossqAlgorithm
    features = Feature.CONTINUOUS_ACTIONS
    targets: ClassVar = {}
    num_policy_iterations = 60

    def options(self, encoder):
        norm = functools.partial(BatchNorm, momentum=0.9)
        critic = functools.partial(
            CriticNetwork, joint_fc_layer_params=(64,), batch_norm=norm
        )
        return {
            **super().options(encoder),
            "critic_network_ctor": critic,
            "actor_update_period": 2,
        }

    def value(self, algorithm, observation):
        algorithm.eval()
        return super().value(algorithm, observation)


@pytest.mark.slow
class TestRedq(TestSac):
    algorithm = RedqAlgorithm
    features = Feature.DISCRETE_ACTIONS | Feature.CONTINUOUS_ACTIONS

    def options(self, encoder):
        return {**super().options(encoder), "num_critics": 4, "actor_update_period": 1}


@pytest.mark.slow
class TestOac(TestSac):
    algorithm = OacAlgorithm
    features = Feature.CONTINUOUS_ACTIONS
    test_learns_the_temperature_of_the_entropy_that_is_asked_for = None  # discrete


@slow_but_for(VALUE, "test_learns_continuous_actions")
class TestTaac(TestSac):
    algorithm = TaacAlgorithm
    num_policy_iterations = 70
    features = Feature.CONTINUOUS_ACTIONS
    settings: ClassVar = {"mini_batch_length": 4}
    test_learns_the_temperature_of_the_entropy_that_is_asked_for = None  # discrete

    def value(self, algorithm, observation):
        action = algorithm._propose(observation, torch.zeros(len(observation), 1)).mode
        values, _ = algorithm._critics.online((observation, action))
        return values[..., 0].amin(1)


class TestDdpg(OffPolicyLearning):
    algorithm = DdpgAlgorithm
    features = Feature.CONTINUOUS_ACTIONS | Feature.VECTOR_REWARDS
    noise = functools.partial(OrnsteinUhlenbeckNoise, std=0.2)

    def options(self, encoder):
        return {
            "actor_network_ctor": functools.partial(
                ActorNetwork, fc_layer_params=(32,), **encoder
            ),
            "critic_network_ctor": functools.partial(
                CriticNetwork,
                joint_fc_layer_params=(64,),
                encoder_fc_layer_params=(32,) if encoder else (),
                **encoder,
            ),
            "exploration_noise_ctor": self.noise,
            "actor_optimizer": Adam(lr=3e-3),
        }

    def value(self, algorithm, observation):
        action, _ = algorithm._policy(observation)
        values, _ = algorithm._critics.online((observation, action))
        return values.amin(1)

    @pytest.mark.slow  # SAC learns a nest with the same vectors of actions
    def test_learns_a_nest_of_continuous_actions(self):
        super().test_learns_a_nest_of_continuous_actions()


@pytest.mark.slow
class TestDdpgWithGaussianNoise(TestDdpg):
    noise = functools.partial(GaussianNoise, std=0.3)


@pytest.mark.slow
class TestDdpgWithMemory(TestDdpg):
    features = Feature.CONTINUOUS_ACTIONS | Feature.RECURRENT_NETWORKS


@slow_but_for(VALUE, "test_learns_continuous_actions")
class TestTd3(TestDdpg):
    algorithm = Td3Algorithm
    noise = functools.partial(GaussianNoise, std=0.3)
    num_iterations = 60  # the targets follow every other update
    num_policy_iterations = 40
