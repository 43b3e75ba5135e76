"""What the offline algorithms learn from offline buffers, alone and with own steps."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.awac_algorithm import AwacAlgorithm
from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.networks.actor_networks import NormalActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from tests.datasets.recorded_episodes import load_instead
from tests.replayed_steps import TwoStepsEnv, greedy_return

GRU = functools.partial(
    GRUEncodingNetwork, hidden_size=(16,), fc_layer_params=(16,), activation="tanh"
)
OPTIONS: dict[type, dict[str, Any]] = {
    BcAlgorithm: {},
    IqlAlgorithm: {"expectile": 0.9, "beta": 10.0},
    AwacAlgorithm: {"temperature": 0.1},
}
# What the iterations take from where.
PHASES: dict[str, dict[str, Any]] = {
    "offline": {"rl_train_after_update_steps": 100},
    "pre-training": {"rl_train_after_update_steps": 12},
    "mixed": {"mixing_ratios": [0.5, 0.5]},
    "prioritised": {"mixing_ratios": [0.5, 0.5], "priority_replay": True},
}


def networks(algorithm_class, recurrent: bool) -> dict[str, Any]:
    memory = {"encoding_network_ctor": GRU} if recurrent else {}
    actor = functools.partial(NormalActorNetwork, fc_layer_params=(16,), **memory)
    critic = functools.partial(
        CriticNetwork, joint_fc_layer_params=(32,), activation="tanh", **memory
    )
    ctors = {"actor_network_ctor": actor}
    if algorithm_class is not BcAlgorithm:
        ctors |= {"critic_network_ctor": critic, "target_update_tau": 0.05}
    if algorithm_class is IqlAlgorithm:
        ctors["value_network_ctor"] = critic
    return ctors


def build(algorithm_class, *, recurrent: bool = False, **settings):
    torch.manual_seed(0)
    config = TrainerConfig(
        num_iterations=1,
        mini_batch_size=64,
        mini_batch_length=4 if recurrent else 2,
        **{"unroll_length": 4, "num_updates_per_train_iter": 15, **settings},
    )
    env = create_environment(env_ctor=TwoStepsEnv, num_parallel_environments=8, seed=0)
    return algorithm_class(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=config,
        optimizer=Adam(lr=5e-3),
        **networks(algorithm_class, recurrent),
        **OPTIONS[algorithm_class],
    )


def offline_buffer(share_of_right: float) -> ReplayBuffer:
    """1024 steps of a policy that goes right so often."""
    algorithm = build(
        BcAlgorithm, initial_collect_steps=2000, initial_random_policy=True
    )
    algorithm.random_action = lambda inputs: (
        torch.rand(len(inputs.reward)) < share_of_right
    ).long()
    algorithm.unroll(128)
    steps, _ = algorithm.replay_buffer.gather_all()
    buffer = ReplayBuffer(nest.extract_spec(steps, from_dim=2), 8, 128)
    buffer.add_batch(
        nest.map_structure(lambda t: t.transpose(0, 1), steps), time_major=True
    )
    return buffer


def cases():
    """All learn with and without memory; every phase is quickly seen of one of them."""
    quick = {
        "pre-training": IqlAlgorithm,
        "mixed": AwacAlgorithm,
        "prioritised": AwacAlgorithm,
    }
    for algorithm_class in OPTIONS:
        for phase, recurrent in (*((p, False) for p in PHASES), ("offline", True)):
            is_quick = quick.get(phase, algorithm_class) is algorithm_class
            yield pytest.param(
                algorithm_class,
                phase,
                recurrent,
                id=f"{algorithm_class.__name__}-{phase}{'-memory' * recurrent}",
                marks=() if is_quick else pytest.mark.slow,
            )


@pytest.mark.ci
@pytest.mark.parametrize(("algorithm_class", "phase", "recurrent"), [*cases()])
def test_the_best_is_learnt_from_what_others_did(algorithm_class, phase, recurrent):
    algorithm = build(
        algorithm_class,
        recurrent=recurrent,
        offline_buffer_dir="elsewhere",
        **PHASES[phase],
    )
    # What is imitated must be right more often than not.
    share = 0.8 if algorithm_class is BcAlgorithm else 0.5
    load_instead(algorithm, offline_buffer(share))
    targets, is_reached = [], False
    num_iterations = 16 if phase == "offline" else 20
    for iteration in range(1, num_iterations + 1):
        algorithm.train_iter()
        if hasattr(algorithm, "_critics"):
            target = algorithm._critics.target
            targets.append(torch.cat([p.flatten() for p in target.parameters()]))
        # "pre-training" takes 12 of them; own steps have to be trained on, too.
        if iteration >= (14 if phase == "pre-training" else 6) and iteration % 2 == 0:
            was_reached = is_reached
            is_reached = greedy_return(algorithm, TwoStepsEnv) == 1.0
            if was_reached and is_reached:
                break
    assert (algorithm.num_env_steps == 0) == (phase == "offline")
    for before, after in itertools.pairwise(targets):
        assert not torch.equal(before, after)
    assert is_reached
