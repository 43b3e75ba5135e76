"""Coefficients of losses that change in the course of training."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

import alf_lite
from alf_lite import algorithms
from alf_lite.optimizers import Adam
from alf_lite.utils import random_state
from alf_lite.utils.schedulers import LinearScheduler, Scheduler, StepScheduler

ON_POLICY = {"unroll_length": 8}
PPO = {**ON_POLICY, "epochs": 2, "mini_batch_size": 8, "mini_batch_length": 1}
OFF_POLICY = {
    "unroll_length": 4,
    "initial_collect_steps": 8,
    "num_updates_per_train_iter": 2,
    "mini_batch_size": 8,
    "replay_buffer_length": 100,
}
ONE_STEP = {**OFF_POLICY, "mini_batch_length": 2}
RETURNS = {"gamma": 0.7, "td_lambda": 0.5}
LOSS = {"entropy_regularization": 0.3, "value_loss_weight": 2.0, "advantage_clip": 0.1}
CLIPS = {"clip_epsilon": 0.001, "value_clip": 0.001, "log_prob_clip": 0.5}
CQL = {"cql_alpha": 0.3, "cql_temperature": 3.0}
# Name → algorithm, environment, settings, what it is given, coefficient → another value
CASES = {
    "A2C": ("ActorCriticAlgorithm", "Pendulum-v1", ON_POLICY, {}, RETURNS | LOSS),
    "PPO": ("PPOAlgorithm", "CartPole-v1", PPO, {}, RETURNS | LOSS | CLIPS),
    "IMPALA": ("ImpalaAlgorithm", "CartPole-v1", ON_POLICY, {}, RETURNS),
    "PPG": (
        *("PPGAlgorithm", "CartPole-v1", PPO, {"auxiliary_period": 1}),
        {"clone_weight": 0.1},
    ),
    "DQN": ("DqnAlgorithm", "CartPole-v1", ONE_STEP, {}, {"gamma": 0.7}),
    "Munchausen DQN": (
        *("MunchausenDqnAlgorithm", "CartPole-v1", ONE_STEP, {}),
        {
            "munchausen_alpha": 0.5,
            "munchausen_temperature": 0.3,
            "munchausen_clipping": -0.1,
        },
    ),
    "DQN+CQL": ("CqlDqnAlgorithm", "CartPole-v1", OFF_POLICY, {}, CQL),
    "SAC": (
        *("SacAlgorithm", "Pendulum-v1", OFF_POLICY, {}),
        {"gamma": 0.7, "target_entropy": -3.0, "dqda_clipping": 1e-3},
    ),
    "SAC, discrete": (
        *("SacAlgorithm", "CartPole-v1", OFF_POLICY, {}),
        {"discrete_target_entropy": 0.1},
    ),
    "OAC": ("OacAlgorithm", "Pendulum-v1", OFF_POLICY, {}, {"optimism": -1e3}),
    "TAAC": (
        *("TaacAlgorithm", "Pendulum-v1", {**OFF_POLICY, "mini_batch_length": 3}, {}),
        {"target_entropy": -3.0, "switch_target_entropy": 0.1},
    ),
    "CQL": ("CqlAlgorithm", "Pendulum-v1", OFF_POLICY, {}, CQL),
    "DDPG": ("DdpgAlgorithm", "Pendulum-v1", OFF_POLICY, {}, {"action_l2": 0.5}),
    "TD3": (
        *("Td3Algorithm", "Pendulum-v1", OFF_POLICY, {}),
        {"target_noise_std": 0.4, "target_noise_clip": 0.1},
    ),
    "TD3+BC": ("Td3BcAlgorithm", "Pendulum-v1", OFF_POLICY, {}, {"bc_alpha": 1.0}),
    "AWAC": (
        *("AwacAlgorithm", "Pendulum-v1", OFF_POLICY, {}),
        {"temperature": 0.3, "max_weight": 1e-3},
    ),
    "IQL": (
        *("IqlAlgorithm", "Pendulum-v1", OFF_POLICY, {}),
        {"expectile": 0.9, "beta": 1.0, "max_weight": 1e-3},
    ),
    "BC": (
        *("BcAlgorithm", "CartPole-v1", OFF_POLICY, {}),
        {"entropy_regularization": 0.3},
    ),
}
START = {
    "advantage_clip": 1.0,
    "value_clip": 0.5,
    "log_prob_clip": 5.0,
    "dqda_clipping": 1.0,
    "target_entropy": -1.0,
    "discrete_target_entropy": 0.5,
    "switch_target_entropy": 0.5,
    "max_weight": 0.5,
    "action_l2": 0.1,
    "munchausen_temperature": 1.0,
}


@pytest.fixture(autouse=True)
def _generators_stay():
    with random_state.preserved():
        yield


def start(name, coefficient):
    """What the coefficient is at first: as it is published, or a value of ours."""
    algorithm = getattr(algorithms, CASES[name][0])
    if coefficient in START:
        return START[coefficient]
    return inspect.signature(algorithm).parameters[coefficient].default


def train(name, after_first=None, **coefficients):
    """The parameters after two iterations, as one vector."""
    kind, env, settings, arguments, _ = CASES[name]
    config = alf_lite.TrainerConfig(random_seed=3, num_iterations=2, **settings)
    algorithm = getattr(algorithms, kind)(
        env=alf_lite.create_environment(env, 2),
        config=config,
        optimizer=Adam(lr=0.01),
        **arguments,
        **coefficients,
    )
    algorithm.train_iter()
    if after_first is not None:
        after_first()
    algorithm.train_iter()
    return torch.cat([p.detach().flatten() for p in algorithm.parameters()])


class Told(Scheduler):
    """What it was told last, whatever the progress."""

    progress_type = "iterations"

    def __init__(self, value):
        self.value = value

    def value_at(self, x):
        return self.value


@functools.cache
def constant(name):
    return train(name, **{c: start(name, c) for c in CASES[name][4]})


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_that_stays_is_the_number_to_the_bit(name):
    values = {c: start(name, c) for c in CASES[name][4]}
    scheduled = {c: LinearScheduler([(0, v), (1, v)]) for c, v in values.items()}
    assert torch.equal(train(name, **scheduled), constant(name))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "coefficient"), [(name, c) for name in CASES for c in CASES[name][4]]
)
def test_a_schedule_counts_from_the_iteration_on_in_which_it_changes(name, coefficient):
    values = {c: start(name, c) for c in CASES[name][4]}
    first, second = values[coefficient], CASES[name][4][coefficient]
    scheduled = StepScheduler([(0.5, first), (1.0, second)])
    changed = train(name, **{**values, coefficient: scheduled})
    assert not torch.equal(changed, constant(name))
    if name in ("A2C", "SAC"):  # the value at that progress is what counts
        told = Told(first)
        tell = functools.partial(setattr, told, "value", second)
        by_hand = train(name, after_first=tell, **{**values, coefficient: told})
        assert torch.equal(changed, by_hand)


def test_gamma_of_normalizers_and_metrics_stays_that_of_the_start():
    gamma = LinearScheduler([(0.0, 0.5), (1.0, 0.9)])
    config = alf_lite.TrainerConfig(num_iterations=1, **ON_POLICY)
    algorithm = alf_lite.ActorCriticAlgorithm(
        env=alf_lite.create_environment("CartPole-v1", 2), config=config, gamma=gamma
    )
    algorithm.train_iter()
    assert (algorithm.gamma, algorithm.initial_gamma) == (0.9, 0.5)


@pytest.mark.parametrize(
    ("settings", "coefficients", "message"),
    [
        ({"compile": True}, {"gamma": StepScheduler([(1.0, 0.5)])}, "of gamma, for"),
        ({}, {"gamma": LinearScheduler([(0.0, 0.5), (1.0, 2.0)])}, "gamma must lie in"),
        ({}, {"clip_epsilon": LinearScheduler([(0.0, -0.1)])}, "clip_epsilon must be"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(settings, coefficients, message):
    config = alf_lite.TrainerConfig(num_iterations=1, **PPO, **settings)
    with pytest.raises(ValueError, match=message):
        alf_lite.PPOAlgorithm(
            env=alf_lite.create_environment("CartPole-v1", 2),
            config=config,
            **coefficients,
        )


@pytest.mark.parametrize(
    ("ctor", "parts"),
    [
        (alf_lite.Td3Algorithm, {"dqda_clipping": 0.1}),
        (algorithms.EdacAlgorithm, {}),
        (alf_lite.Agent, {"gradient_penalty": 0.1}),
        (alf_lite.Agent, {"gradient_penalty": 0.0}),
    ],
    ids=["TD3", "EDAC", "GAIL", "GAIL, without"],
)
def test_a_slope_in_a_loss_is_not_compiled(ctor, parts):
    refused, given = next(iter(parts), "diversity_weight"), parts
    if ctor is alf_lite.Agent:
        gail = functools.partial(algorithms.GailReward, optimizer=Adam(), **parts)
        given = {"rl_algorithm_ctor": alf_lite.SacAlgorithm}
        given |= {"intrinsic_rewards": {"gail": gail}}
    config = alf_lite.TrainerConfig(num_iterations=100, compile=True, **ONE_STEP)
    env = alf_lite.create_environment("Pendulum-v1", 2)
    if parts == {"gradient_penalty": 0.0}:
        ctor(env=env, config=config, **given)
        return
    with pytest.raises(ValueError, match=f"{refused} of .* slope of a"):
        ctor(env=env, config=config, **given)


def test_a_schedule_of_an_entropy_in_the_loss_is_not_compiled():
    config = alf_lite.TrainerConfig(num_iterations=100, compile=True, **ON_POLICY)
    schedule = LinearScheduler([(0.0, 0.6), (1.0, 0.2)])
    for target in (algorithms.EntropyTarget, algorithms.SGDEntropyTarget):
        build = functools.partial(
            alf_lite.Agent,
            env=alf_lite.create_environment("CartPole-v1", 2),
            config=config,
            rl_algorithm_ctor=alf_lite.ActorCriticAlgorithm,
            entropy_target_ctor=functools.partial(target, target_entropy=schedule),
        )
        if target is algorithms.EntropyTarget:
            build()  # which reads it after the update
            continue
        with pytest.raises(ValueError, match="a schedule of target_entropy, for"):
            build()


def test_losses_are_compiled_whatever_moves_the_targets():
    config = alf_lite.TrainerConfig(num_iterations=100, compile=True, **ONE_STEP)
    alf_lite.DqnAlgorithm(
        env=alf_lite.create_environment("CartPole-v1", 2),
        config=config,
        target_update_tau=LinearScheduler([(0.0, 0.5), (1.0, 0.1)]),
    )
