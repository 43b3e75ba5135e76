"""Small off-policy actor-critics, no two networks of which agree."""

from __future__ import annotations

import functools

import torch

from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.networks.actor_networks import ActorNetwork, SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.optimizers.optimizers import Adam
from tests.replayed_steps import BOX, OBSERVATION

GAMMA = 0.9

Actor = functools.partial(SquashedActorNetwork, fc_layer_params=(16,))
Critic = functools.partial(CriticNetwork, joint_fc_layer_params=(16,))


def make(cls=SacAlgorithm, action_spec=BOX, *, spread: float = 0.3, **kwargs):
    """With random parameters, so that no two networks agree."""
    torch.manual_seed(0)
    actor = Actor
    if issubclass(cls, DdpgAlgorithm):
        actor = functools.partial(ActorNetwork, fc_layer_params=(16,))
    arguments = {
        "gamma": GAMMA,
        "actor_network_ctor": actor,
        "critic_network_ctor": Critic,
        "optimizer": Adam(lr=3e-3),
        **kwargs,
    }
    observation_spec = arguments.pop("observation_spec", OBSERVATION)
    algorithm = cls(observation_spec, action_spec, **arguments)
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            if "alpha" not in name:
                parameter.add_(spread * torch.randn_like(parameter))
    return algorithm


def first_step(observation: torch.Tensor) -> TimeStep:
    batch_size = len(observation)
    return TimeStep(
        step_type=torch.full((batch_size,), StepType.FIRST, dtype=torch.int32),
        reward=torch.zeros(batch_size),
        discount=torch.ones(batch_size),
        observation=observation,
        prev_action=torch.zeros(batch_size, 2),
    )
