from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.ddpg_algorithm import DdpgInfo
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.data_structures import StepType, TimeStep
from alf_lite.networks.actor_networks import ActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

OBSERVATION = TensorSpec((3,))
BOX = BoundedTensorSpec((2,), torch.float32, -1, 1)


def td3(**kwargs) -> Td3Algorithm:
    torch.manual_seed(0)
    algorithm = Td3Algorithm(
        OBSERVATION,
        BOX,
        actor_network_ctor=functools.partial(ActorNetwork, fc_layer_params=(16,)),
        critic_network_ctor=functools.partial(
            CriticNetwork, joint_fc_layer_params=(16,)
        ),
        optimizer=Adam(lr=1e-3),
        **kwargs,
    )
    with torch.no_grad():
        for parameter in algorithm.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return algorithm


def test_the_noise_of_a_target_has_its_deviation_and_its_limit():
    torch.manual_seed(0)
    zeros = torch.zeros(50_000, 2)
    wide = td3(target_noise_std=0.1, target_noise_clip=0.9)._target_action(zeros)
    assert wide.std().item() == pytest.approx(0.1, rel=0.02)
    narrow = td3(target_noise_std=0.2, target_noise_clip=0.3)._target_action(zeros)
    assert narrow.abs().max().item() == pytest.approx(0.3)
    assert not td3(target_noise_std=0.0)._target_action(zeros).any()


def test_actor_and_targets_move_at_every_second_update_of_the_critics():
    algorithm = td3()
    info = DdpgInfo(
        q=torch.zeros(1, 1, 2),
        policy_value=torch.ones(1, 1),
        next_value=torch.zeros(1, 1),
        reward=torch.zeros(1, 1),
        discount=torch.ones(1, 1),
        num_steps=torch.ones(1, 1, dtype=torch.int64),
        step_type=torch.full((1, 1), StepType.MID),
    )
    actor_moves, target_moves = [], []
    for _ in range(4):
        target = next(algorithm._target_policy.parameters()).clone()
        actor_moves.append(algorithm.calc_loss(info).loss.item() == -1.0)
        algorithm.after_update(TimeStep(), ())
        moved = next(algorithm._target_policy.parameters())
        target_moves.append(not torch.equal(target, moved))
    assert actor_moves == target_moves == [False, True, False, True]
