"""What can be learnt without acting: a policy that is better than the one that did.

All steps are collected by a random policy, before the first update; they go through the
same replay buffer and the same training as those of any other run.
"""

from __future__ import annotations

import functools

import pytest
import torch
from gymnasium import spaces

from alf_lite.algorithms.awac_algorithm import AwacAlgorithm
from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.edac_algorithm import EdacAlgorithm
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.networks.actor_networks import (
    ActorNetwork,
    NormalActorNetwork,
    SquashedActorNetwork,
)
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.masked_environment import ForbiddenActionEnv
from alf_lite.testing.probe_environments import IdentityEnv, ObservationPolicyEnv
from alf_lite.testing.structured_environments import NestedEnv
from tests.replayed_steps import TwoStepsEnv, train_until, trained_on_random_steps

Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(64,))
Stochastic = functools.partial(SquashedActorNetwork, fc_layer_params=(32,))
Deterministic = functools.partial(ActorNetwork, fc_layer_params=(32,))

DISCRETE = functools.partial(IdentityEnv, spaces.Discrete(3))
COMPONENTS = functools.partial(IdentityEnv, spaces.MultiDiscrete([2, 3]))
CONTINUOUS = functools.partial(IdentityEnv, spaces.Box(-1.0, 1.0, (2,)))

CQL = functools.partial(
    CqlAlgorithm,
    actor_network_ctor=Stochastic,
    critic_network_ctor=Critic,
    cql_alpha=0.2,
    num_sampled_actions=4,
    initial_alpha=0.03,
    learn_alpha=False,
)
ENSEMBLE = {
    "actor_network_ctor": Stochastic,
    "critic_network_ctor": Critic,
    "initial_alpha": 0.03,
    "learn_alpha": False,
}
SAC_N = functools.partial(SacAlgorithm, num_critics=10, **ENSEMBLE)
EDAC = functools.partial(EdacAlgorithm, num_critics=5, diversity_weight=0.1, **ENSEMBLE)
LAGRANGE = functools.partial(CQL, cql_threshold=1.0)
CQL_DQN = functools.partial(
    CqlDqnAlgorithm,
    q_network_ctor=functools.partial(QNetwork, fc_layer_params=(64,)),
    cql_alpha=0.2,
)
TD3_BC = functools.partial(
    Td3BcAlgorithm, actor_network_ctor=Deterministic, critic_network_ctor=Critic
)

Normal = functools.partial(NormalActorNetwork, fc_layer_params=(16,))
Tanh = functools.partial(CriticNetwork, joint_fc_layer_params=(16,), activation="tanh")
REGRESSION = {
    "actor_network_ctor": Normal,
    "critic_network_ctor": Tanh,
    "gamma": 0.9,
    "target_update_tau": 0.05,
}
IQL = functools.partial(IqlAlgorithm, value_network_ctor=Tanh, beta=10.0, **REGRESSION)
AWAC = functools.partial(AwacAlgorithm, temperature=0.1, **REGRESSION)
FAR = functools.partial(IQL, expectile=0.9)
MASKED = {"action_mask_key": "action_mask"}

OBSERVED = functools.partial(ObservationPolicyEnv, "continuous")
MOVES = functools.partial(TwoStepsEnv, is_continuous=True)

SLOW = pytest.mark.slow


@pytest.mark.ci
@pytest.mark.parametrize(
    ("algorithm_ctor", "env_ctor", "at_least"),
    [
        pytest.param(CQL, CONTINUOUS, 3.4, id="cql-continuous", marks=SLOW),
        pytest.param(LAGRANGE, CONTINUOUS, 3.4, id="cql-with-threshold", marks=SLOW),
        pytest.param(CQL, DISCRETE, 3.8, id="cql-discrete", marks=SLOW),
        pytest.param(CQL, NestedEnv, 3.0, id="cql-mixed"),
        pytest.param(CQL_DQN, DISCRETE, 3.8, id="cql_dqn", marks=SLOW),
        pytest.param(CQL_DQN, COMPONENTS, 3.8, id="cql_dqn-components"),
        pytest.param(TD3_BC, CONTINUOUS, 3.4, id="td3_bc"),
        pytest.param(EDAC, CONTINUOUS, 3.4, id="edac"),
        pytest.param(SAC_N, CONTINUOUS, 3.4, id="sac_n", marks=SLOW),
    ],
)
def test_greedy_actions_are_better_than_those_of_the_data(
    algorithm_ctor, env_ctor, at_least
):
    torch.manual_seed(0)
    config = TrainerConfig(
        num_iterations=1,
        unroll_length=250,
        initial_collect_steps=2000,
        initial_random_policy=True,
        mini_batch_size=64,
        mini_batch_length=2,
        num_updates_per_train_iter=50,
    )
    env = create_environment(env_ctor=env_ctor, num_parallel_environments=8, seed=0)
    algorithm = algorithm_ctor(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=config,
        optimizer=Adam(lr=3e-3),
        gamma=0.5,
        target_update_tau=0.05,
    )
    algorithm.train_iter()
    behaviour = {m.name: m.result() for m in algorithm.get_metrics()}["AverageReturn"]
    assert behaviour < 3.0
    at_least = max(at_least, behaviour + 0.5)
    train = algorithm.train_from_replay_buffer
    train_until(algorithm, env_ctor, at_least, train, num_done=1)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("algorithm_ctor", "env_ctor", "at_least"),
    [
        pytest.param(functools.partial(IQL, beta=20.0), OBSERVED, 0.85, id="iql"),
        pytest.param(
            functools.partial(AWAC, num_action_samples=4), OBSERVED, 0.85, id="awac"
        ),
        # What no random policy does is put together from steps.
        pytest.param(FAR, TwoStepsEnv, 1.0, id="iql-two-steps", marks=SLOW),
        pytest.param(FAR, MOVES, 1.0, id="iql-two-steps-continuous"),
        pytest.param(
            functools.partial(FAR, n_step=2),
            TwoStepsEnv,
            1.0,
            id="iql-two-steps-at-once",
        ),
        pytest.param(AWAC, TwoStepsEnv, 1.0, id="awac-two-steps"),
        pytest.param(AWAC, MOVES, 1.0, id="awac-two-steps-continuous", marks=SLOW),
        pytest.param(
            functools.partial(IQL, action_mask_key="action_mask"),
            ForbiddenActionEnv,
            3.9,
            id="iql-masked",
        ),
        pytest.param(
            functools.partial(AWAC, action_mask_key="action_mask"),
            ForbiddenActionEnv,
            3.9,
            id="awac-masked",
        ),
    ],
)
def test_a_regression_on_random_data_finds_the_best(algorithm_ctor, env_ctor, at_least):
    def make(env, config):
        specs = env.observation_spec, env.action_spec
        return algorithm_ctor(*specs, env=env, config=config, optimizer=Adam(lr=5e-3))

    length = algorithm_ctor.keywords.get("n_step", 1) + 1
    trained_on_random_steps(
        make, env_ctor, 400, at_least=at_least, mini_batch_length=length
    )
