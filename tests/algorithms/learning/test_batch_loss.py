"""The loss of a mini-batch, compiled and not."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.networks.actor_networks import ActorNetwork, SquashedActorNetwork
from alf_lite.networks.critic_networks import CriticNetwork
from tests.replayed_steps import BOX, OBSERVATION, batch_of, randomise, windows


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "actor"),
    [(SacAlgorithm, SquashedActorNetwork), (Td3Algorithm, ActorNetwork)],
)
def test_an_actor_and_its_frozen_critics_are_one_graph(cls, actor):
    algorithm = cls(
        OBSERVATION,
        BOX,
        actor_network_ctor=functools.partial(actor, fc_layer_params=(8,)),
        critic_network_ctor=functools.partial(
            CriticNetwork, joint_fc_layer_params=(8,)
        ),
        actor_update_period=1,
    )
    randomise(algorithm)
    batch = batch_of(algorithm, windows(BOX))
    parameters = [p for p in algorithm.parameters() if p.requires_grad]
    eager = LossFunction(algorithm)
    torch._dynamo.reset()
    results = []
    for function in (eager, eager.compiled(backend="aot_eager", fullgraph=True)):
        torch.manual_seed(2)
        loss_info, _ = function(batch)
        gradients = torch.autograd.grad(loss_info.loss, parameters)
        results.append((loss_info.loss.detach(), gradients))
    torch.testing.assert_close(*results)
