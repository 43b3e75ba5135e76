"""Acting and stepping in compiled code collect what they collect without it."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep
from alf_lite.data_transformers.normalizing_transformers import ObservationNormalizer
from alf_lite.environments import create_environment
from alf_lite.environments.creation import EnvironmentsOfRun
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.recurrent_networks import LSTMEncodingNetwork
from alf_lite.unrollers import compiled_unroller
from alf_lite.unrollers.compiled_unroller import CompiledUnroller
from alf_lite.unrollers.sync_unroller import SyncUnroller

# Compiles as far as it takes no time: what is traced runs as it is.
TRACED = {"backend": "eager"}


def build(name, algorithm=PPOAlgorithm, arguments=None, **settings):
    config = TrainerConfig(
        algorithm_ctor=functools.partial(algorithm, **(arguments or {})),
        num_iterations=10,
        unroll_length=6,
        random_seed=0,
        **settings,
    )
    of_run = EnvironmentsOfRun(device=config.device)
    env = create_environment(name, 5, 0, max_episode_steps=8, of_run=of_run)
    torch.manual_seed(0)
    return create_algorithm(config, env)


def pair(name, acts_in_graph=True, **settings):
    """Two algorithms that are alike, and an unroller of each kind."""
    torch.compiler.reset()
    plain, compiled = build(name, **settings), build(name, **settings)
    for algorithm in (plain, compiled):
        algorithm.set_training(False)
    return (
        (plain, SyncUnroller(plain.env, plain)),
        (
            compiled,
            CompiledUnroller(
                compiled.env,
                compiled,
                acts_in_graph=acts_in_graph,
                compile_options=TRACED,
            ),
        ),
    )


def assert_same_unrolls(one, other, number=3, bootstrap=True):
    results = []
    for algorithm, unroller in (one, other):
        unroller.reset(3)
        torch.manual_seed(1)
        unrolls = []
        for _ in range(number):
            unroll = unroller.unroll(6, bootstrap)
            unrolls.append(
                nest.map_structure(torch.clone, (unroll.experience, unroll.time_steps))
            )
            algorithm.data_transformer.observe(unrolls[-1][1])
        results.append(unrolls)
    assert_close(*results)


def assert_close(one, other):
    nest.assert_same_structure(one, other)
    for (path, leaf), same in zip(
        nest.flatten_with_path(one), nest.flatten(other), strict=True
    ):
        torch.testing.assert_close(
            same, leaf, rtol=1e-5, atol=1e-5, msg=lambda m, p=path: f"{p}: {m}"
        )


@pytest.mark.ci
@pytest.mark.parametrize("acts_in_graph", [True, False])
def test_it_collects_the_same(acts_in_graph):
    assert_same_unrolls(*pair("torch/CartPole", acts_in_graph))


@pytest.mark.slow  # traces an LSTM for some seconds
@pytest.mark.parametrize("acts_in_graph", [True, False])
def test_a_recurrent_policy_forgets_where_an_episode_begins(acts_in_graph):
    network = functools.partial(
        ActorDistributionNetwork, encoding_network_ctor=LSTMEncodingNetwork
    )
    arguments = {"actor_network_ctor": network}
    assert_same_unrolls(*pair("torch/CartPole", acts_in_graph, arguments=arguments))


@pytest.mark.ci
def test_data_transformers_see_every_step():
    assert_same_unrolls(
        *pair("torch/Pendulum", data_transformer_ctor=ObservationNormalizer)
    )


@pytest.mark.ci
def test_without_bootstrap_row():
    assert_same_unrolls(
        *pair("torch/Pendulum", algorithm=SacAlgorithm), bootstrap=False
    )


@pytest.mark.ci
def test_other_actions_than_the_policys_are_taken_without_it():
    torch.compiler.reset()
    algorithm = build("torch/Pendulum")
    chosen = []

    def act(inputs, state):
        chosen.append(torch.full((5, 1), 0.25))
        return AlgStep(chosen[-1], state, algorithm.rollout_step(inputs, state).info)

    acts_otherwise = True
    unroller = CompiledUnroller(
        algorithm.env,
        algorithm,
        rollout_step=act,
        acts_in_graph=True,
        acts_otherwise=lambda: acts_otherwise,
        compile_options=TRACED,
    )
    assert (unroller.unroll(6, bootstrap=False).experience.action == 0.25).all()
    acts_otherwise = False
    after = unroller.unroll(6, bootstrap=False)
    assert len(chosen) == 6
    assert (after.experience.action != 0.25).all()


@pytest.mark.ci
def test_a_setting_of_the_environment_may_change_between_unrolls():
    both = pair("torch/Pendulum")
    assert_same_unrolls(*both, number=1)
    for algorithm, _ in both:
        algorithm.env.set_attribute("gravity", 3.0)
    assert_same_unrolls(*both, number=2)


@pytest.mark.slow
def test_it_is_resumed_where_it_was():
    _, (_, unroller) = pair("torch/CartPole")
    unroller.reset(3)
    unroller.unroll(6, bootstrap=True)
    state = unroller.state_dict()
    torch.manual_seed(1)
    expected = nest.map_structure(
        torch.clone, unroller.unroll(6, bootstrap=True).experience
    )
    _, (_, resumed) = pair("torch/CartPole")
    assert resumed.load_state_dict(state, seed=9) == {}
    torch.manual_seed(1)
    assert_close(expected, resumed.unroll(6, bootstrap=True).experience)


@pytest.mark.ci
def test_one_graph_without_a_break():
    torch.compiler.reset()
    algorithm = build("torch/PointMass")
    env = algorithm.env
    env.reset(0)
    function = compiled_unroller._act_and_step(env, algorithm)
    act_and_step = torch.compile(function, fullgraph=True, **TRACED)
    with torch.inference_mode():
        state = algorithm.get_initial_rollout_state(5)
        before = (env.state, env.current_time_step, state, ())
        _, time_step, *_ = act_and_step(before, (), env.draw(1)[0])
    assert time_step.is_mid().all()


@pytest.mark.slow  # compiles for half a minute
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own code
def test_a_run_that_is_compiled_collects_the_same():
    torch.compiler.reset()
    plain, compiled = build("torch/CartPole"), build("torch/CartPole", compile=True)
    assert type(plain.training_run.collector.unroller) is SyncUnroller
    assert type(compiled.training_run.collector.unroller) is CompiledUnroller
    assert_same_unrolls(
        (plain, plain.training_run.collector.unroller),
        (compiled, compiled.training_run.collector.unroller),
    )
    assert compiled.train_iter() > 0


@pytest.mark.gpu
def test_on_a_gpu_nothing_leaves_it():
    algorithm = build("torch/CartPole", device="cuda")
    assert algorithm.env.device == algorithm.device
    experience = algorithm.unroll(6)
    assert {leaf.device.type for leaf in nest.flatten(experience)} == {"cuda"}
