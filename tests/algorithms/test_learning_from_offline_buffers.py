"""What only offline buffers know is learnt from them: alone, and beside own steps."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.dqfd_algorithm import DqfdAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep
from alf_lite.data_transformers.sqil_transformer import SqilTransformer
from alf_lite.environments.creation import create_environment
from alf_lite.networks.actor_networks import ActorNetwork, SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.value_networks import QNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.policies.evaluator import evaluate
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.testing.probe_environments import IdentityEnv
from tests.datasets.recorded_episodes import load_instead

DISCRETE = functools.partial(IdentityEnv, spaces.Discrete(3))
COMPONENTS = functools.partial(IdentityEnv, spaces.MultiDiscrete([2, 3]))
CONTINUOUS = functools.partial(IdentityEnv, spaces.Box(-1.0, 1.0, (2,)))

Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(64,))
CQL = functools.partial(
    CqlAlgorithm,
    actor_network_ctor=functools.partial(SquashedActorNetwork, fc_layer_params=(32,)),
    critic_network_ctor=Critic,
    cql_alpha=0.2,
    num_sampled_actions=4,
    learn_alpha=False,
    initial_alpha=0.03,
)
TD3_BC = functools.partial(
    Td3BcAlgorithm,
    actor_network_ctor=functools.partial(ActorNetwork, fc_layer_params=(32,)),
    critic_network_ctor=Critic,
)


class Scripted(RLAlgorithm):
    """Acts as a function of the observation."""

    def __init__(self, observation_spec, action_spec, *, act, **kwargs):
        super().__init__(observation_spec, action_spec, is_on_policy=False, **kwargs)
        self._act_on = act

    def rollout_step(self, inputs, state):
        return AlgStep(self._act_on(inputs.observation))


def make_env(env_ctor, seed: int = 0):
    return create_environment(env_ctor=env_ctor, num_parallel_environments=8, seed=seed)


def collect(env_ctor, act) -> ReplayBuffer:
    """1000 steps of a scripted policy."""
    torch.manual_seed(5)
    with make_env(env_ctor, seed=5) as env:
        config = TrainerConfig(num_iterations=1, mini_batch_length=2)
        policy = Scripted(
            env.observation_spec, env.action_spec, act=act, env=env, config=config
        )
        policy.unroll(125)
        return policy.replay_buffer


def make(ctor, env_ctor, buffer: ReplayBuffer, **settings) -> Any:
    torch.manual_seed(0)
    env = make_env(env_ctor)
    config = TrainerConfig(
        num_iterations=1,
        offline_buffer_dir="demonstrations",
        mini_batch_size=64,
        mini_batch_length=2,
        **settings,
    )
    algorithm = ctor(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=config,
        optimizer=Adam(lr=3e-3),
        gamma=0.5,
        target_update_tau=0.05,
    )
    load_instead(algorithm, buffer)
    return algorithm


def greedy_return(algorithm, env_ctor) -> float:
    with make_env(env_ctor, seed=1) as env:
        return evaluate(algorithm, env, num_episodes=32, seed=1).mean


def at_random(space: spaces.Space, observation: torch.Tensor) -> torch.Tensor:
    if isinstance(space, spaces.Discrete):
        return torch.randint_like(observation, 3)
    return 2 * torch.rand_like(observation) - 1


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ctor", "env_ctor", "at_least"),
    [
        pytest.param(CQL, CONTINUOUS, 3.3, id="cql", marks=pytest.mark.slow),
        pytest.param(CqlDqnAlgorithm, DISCRETE, 3.8, id="cql_dqn"),
        pytest.param(TD3_BC, CONTINUOUS, 3.3, id="td3_bc"),
    ],
)
def test_offline_buffers_alone_are_enough(ctor, env_ctor, at_least):
    act = functools.partial(at_random, env_ctor.args[0])
    algorithm = make(
        functools.partial(ctor, offline_rows_only=True),
        env_ctor,
        collect(env_ctor, act),
        num_updates_per_train_iter=400,
        rl_train_after_update_steps=1,
    )
    calc_loss, are_offline = algorithm.calc_loss, []
    algorithm.calc_loss = lambda info: (
        are_offline.append(bool(info.is_offline.all())) or calc_loss(info)
    )
    algorithm.train_iter()
    assert are_offline == [True] * 400
    assert algorithm.num_env_steps == 0
    assert greedy_return(algorithm, env_ctor) >= at_least


@pytest.mark.ci
def test_demonstrations_are_imitated_whatever_the_environment_rewards():
    """The demonstrator never gets a reward; imitating it is the only way to none."""
    buffer = collect(DISCRETE, lambda observation: (observation + 1) % 3)
    stored = nest.map_structure(torch.clone, buffer.gather_all()[0])
    assert not stored.time_step.reward.any()
    algorithm = make(
        DqnAlgorithm,
        DISCRETE,
        buffer,
        unroll_length=8,
        num_updates_per_train_iter=16,
    )
    algorithm.data_transformer = SqilTransformer(
        algorithm.observation_spec, algorithm.reward_spec
    )
    for _ in range(30):
        algorithm.train_iter()
    assert greedy_return(algorithm, DISCRETE) <= 0.1
    nest.map_structure(torch.testing.assert_close, buffer.gather_all()[0], stored)
    own = algorithm.replay_buffer.gather_all()[0].time_step
    metrics = {m.name: m.result() for m in algorithm.get_metrics()}
    assert own.reward.sum() > 0  # by chance, and by exploring
    assert metrics["AverageReturn"] > 0


def overrated(*args):
    """Q-values that are too high at first, those of what nobody shows, too."""
    network = QNetwork(*args, fc_layer_params=(32,))
    bias = network._advantage[-1].bias
    with torch.no_grad():
        bias += torch.linspace(9.0, 10.0, bias.numel())
    return network


@pytest.mark.ci
@pytest.mark.parametrize("env_ctor", [DISCRETE, COMPONENTS], ids=["one", "components"])
def test_a_margin_tells_that_what_nobody_shows_is_worse(env_ctor):
    """The values of demonstrations alone do not: nothing is known of other actions."""
    buffer = collect(env_ctor, lambda observation: observation)
    found = {}
    for cls in (DqnAlgorithm, DqfdAlgorithm):
        algorithm = make(
            functools.partial(cls, q_network_ctor=overrated),
            env_ctor,
            buffer,
            num_updates_per_train_iter=300,
            rl_train_after_update_steps=1,
        )
        algorithm.train_iter()
        assert algorithm.num_env_steps == 0
        found[cls] = greedy_return(algorithm, env_ctor)
    assert found[DqnAlgorithm] < 3.0
    assert found[DqfdAlgorithm] >= 3.8
