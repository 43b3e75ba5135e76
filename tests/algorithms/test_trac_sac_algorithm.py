from __future__ import annotations

import functools

import pytest
import torch
from gymnasium import spaces

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.trac_sac_algorithm import TracSacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.distributions import functions as distributions
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    SquashedActorNetwork,
)
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.probe_environments import IdentityEnv
from tests.replayed_steps import (
    BOX,
    CHOICE,
    FIRST,
    LAST,
    MIXED,
    OBSERVATION,
    trained_until,
    update,
    windows,
)

Actor = functools.partial(SquashedActorNetwork, fc_layer_params=(32,))
Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(64,))


def make(action_spec=BOX, **kwargs):
    torch.manual_seed(0)
    arguments = {"actor_network_ctor": Actor, "critic_network_ctor": Critic, **kwargs}
    return TracSacAlgorithm(OBSERVATION, action_spec, **arguments)


@pytest.mark.parametrize(
    "action_spec", [BOX, CHOICE, MIXED], ids=["box", "choice", "mixed"]
)
def test_no_update_moves_the_policy_farther_than_allowed(action_spec):
    steps = windows(action_spec, length=3, batch_size=32)
    # Half of the windows begin with the end of an episode, which nothing is learned of.
    steps.step_type[::2, 0], steps.step_type[::2, 1] = LAST, FIRST
    is_end = steps.is_last()
    steps.observation[is_end] = 0.0
    seen = steps.observation[:, :-1][~is_end[:, :-1]]
    moves = {}
    for limit in (1e-3, 1e3):
        algorithm = make(action_spec, max_policy_kl=limit, optimizer=Adam(lr=0.03))
        moves[limit] = []
        for _ in range(5):
            with torch.no_grad():
                old, _ = algorithm._policy(seen)
            critics = [p.clone() for p in algorithm._critics.online.parameters()]
            update(algorithm, steps)
            with torch.no_grad():
                new, _ = algorithm._policy(seen)
            moves[limit].append(distributions.kl_divergence(old, new).mean().item())
            assert not torch.equal(
                critics[0], next(algorithm._critics.online.parameters())
            )
    assert 0 < min(moves[1e-3]) <= max(moves[1e-3]) <= 1e-3
    assert max(moves[1e3]) > 5e-3


@pytest.mark.ci
def test_it_learns_within_its_limit():
    env_ctor = functools.partial(IdentityEnv, spaces.Box(-1.0, 1.0, (2,)))
    torch.manual_seed(0)
    algorithm = TracSacAlgorithm(
        env=create_environment(env_ctor=env_ctor, num_parallel_environments=8, seed=0),
        config=TrainerConfig(
            num_iterations=200, unroll_length=4, initial_collect_steps=400,
            initial_random_policy=True, mini_batch_size=64,
            num_updates_per_train_iter=4,
        ),
        max_policy_kl=0.01,
        actor_network_ctor=Actor,
        critic_network_ctor=Critic,
        optimizer=Adam(lr=1e-2),
        gamma=0.5,
        initial_alpha=0.03,
        learn_alpha=False,
    )  # fmt: skip
    trained_until(algorithm, env_ctor, at_least=3.3, num_iterations=200)
    assert algorithm._trust_region.num_shortened > 0


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="max_policy_kl must be positive and finite"):
        make(max_policy_kl=0.0)
    encoder = functools.partial(GRUEncodingNetwork, hidden_size=(8,))
    with pytest.raises(ConfigError, match="a limit for policies with memory is not"):
        make(actor_network_ctor=functools.partial(Actor, encoding_network_ctor=encoder))


@pytest.mark.parametrize(
    ("option", "layer"),
    [
        ({"batch_norm": True}, "BatchNorm"),
        ({"dropout": 0.1}, "Dropout"),
        ({"noise_std": 0.1}, "NoisyLinear"),
    ],
)
def test_a_policy_that_differs_from_itself_is_refused(option, layer):
    # What KL(π ‖ π) is then would take updates back, soon all of them.
    encoder = functools.partial(EncodingNetwork, **option)
    message = f"max_policy_kl: with {layer}, a policy"
    with pytest.raises(ConfigError, match=message):
        make(actor_network_ctor=functools.partial(Actor, encoding_network_ctor=encoder))
    actor = functools.partial(ActorDistributionNetwork, encoding_network_ctor=encoder)
    specs = OBSERVATION, CHOICE
    with pytest.raises(ConfigError, match=message):
        ActorCriticAlgorithm(*specs, actor_network_ctor=actor, max_policy_kl=0.01)
    # Or it would end the updates of an unroll, and make learning rates small.
    for setting in ("target_kl", "desired_kl"):
        message = f"{setting}: with {layer}, a policy"
        with pytest.raises(ConfigError, match=message):
            PPOAlgorithm(*specs, actor_network_ctor=actor, **{setting: 0.01})
