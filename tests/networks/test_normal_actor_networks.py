from __future__ import annotations

import torch

from alf_lite.distributions.continuous import DiagonalNormal
from alf_lite.distributions.discrete import Categorical
from alf_lite.networks.normal_actor_networks import NormalActorNetwork
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

VECTOR = TensorSpec((4,))
BOX = BoundedTensorSpec((2,), torch.float32, -1.0, 1.0)
CHOICE = BoundedTensorSpec((), torch.int64, 0, 2)


def test_the_deviation_does_not_depend_on_the_observation():
    network = NormalActorNetwork(VECTOR, BOX, initial_log_std=-1.0)
    policy, _ = network(5 * torch.randn(20, 4))
    assert isinstance(policy, DiagonalNormal)
    torch.testing.assert_close(policy.scale, torch.full((20, 2), -1.0).exp())
    assert policy.loc.std(0).min() > 0
    policy.log_prob(torch.ones(20, 2)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_discrete_parts_are_categorical_and_actions_may_be_unbounded():
    network = NormalActorNetwork(VECTOR, {"move": TensorSpec((2,)), "gear": CHOICE})
    policy, _ = network(torch.randn(3, 4))
    assert isinstance(policy["gear"], Categorical)
    assert isinstance(policy["move"], DiagonalNormal)
